import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
/** Its transaction is held open between what it read and its COMMIT. */
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 80 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T23:59:59Z");
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

const verdict = (decision: Awaited<ReturnType<typeof authorizeBatch>>[number] | undefined): string =>
  decision?.rule ?? decision?.disposition ?? "";

async function authorizePaused(asked: Asked): Promise<string> {
  const [decision] = await authorizeBatch(paused.client, granting.workspace, [asks(asked)]);
  return verdict(decision);
}

async function tryOne(customerId: string): Promise<string> {
  const [decision] = await granting.authorize(asks({ customerId }));
  return verdict(decision);
}

describe("a change of a cap returns after every grant that saw it as it was", () => {
  test("archived: the grant counts on it, later ones do not", async () => {
    await granting.cap("old", usd(10));
    expect(await authorizePaused({ customerId: "a" })).toBe("GRANTED");
    const archived = granting.archive("old");
    await paused.expectBlocking(archived);
    await paused.commit();
    await archived;
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await granting.counters()).toMatchObject([{ capId: "old", held: usd(10).micros }]);
    await granting.expectCountersToAddUp();
  });

  test("lowered: the grant still fits, the next one does not", async () => {
    await granting.cap("low", usd(100));
    expect(await authorizePaused({ customerId: "a" })).toBe("GRANTED");
    const lowered = granting.changeCap("low", { limit: usd(15).micros });
    await paused.expectBlocking(lowered);
    await paused.commit();
    await lowered;
    expect(await tryOne("b")).toBe("CAP_HEADROOM");
  });

  test("enforced: the grant above its limit stands, and nothing more is granted", async () => {
    await granting.cap("trial", usd(5), { enforcement: "SHADOW" });
    expect(await authorizePaused({ customerId: "a" })).toBe("GRANTED");
    const enforced = granting.changeCap("trial", { enforcement: "ENFORCE" });
    await paused.expectBlocking(enforced);
    await paused.commit();
    await enforced;
    expect(await tryOne("b")).toBe("CAP_HEADROOM");
  });

  test("archived during an increase: what was raised is on it, and no later raise", async () => {
    await granting.cap("old", usd(100));
    const held = await granting.grant({});
    const raised = await granting.raise(held, usd("20"), { on: paused.client });
    expect(raised.rule).toBeUndefined();
    const archived = granting.archive("old");
    await paused.expectBlocking(archived);
    await paused.commit();
    await archived;
    await granting.raise(held, usd("90"));
    expect(await granting.counters()).toMatchObject([{ held: usd(20).micros }]);
    await granting.expectCountersToAddUp();
  });
});

describe("at the end of a window", () => {
  test("a grant that waits for the counter of the old one counts in it, with the time that it read", async () => {
    await granting.cap("day", usd(15), { window: "DAY" });
    expect(await authorizePaused({ customerId: "a" })).toBe("GRANTED");
    const late = granting.authorize(asks({ customerId: "b" }));
    await paused.expectBlocking(late);
    await clock.set("2026-11-16T00:00:00Z");
    await paused.commit();
    const [denied] = await late;
    expect(denied).toMatchObject({ rule: "CAP_HEADROOM", cap: { window: "2026-11-15", held: usd(10).micros } });
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await granting.counters()).toMatchObject([
      { window: "2026-11-15", held: usd(10).micros },
      { window: "2026-11-16", held: usd(10).micros },
    ]);
  });

  test("grants on both sides of it never exceed a cap, and each counts in one window", async () => {
    await granting.cap("day", 5, { window: "DAY" });
    const before = Array.from({ length: 20 }, (_, n) => tryOne(`before${n}`));
    const moved = clock.set("2026-11-16T00:00:00Z");
    const after = Array.from({ length: 20 }, (_, n) => tryOne(`after${n}`));
    const verdicts = await Promise.all([...before, ...after]);
    await moved;
    const counters = await granting.counters();
    const counted = counters.reduce((sum, { held }) => sum + held, 0n);
    expect(BigInt(verdicts.filter((one) => one === "GRANTED").length)).toBe(counted);
    expect(counters.every(({ held }) => held <= 5n)).toBe(true);
    await granting.expectCountersToAddUp();
  });
});

test("a place that a replaced, never bound spend gives back is there for the same batch", async () => {
  await granting.cap("one", 1);
  await granting.vaultKey("other");
  await granting.grant({ settlement: "TWO_STEP", holdForMs: 5000 });
  await clock.advance(5000);
  const decisions = await granting.authorize(
    asks({ vaultKeyId: "other", customerId: "cust_1" }),
    asks({ vaultKeyId: "other", customerId: "cust_2" }),
  );
  expect(decisions.map(verdict)).toEqual(["GRANTED", "CAP_HEADROOM"]);
  expect(await granting.counters()).toMatchObject([{ held: 1n }]);
  await granting.expectCountersToAddUp();
});

import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { sweepExpired } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
});

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

async function tryOne(customerId: string): Promise<string> {
  const [decision] = await granting.authorize(asks({ customerId }));
  return decision?.rule ?? decision?.disposition ?? "";
}

/** What each window counts, in micros, held and committed. */
async function counted(): Promise<Record<string, bigint>> {
  const rows = await granting.counters();
  return Object.fromEntries(rows.map((row) => [row.window, row.held + row.committed]));
}

describe("the database's clock jumps", () => {
  test.each([
    ["an hour ahead", HOUR_MS],
    ["an hour back", -HOUR_MS],
    ["a day ahead", DAY_MS],
    ["a day back", -DAY_MS],
    ["to the year 2136", 110 * 365 * DAY_MS],
  ])("%s: what was taken stays taken, and no cap is exceeded", async (_how, ms) => {
    await granting.cap("ever", usd(20), { window: "LIFETIME" });
    expect(await tryOne("a")).toBe("GRANTED");
    await clock.advance(ms);
    await sweepExpired(database.pool, granting.workspace, 100);
    // In doubt at most: no jump gives a hold back.
    expect(await counted()).toEqual({ "": usd(10).micros });
    expect(["IN_PROGRESS", "IN_DOUBT"]).toContain(await tryOne("a"));
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await tryOne("c")).toBe("CAP_HEADROOM");
    await clock.advance(-ms);
    await sweepExpired(database.pool, granting.workspace, 100);
    expect(await tryOne("c")).toBe("CAP_HEADROOM");
    expect(await counted()).toEqual({ "": usd(20).micros });
    await granting.expectCountersToAddUp();
  });

  test("back into a day that was used up, and forth again: neither day opens anew", async () => {
    await granting.cap("daily", usd(10), { window: "DAY" });
    expect(await tryOne("a")).toBe("GRANTED");
    await clock.advance(DAY_MS);
    expect(await tryOne("b")).toBe("GRANTED");
    for (const ms of [-DAY_MS, DAY_MS, -DAY_MS + HOUR_MS, DAY_MS]) {
      await clock.advance(ms);
      expect(await tryOne("c")).toBe("CAP_HEADROOM");
    }
    expect(await counted()).toEqual({ "2026-11-15": usd(10).micros, "2026-11-16": usd(10).micros });
  });

  test("events keep their order when the clock does not", async () => {
    for (const ms of [0, -HOUR_MS, 2 * HOUR_MS, -DAY_MS]) {
      await clock.advance(ms);
      await tryOne(`order-${ms}`);
    }
    const { rows } = await database.pool.query<{ customer_id: string }>(
      "select customer_id from holdfast.audit_events where workspace_id = $1 and kind = 'spend.granted' order by xid, n",
      [granting.workspace],
    );
    expect(rows.map(({ customer_id: id }) => id)).toEqual([
      "order-0",
      `order-${-HOUR_MS}`,
      `order-${2 * HOUR_MS}`,
      `order-${-DAY_MS}`,
    ]);
  });
});

test("1,000 authorizations while the clock steps over midnight: each in one day, both days full and none over", async () => {
  const perDay = 40;
  await granting.cap("daily", usd(10 * perDay), { window: "DAY" });
  await clock.set("2026-11-15T23:59:59.990Z");
  const decisions: Promise<unknown>[] = [];
  for (let step = 0; step < 20; step += 1) {
    // Nobody waits for anybody: the steps fall between and into the transactions.
    for (let n = 0; n < 5; n += 1) {
      decisions.push(
        granting.authorize(...Array.from({ length: 10 }, (_, k) => asks({ customerId: `m-${step}-${n}-${k}` }))),
      );
    }
    await clock.advance(1);
  }
  const granted = (await Promise.all(decisions)).flat() as Awaited<ReturnType<Granting["authorize"]>>;
  expect(granted).toHaveLength(1_000);
  expect(granted.filter(({ disposition }) => disposition === "GRANTED")).toHaveLength(2 * perDay);
  expect(await counted()).toEqual({
    "2026-11-15": usd(10 * perDay).micros,
    "2026-11-16": usd(10 * perDay).micros,
  });
  await granting.expectCountersToAddUp();
});

import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { getCapUsage } from "../../server/store/cap.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, type Granting, micros, openGranting, usd } from "../support/granting.ts";
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

async function tryOne(customerId: string, asked: Asked = {}): Promise<string> {
  const [decision] = await granting.authorize(asks({ customerId, ...asked }));
  return decision?.rule ?? decision?.disposition ?? "";
}

async function usage(): Promise<[string, string, bigint, bigint][]> {
  return (await granting.counters()).map((one) => [one.capId, one.window, one.committed, one.held]);
}

/** The vendor has refused it. */
async function voidOne(held: Awaited<ReturnType<Granting["grant"]>>): Promise<void> {
  const { errorReason } = await voidSpend(database.pool, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization: held,
    attemptId: String((await granting.row(held))["attempt_id"]),
    evidence: "VENDOR_REFUSED",
    vendorStatus: 402,
    vendorReplayed: false,
    vendorReference: "",
    reason: "declined",
    traceId: "",
  });
  expect(errorReason).toBeUndefined();
}

async function raise(held: Awaited<ReturnType<Granting["grant"]>>, amount: string) {
  return await granting.raise(held, usd(amount));
}

async function events(kind: string): Promise<Record<string, unknown>[]> {
  const { rows } = await database.pool.query<{ event: Record<string, unknown> }>(
    `select to_jsonb(e) as event from holdfast.audit_events e
     where e.workspace_id = $1 and e.kind = $2 order by e.xid, e.n`,
    [granting.workspace, kind],
  );
  return rows.map(({ event }) => event);
}

describe("a calendar window", () => {
  // Each is the last instant of a window and the first of the next.
  test.each([
    ["WEEK", {}, "2026-11-09", "2026-11-16T00:00:00Z", "2026-11-16"],
    ["WEEK", { weekStart: 7 }, "2026-11-15", "2026-11-22T00:00:00Z", "2026-11-22"],
    ["MONTH", {}, "2026-11", "2026-12-01T00:00:00Z", "2026-12"],
    ["MONTH", { anchorDay: 31, timeZone: "Europe/Berlin" }, "2026-10", "2026-11-29T23:00:00Z", "2026-11"],
    ["MONTH", { anchorDay: 16, startHour: 6 }, "2026-10", "2026-11-16T06:00:00Z", "2026-11"],
    ["YEAR", {}, "2026", "2027-01-01T00:00:00Z", "2027"],
    ["YEAR", { anchorMonth: 12, anchorDay: 25 }, "2025", "2026-12-25T00:00:00Z", "2026"],
    ["DAY", { startHour: 12 }, "2026-11-15", "2026-11-16T12:00:00Z", "2026-11-16"],
    ["DAY", { startHour: 13, timeZone: "Asia/Kolkata" }, "2026-11-15", "2026-11-16T07:30:00Z", "2026-11-16"],
  ] as const)("%s %o is %s until %s, then %s", async (window, options, label, end, next) => {
    await granting.cap("cap", usd(10), { window, ...options });
    await clock.set(end);
    await clock.advance(-1);
    expect(await tryOne("a")).toBe("GRANTED");
    const [denied] = await granting.authorize(asks({ customerId: "b" }));
    const ends = BigInt(Date.parse(end)) * 1000n;
    expect(denied).toMatchObject({ rule: "CAP_HEADROOM", cap: { window: label, windowEnd: ends } });
    await clock.set(end);
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await usage()).toEqual([
      ["cap", label, 0n, usd(10).micros],
      ["cap", next, 0n, usd(10).micros],
    ]);
    const read = await getCapUsage(database.pool, granting.workspace, "cap", { window: "", customerId: "" });
    expect(read).toMatchObject({ window: next, windowStart: ends });
  });

  test.each([
    ["2028-01-31T10:00:00Z", "2028-01", "2028-02-29T00:00:00Z"],
    ["2028-02-29T00:00:00Z", "2028-02", "2028-03-31T00:00:00Z"],
    ["2027-02-27T10:00:00Z", "2027-01", "2027-02-28T00:00:00Z"],
    ["2027-04-30T00:00:00Z", "2027-04", "2027-05-31T00:00:00Z"],
  ])("of a month anchored on the 31st is clamped: at %s it is %s until %s", async (now, label, end) => {
    await granting.cap("cap", usd(0), { window: "MONTH", anchorDay: 31 });
    await clock.set(now);
    const [denied] = await granting.authorize(asks());
    expect(denied?.cap).toMatchObject({ window: label, windowEnd: BigInt(Date.parse(end)) * 1000n });
  });

  test.each([
    ["skipped", "2026-03-08T06:59:59.999Z", "2026-03-08T07:00:00Z"],
    ["repeated", "2026-11-01T04:59:59.999Z", "2026-11-01T05:00:00Z"],
  ])("whose start hour is %s begins once, and not again", async (what, before, start) => {
    const startHour = what === "skipped" ? 2 : 1;
    await granting.cap("cap", usd(0), { window: "DAY", timeZone: "America/New_York", startHour });
    await clock.set(before);
    const [earlier] = await granting.authorize(asks());
    await clock.set(start);
    const [first] = await granting.authorize(asks());
    // When the clocks show the hour for the second time, the day goes on.
    await clock.advance(3_600_000);
    const [later] = await granting.authorize(asks());
    const day = start.slice(0, 10);
    expect(earlier?.cap).toMatchObject({ windowEnd: BigInt(Date.parse(start)) * 1000n });
    expect(first?.cap).toMatchObject({ window: day, windowStart: BigInt(Date.parse(start)) * 1000n });
    expect(later?.cap).toMatchObject({ window: day, windowStart: BigInt(Date.parse(start)) * 1000n });
  });
});

describe("a FIXED window", () => {
  const startTime = BigInt(Date.parse("2026-11-20T00:00:00Z")) * 1000n;
  const endTime = BigInt(Date.parse("2026-11-21T00:00:00Z")) * 1000n;

  test("counts and judges only grants inside, and settles them when they come later", async () => {
    await granting.cap("sale", usd(10), { window: "FIXED", startTime, endTime });
    expect(await tryOne("before", { amount: usd(99) })).toBe("GRANTED");
    await clock.set("2026-11-20T00:00:00Z");
    const held = await granting.grant({ customerId: "inside" });
    await clock.set("2026-11-20T23:59:59.999Z");
    const [denied] = await granting.authorize(asks({ customerId: "more" }));
    expect(denied).toMatchObject({
      rule: "CAP_HEADROOM",
      cap: { window: "", windowStart: startTime, windowEnd: endTime },
    });
    await clock.set("2026-11-21T00:00:00Z");
    expect(await tryOne("after", { amount: usd(99) })).toBe("GRANTED");
    await granting.commit(held, { amount: usd(4) });
    expect(await usage()).toEqual([["sale", "", usd(4).micros, 0n]]);
    await granting.expectCountersToAddUp();
  });
});

test("a key that pins no billing periods leaves no counter behind for those that it invents", async () => {
  await granting.cap("period", usd(100), { window: "BILLING_PERIOD" });
  await granting.cap("trial", usd(100), { window: "BILLING_PERIOD", enforcement: "SHADOW", perCustomer: true });
  const [decision] = await granting.authorize(asks({ billingPeriod: "invented" }));
  expect(decision).toMatchObject({
    rule: "BILLING_PERIOD_NOT_PINNED",
    cap: { capId: "period", window: "invented", limit: usd(100).micros, committed: 0n, held: 0n },
  });
  expect(await granting.counters()).toEqual([]);
});

describe("a cap that counts spends", () => {
  test("counts each spend once, of any amount and currency", async () => {
    await granting.cap("three", 3);
    expect(await tryOne("a", { amount: usd(1_000_000) })).toBe("GRANTED");
    expect(await tryOne("b", { amount: { currency: "jpy", micros: micros(500) } })).toBe("GRANTED");
    expect(await tryOne("c", { amount: usd("0.000001") })).toBe("GRANTED");
    expect(await tryOne("a", { amount: usd(1_000_000) })).toBe("IN_PROGRESS");
    const [denied] = await granting.authorize(asks({ customerId: "d" }));
    expect(denied).toMatchObject({
      rule: "CAP_HEADROOM",
      cap: { currency: undefined, limit: 3n, committed: 0n, held: 3n },
    });
    await granting.expectCountersToAddUp();
  });

  test("gets a place back on a void and none on a commit, also of less, more or nothing", async () => {
    await granting.cap("many", 9);
    const held = [];
    for (const customerId of ["a", "b", "c", "d"]) held.push(await granting.grant({ customerId }));
    const [a, b, c, d] = held;
    if (a === undefined || b === undefined || c === undefined || d === undefined) throw new Error("not granted");
    await voidOne(a);
    await granting.commit(b, { amount: usd(99), vendorReference: "ch_b" });
    await granting.commit(c, { amount: usd(0), vendorReference: "ch_c" });
    await granting.commit(d, { amount: usd(5), vendorReference: "ch_d" });
    expect(await usage()).toEqual([["many", "", 3n, 0n]]);
    await granting.expectCountersToAddUp();
  });

  test("counts a second charge as one more, and the same charge told with another amount as none", async () => {
    await granting.cap("two", 2);
    const held = await granting.grant({});
    await granting.commit(held, { vendorReference: "ch_1" });
    await granting.commit(held, { vendorReference: "ch_1", amount: usd(50) });
    expect(await usage()).toEqual([["two", "", 1n, 0n]]);
    const second = { vendorReference: "ch_2", amount: { currency: "eur", micros: micros(1) } };
    await granting.commit(held, second);
    await granting.commit(held, second);
    expect(await usage()).toEqual([["two", "", 2n, 0n]]);
    expect(await tryOne("b")).toBe("CAP_HEADROOM");
    const voided = await granting.grant({ customerId: "c", purpose: "elsewhere" }).catch(() => undefined);
    expect(voided).toBeUndefined();
    await granting.expectCountersToAddUp();
  });

  test("counts a charge after a void as one", async () => {
    await granting.cap("two", 2);
    const held = await granting.grant({});
    await voidOne(held);
    await granting.commit(held, { vendorReference: "ch_late" });
    expect(await usage()).toEqual([["two", "", 1n, 0n]]);
    await granting.expectCountersToAddUp();
  });

  test("is not asked by an increase, also when its limit is lowered below what is used", async () => {
    await granting.cap("one", 1);
    const held = await granting.grant({});
    await granting.changeCap("one", { limit: 0n });
    expect(await raise(held, "20")).toMatchObject({ rule: undefined, authorization: { held: usd(20).micros } });
    expect(await usage()).toEqual([["one", "", 0n, 1n]]);
    await granting.expectCountersToAddUp();
  });

  test("grants exactly as many as it has places to 64 that ask at once", async () => {
    await granting.cap("ten", 10, { window: "DAY" });
    const asked = Array.from({ length: 64 }, (_, n) => granting.authorize(asks({ customerId: `p${n}` })));
    const verdicts = (await Promise.all(asked)).map(([one]) => one?.rule ?? one?.disposition);
    expect(verdicts.filter((one) => one === "GRANTED")).toHaveLength(10);
    expect(verdicts.filter((one) => one === "CAP_HEADROOM")).toHaveLength(54);
    expect(await usage()).toEqual([["ten", "2026-11-15", 0n, 10n]]);
  });
});

describe("a cap in the shadow", () => {
  test("counts, never denies, and says in the audit what it would have denied", async () => {
    await granting.cap("trial", usd(15), { enforcement: "SHADOW", maxPerSpend: usd(12).micros });
    expect(await tryOne("a")).toBe("GRANTED");
    expect(await events("cap.shadow_exceeded")).toEqual([]);
    const [b] = await granting.authorize(asks({ customerId: "b" }), asks({ customerId: "c", amount: usd(13) }));
    expect(b).toMatchObject({ disposition: "GRANTED", cap: undefined });
    expect(await usage()).toEqual([["trial", "", 0n, usd(33).micros]]);
    const said = await events("cap.shadow_exceeded");
    expect(said).toMatchObject([
      {
        customer_id: "b",
        disposition: "GRANTED",
        reason: "CAP_HEADROOM",
        detail: { cap: "trial", window: "", limit_micros: 15_000_000, committed_micros: 0, held_micros: 10_000_000 },
      },
      { customer_id: "c", reason: "MAX_PER_SPEND", detail: { held_micros: 20_000_000 } },
    ]);
    // With the grant, in its transaction.
    expect(said[0]?.["xid"]).toEqual((await events("spend.granted")).at(-1)?.["xid"]);
    await granting.expectCountersToAddUp();
  });

  test("says nothing of a spend that another cap denies", async () => {
    await granting.cap("a-trial", usd(0), { enforcement: "SHADOW" });
    await granting.cap("b-real", usd(0));
    expect(await tryOne("a")).toBe("CAP_HEADROOM");
    expect(await events("cap.shadow_exceeded")).toEqual([]);
  });

  test("reports a spend that it cannot count, and does not count it", async () => {
    await granting.cap("euros", { currency: "eur", micros: micros(5) }, { enforcement: "SHADOW" });
    await granting.cap("period", usd(5), { enforcement: "SHADOW", window: "BILLING_PERIOD" });
    const held = await granting.grant({});
    expect((await events("cap.shadow_exceeded")).map(({ reason }) => reason)).toEqual([
      "CURRENCY",
      "BILLING_PERIOD_NOT_PINNED",
    ]);
    await granting.commit(held);
    expect((await granting.counters()).every(({ committed, held }) => committed === 0n && held === 0n)).toBe(true);
    await granting.expectCountersToAddUp();
  });

  test("is raised above its limit, and says so", async () => {
    await granting.cap("trial", usd(15), { enforcement: "SHADOW" });
    const held = await granting.grant({});
    expect(await raise(held, "16")).toMatchObject({ rule: undefined, authorization: { held: usd(16).micros } });
    expect(await events("cap.shadow_exceeded")).toMatchObject([
      { reason: "CAP_HEADROOM", detail: { cap: "trial", held_micros: 10_000_000, asked_micros: 16_000_000 } },
    ]);
    await granting.expectCountersToAddUp();
  });

  test("denies from the update on that enforces it, with what it has counted", async () => {
    await granting.cap("trial", usd(15), { enforcement: "SHADOW" });
    await granting.grant({ customerId: "a" });
    await granting.grant({ customerId: "b" });
    await granting.changeCap("trial", { enforcement: "ENFORCE" });
    const [denied] = await granting.authorize(asks({ customerId: "c" }));
    expect(denied).toMatchObject({ rule: "CAP_HEADROOM", cap: { limit: usd(15).micros, held: usd(20).micros } });
    await granting.changeCap("trial", { enforcement: "SHADOW" });
    expect(await tryOne("c")).toBe("GRANTED");
  });
});

describe("an archived cap", () => {
  test("counts nothing new, and settles what it has counted", async () => {
    await granting.cap("old", usd(20));
    await granting.cap("places", 2);
    const first = await granting.grant({ customerId: "a" });
    const second = await granting.grant({ customerId: "b" });
    await granting.archive("old");
    await granting.archive("places");
    expect(await tryOne("c", { amount: usd(99) })).toBe("GRANTED");
    expect(await raise(first, "50")).toMatchObject({ rule: undefined });
    expect(await usage()).toEqual([
      ["old", "", 0n, usd(20).micros],
      ["places", "", 0n, 2n],
    ]);
    await granting.commit(first, { amount: usd(50), vendorReference: "ch_1" });
    await voidOne(second);
    expect(await usage()).toEqual([
      ["old", "", usd(50).micros, 0n],
      ["places", "", 1n, 0n],
    ]);
    await granting.expectCountersToAddUp();
  });
});

describe("a cap that is attached", () => {
  test("counts only spends of keys that name it, and of those only what its scope matches", async () => {
    await granting.cap("shared", usd(15), { attachedOnly: true, scope: { purpose: "subscription" } });
    await granting.vaultKey("one", { attachedCaps: ["shared"] });
    await granting.vaultKey("two", { attachedCaps: ["shared"] });
    expect(await tryOne("a", { vaultKeyId: "one" })).toBe("GRANTED");
    expect(await tryOne("b", { vaultKeyId: "two" })).toBe("CAP_HEADROOM");
    expect(await tryOne("b", { vaultKeyId: "two", purpose: "fee" })).toBe("GRANTED");
    expect(await tryOne("c", { vaultKeyId: "main" })).toBe("GRANTED");
    expect(await usage()).toEqual([["shared", "", 0n, usd(10).micros]]);
  });
});

describe("a rehearsal", () => {
  async function rehearse(asked: Asked) {
    const client = await database.pool.connect();
    try {
      await client.query("begin");
      const [decision] = await authorizeBatch(client, granting.workspace, [asks(asked)], true);
      await client.query("rollback");
      return decision;
    } finally {
      client.release();
    }
  }

  test("shows every cap that would be drawn, also where several deny, and writes nothing", async () => {
    await granting.cap("a-day", usd(15), { window: "DAY" });
    await granting.cap("b-count", 1);
    await granting.cap("c-euros", { currency: "eur", micros: micros(5) }, { enforcement: "SHADOW" });
    await granting.cap("d-each", usd(100), { perCustomer: true });
    await granting.cap("e-other", usd(0), { scope: { purpose: "other" } });
    await granting.grant({ customerId: "before" });
    const start = BigInt(Date.parse("2026-11-15T00:00:00Z")) * 1000n;
    const decision = await rehearse({ customerId: "a" });
    expect(decision).toMatchObject({ disposition: "DENIED", rule: "CAP_HEADROOM", cap: { capId: "a-day" } });
    expect(decision?.draws).toMatchObject([
      {
        capId: "a-day",
        rule: "CAP_HEADROOM",
        window: "2026-11-15",
        windowStart: start,
        windowEnd: start + 86_400_000_000n,
        limit: usd(15).micros,
        held: usd(10).micros,
      },
      { capId: "b-count", rule: "CAP_HEADROOM", currency: undefined, limit: 1n, held: 1n },
      { capId: "c-euros", rule: "CURRENCY", enforcement: "SHADOW", held: 0n },
      { capId: "d-each", rule: undefined, customerId: "a", held: 0n },
    ]);
    expect((await granting.counters()).map(({ capId, subject }) => [capId, subject])).toEqual([
      ["a-day", ""],
      ["b-count", ""],
      ["c-euros", ""],
      ["d-each", "before"],
    ]);
    expect((await events("spend.answered")).length).toBe(0);
  });

  test("draws nothing where no cap is asked", async () => {
    await granting.cap("cap", usd(100));
    const held = await granting.grant({});
    await granting.commit(held);
    expect(await rehearse({})).toMatchObject({ disposition: "ALREADY_COMMITTED", draws: [] });
    const [real] = await granting.authorize(asks({ customerId: "b" }));
    expect(real?.draws).toEqual([]);
  });
});

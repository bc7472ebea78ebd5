import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, endpoint, type Granting, openGranting, usd } from "../support/granting.ts";
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

async function usage(): Promise<[string, string, bigint, bigint][]> {
  return (await granting.counters()).map((one) => [one.window, one.subject, one.committed, one.held]);
}

/** Asks for 10 USD in a new spend and says what denied it, or GRANTED. */
async function tryOne(name: string, asked: Parameters<typeof asks>[0] = {}): Promise<string> {
  const [decision] = await granting.authorize(asks({ customerId: name, ...asked }));
  return decision?.rule ?? decision?.disposition ?? "";
}

describe("a DAY window", () => {
  // Each is the last instant of a day and the first of the next, from the zone's published transitions.
  test.each([
    ["UTC", "2026-11-15", "2026-11-16T00:00:00Z", "2026-11-16"],
    ["America/New_York", "2026-03-08", "2026-03-09T04:00:00Z", "2026-03-09"],
    ["America/New_York", "2026-11-01", "2026-11-02T05:00:00Z", "2026-11-02"],
    ["America/Sao_Paulo", "2018-11-03", "2018-11-04T03:00:00Z", "2018-11-04"],
    ["America/Sao_Paulo", "2018-02-17", "2018-02-18T03:00:00Z", "2018-02-18"],
    ["America/Havana", "2026-10-31", "2026-11-01T04:00:00Z", "2026-11-01"],
    ["Pacific/Apia", "2011-12-29", "2011-12-30T10:00:00Z", "2011-12-31"],
    ["Asia/Kolkata", "2026-11-15", "2026-11-15T18:30:00Z", "2026-11-16"],
    ["Australia/Lord_Howe", "2026-04-04", "2026-04-04T13:00:00Z", "2026-04-05"],
  ])("in %s the day %s ends at %s and the next is %s", async (timeZone, day, end, next) => {
    await granting.cap("daily", usd(10), { window: "DAY", timeZone });
    await clock.set(end);
    await clock.advance(-1);
    expect(await tryOne("a")).toBe("GRANTED");
    const [denied] = await granting.authorize(asks({ customerId: "b" }));
    expect(denied).toMatchObject({
      rule: "CAP_HEADROOM",
      cap: { window: day, windowEnd: BigInt(Date.parse(end)) * 1000n },
    });
    await clock.set(end);
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await usage()).toEqual([
      [day, "", 0n, usd(10).micros],
      [next, "", 0n, usd(10).micros],
    ]);
  });

  test("keeps a hold in the window of its grant, also when it is committed after midnight", async () => {
    await granting.cap("daily", usd(10), { window: "DAY" });
    await clock.set("2026-11-15T23:59:59Z");
    const held = await granting.grant({});
    await clock.set("2026-11-16T00:00:01Z");
    await granting.commit(held);
    expect(await usage()).toEqual([["2026-11-15", "", usd(10).micros, 0n]]);
    expect(await tryOne("tomorrow")).toBe("GRANTED");
    await granting.expectCountersToAddUp();
  });
});

describe("other windows", () => {
  test("LIFETIME never ends", async () => {
    await granting.cap("ever", usd(10));
    expect(await tryOne("a")).toBe("GRANTED");
    await clock.set("2126-01-01T00:00:00Z");
    const [denied] = await granting.authorize(asks({ customerId: "b" }));
    expect(denied).toMatchObject({
      rule: "CAP_HEADROOM",
      cap: { window: "", windowStart: undefined, windowEnd: undefined },
    });
  });

  test("BILLING_PERIOD counts per period of the spend, for keys that pin their periods", async () => {
    await granting.cap("period", usd(10), { window: "BILLING_PERIOD" });
    await granting.vaultKey("pinned", { billingPeriods: ["2026-11", "2026-12"] });
    const key = { vaultKeyId: "pinned" };
    expect(await tryOne("a", key)).toBe("GRANTED");
    expect(await tryOne("b", key)).toBe("CAP_HEADROOM");
    expect(await tryOne("b", { ...key, billingPeriod: "2026-12" })).toBe("GRANTED");
    expect(await tryOne("c", { ...key, billingPeriod: "2027-01" })).toBe("BILLING_PERIOD");
    expect(await tryOne("c")).toBe("BILLING_PERIOD_NOT_PINNED");
    expect(await usage()).toEqual([
      ["2026-11", "", 0n, usd(10).micros],
      ["2026-12", "", 0n, usd(10).micros],
    ]);
  });
});

describe("a cap", () => {
  test("counts from its creation: what was held before is not added", async () => {
    await granting.grant({ customerId: "before" });
    await granting.cap("new", usd(10));
    expect(await tryOne("after")).toBe("GRANTED");
  });

  test("per customer counts each customer on its own", async () => {
    await granting.cap("each", usd(10), { perCustomer: true });
    expect(await tryOne("a")).toBe("GRANTED");
    expect(await tryOne("a", { purpose: "extra" })).toBe("CAP_HEADROOM");
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await usage()).toEqual([
      ["", "a", 0n, usd(10).micros],
      ["", "b", 0n, usd(10).micros],
    ]);
  });

  test.each([
    ["vault key", { vaultKeyId: "other" }, { vaultKeyId: "other" }],
    ["vendor", { vendor: "twilio" }, { vaultKeyId: "sms", vendor: "twilio", endpoint: "POST /messages" }],
    ["endpoint", { endpoint: "POST /v1/:kind" }, { vaultKeyId: "charges", endpoint: "POST /v1/charges" }],
    ["customer", { customerId: "vip" }, { customerId: "vip" }],
    ["purpose", { purpose: "bonus" }, { purpose: "bonus" }],
  ])("scoped by %s counts only what matches", async (what, scope, matching) => {
    await granting.vaultKey("other");
    await granting.vaultKey("sms", { vendor: "twilio", allowedEndpoints: ["POST /messages"] });
    await granting.vaultKey("charges", { allowedEndpoints: ["POST /v1/charges"] });
    await granting.cap("scoped", usd(0), { scope });
    expect(await tryOne("cust_1", matching)).toBe("CAP_HEADROOM");
    const others = what === "endpoint" ? { endpoint: "POST /v1/a/b", vaultKeyId: "deep" } : {};
    await granting.vaultKey("deep", { allowedEndpoints: ["POST /v1/a/b", endpoint] });
    expect(await tryOne("cust_1", { purpose: "plain", ...others })).toBe("GRANTED");
  });

  test("with several scope fields counts only what matches all of them", async () => {
    await granting.cap("both", usd(0), { scope: { customerId: "vip", purpose: "bonus" } });
    expect(await tryOne("vip")).toBe("GRANTED");
    expect(await tryOne("cust_1", { purpose: "bonus" })).toBe("GRANTED");
    expect(await tryOne("vip", { purpose: "bonus" })).toBe("CAP_HEADROOM");
  });

  test("refuses one spend above max_per_spend however much room there is, and takes exactly that much", async () => {
    await granting.cap("sized", usd(1000), { maxPerSpend: usd(10).micros });
    expect(await tryOne("a", { amount: { currency: "usd", micros: usd("10.000001").micros } })).toBe("MAX_PER_SPEND");
    expect(await tryOne("a")).toBe("GRANTED");
  });

  test("is used to the last micro and not one further", async () => {
    await granting.cap("exact", usd("20"));
    expect(await tryOne("a")).toBe("GRANTED");
    expect(await tryOne("b", { amount: usd("10.000001") })).toBe("CAP_HEADROOM");
    expect(await tryOne("b")).toBe("GRANTED");
    expect(await tryOne("c", { amount: usd("0.000001") })).toBe("CAP_HEADROOM");
  });

  test("of the largest limit is not overrun by the largest amounts", async () => {
    await granting.cap("huge", usd("1000000000000"));
    expect(await tryOne("a", { amount: usd("1000000000000") })).toBe("GRANTED");
    expect(await tryOne("b", { amount: usd("1000000000000") })).toBe("CAP_HEADROOM");
  });

  test("in another currency denies and names itself", async () => {
    await granting.cap("usdonly", usd(1000));
    const [denied] = await granting.authorize(asks({ amount: { currency: "eur", micros: usd(1).micros } }));
    expect(denied).toMatchObject({ rule: "CURRENCY", cap: { capId: "usdonly", currency: "usd" } });
  });

  test("goes below zero headroom after an over-commit and denies until there is room", async () => {
    await granting.cap("over", usd(20));
    const held = await granting.grant({});
    expect(await granting.commit(held, { amount: usd(25) })).toMatchObject({ overCommitted: true });
    const [denied] = await granting.authorize(asks({ customerId: "b", amount: usd("0.01") }));
    expect(denied).toMatchObject({ rule: "CAP_HEADROOM", cap: { committed: usd(25).micros, held: 0n } });
    await granting.changeCap("over", { limit: usd(26).micros });
    expect(await tryOne("b", { amount: usd(1) })).toBe("GRANTED");
    await granting.expectCountersToAddUp();
  });

  test("gets the rest back when less than the hold is committed", async () => {
    await granting.cap("rest", usd(10));
    const held = await granting.grant({});
    await granting.commit(held, { amount: usd("3.5") });
    expect(await usage()).toEqual([["", "", usd("3.5").micros, 0n]]);
    expect(await tryOne("b", { amount: usd("6.5") })).toBe("GRANTED");
  });
});

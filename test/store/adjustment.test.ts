import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization, AuthorizationId } from "../../server/domain/spend.ts";
import { batchRemedy } from "../../server/store/refusal.ts";
import { bindVendorReference, commitBatch } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 40, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

/** A charge of that many dollars, committed under the reference `ch_<name>`. */
async function charged(name: string, dollars = 10, asked: Asked = {}): Promise<Authorization> {
  const id = await granting.grant({ customerId: name, amount: usd(dollars), ...asked });
  const { authorization } = await granting.commit(id, { vendorReference: `ch_${name}`, amount: usd(dollars) });
  return authorization as Authorization;
}

async function refundOf(name: string, dollars = 4, asked: Asked = {}): Promise<Authorization> {
  return await granting.grant({
    customerId: name,
    purpose: `refund-${attempt()}`,
    amount: usd(dollars),
    direction: "REFUND",
    refundOf: `ch_${name}`,
    ...asked,
  });
}

async function refunded(name: string, dollars = 4, asked: Asked = {}) {
  return await granting.commit(await refundOf(name, dollars, asked), { amount: usd(dollars) });
}

async function adjustments(): Promise<readonly Record<string, unknown>[]> {
  const { rows } = await database.pool.query<Record<string, unknown>>(
    `select t.customer_id as customer, a.amount_micros as amount, a.currency from holdfast.adjustments a
     join holdfast.authorizations t using (workspace_id, spend_key, generation)
     where a.workspace_id = $1 order by 1, 2`,
    [granting.workspace],
  );
  return rows;
}

/** Committed of each cap and window. */
async function committed(): Promise<Readonly<Record<string, bigint>>> {
  await granting.expectCountersToAddUp();
  const all = await granting.counters();
  return Object.fromEntries(all.map((one) => [`${one.capId} ${one.window}`.trim(), one.committed]));
}

const dollars = (amount: number | string) => usd(amount).micros;

describe("a direction", () => {
  test("draws on the caps of its direction only", async () => {
    await granting.cap("charges", usd(5));
    await granting.cap("refunds", usd(3), { direction: "REFUND" });
    const decisions = await granting.authorize(
      asks({ customerId: "a", amount: usd(5) }),
      asks({ customerId: "b", amount: usd(3), direction: "REFUND" }),
      asks({ customerId: "c", amount: usd(1) }),
      asks({ customerId: "d", amount: usd(1), direction: "REFUND" }),
    );
    expect(decisions.map((one) => one.cap?.capId ?? one.disposition)).toEqual([
      "GRANTED",
      "GRANTED",
      "charges",
      "refunds",
    ]);
    expect(await granting.counters()).toMatchObject([{ held: dollars(5) }, { held: dollars(3) }]);
  });

  test("and the refunded charge are stored and compared on every repeat", async () => {
    const attemptId = attempt();
    const asked: Asked = { attemptId, direction: "REFUND", refundOf: "ch_1" };
    expect(await granting.grant(asked)).toMatchObject({ direction: "REFUND", refundOf: "ch_1" });
    const repeats: readonly Asked[] = [
      { ...asked, refundOf: "ch_2" },
      { ...asked, refundOf: "" },
      { ...asked, direction: "SPEND", refundOf: "" },
    ];
    const decisions = await granting.authorize(...repeats.map(asks));
    expect(decisions.map((one) => one.differingFields.join())).toEqual([
      "refund_of",
      "refund_of",
      "direction,refund_of",
    ]);
  });
});

describe("a committed refund", () => {
  test("adjusts its charge once, and gives headroom back in the charge's own window where the cap says so", async () => {
    await granting.cap("day", usd(10), { window: "DAY", refundsRestoreHeadroom: true });
    await granting.cap("kept", usd(100));
    await charged("a");
    await clock.set("2026-11-16T12:00:00Z");
    const refund = await refundOf("a");
    expect(await adjustments()).toEqual([]);
    for (let again = 0; again < 3; again += 1) await granting.commit(refund, { amount: usd(4) });
    expect(await adjustments()).toEqual([{ customer: "a", amount: dollars(4), currency: "usd" }]);
    expect(await committed()).toEqual({ "day 2026-11-15": dollars(6), kept: dollars(10) });
    const { rows } = await database.pool.query<{ detail: unknown }>(
      "select detail from holdfast.audit_events where workspace_id = $1 and kind = 'spend.refunded'",
      [granting.workspace],
    );
    expect(rows).toMatchObject([
      {
        detail: {
          refund: `${refund.spendKey}-1`,
          refunded_micros: 4_000_000,
          caps: [{ cap: "day", window: "2026-11-15", returned_micros: 4_000_000 }],
        },
      },
    ]);
  });

  test("is summed up on the charge, whose committed amount never changes, and never gives back more than that", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    const charge = await charged("a");
    await charged("b", 20);
    for (const amount of [4, 4, 4]) await refunded("a", amount);
    expect(await granting.row(charge)).toMatchObject({ committed_micros: 10_000_000, refunded_micros: 12_000_000 });
    const { authorization } = await granting.commit(charge, { vendorReference: "ch_a", amount: usd(10) });
    expect(authorization).toMatchObject({ committed: usd(10), refunded: usd(12) });
    expect(await committed()).toEqual({ all: dollars(20) });
  });

  test("gives back only while the cap says so, and never twice what was committed in between", async () => {
    await granting.cap("all", usd(100));
    await charged("a");
    await refunded("a", 6);
    expect(await committed()).toEqual({ all: dollars(10) });
    await granting.changeCap("all", { refundsRestoreHeadroom: true });
    await refunded("a", 6);
    expect(await committed()).toEqual({ all: dollars(4) });
    await refunded("a", 6);
    expect(await committed()).toEqual({ all: 0n });
  });

  test("in another currency is recorded and gives nothing back", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    const charge = await charged("a");
    const eur = { currency: "eur", micros: dollars(4) };
    await granting.commit(await refundOf("a", 4, { amount: eur }), { amount: eur });
    expect(await adjustments()).toEqual([{ customer: "a", amount: dollars(4), currency: "eur" }]);
    expect(await granting.row(charge)).toMatchObject({ refunded_micros: 0 });
    expect(await committed()).toEqual({ all: dollars(10) });
  });

  test("of a charge that was settled in another currency than it was held in gives nothing back", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    const id = await granting.grant({ customerId: "a" });
    const eur = (amount: number) => ({ currency: "eur", micros: dollars(amount) });
    await granting.commit(id, { vendorReference: "ch_a", amount: eur(9) });
    await granting.commit(await refundOf("a", 4, { amount: eur(4) }), { amount: eur(4) });
    expect(await granting.row(id)).toMatchObject({ committed_currency: "eur", refunded_micros: 4_000_000 });
    expect(await committed()).toEqual({ all: dollars(10) });
  });

  test.each<[string, Asked]>([
    ["another vendor account", { vendorAccount: "acct_2" }],
    ["a charge that is not here", { refundOf: "ch_elsewhere" }],
    ["no charge", { refundOf: "" }],
  ])("that names %s adjusts nothing", async (_what, asked) => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    await charged("a");
    expect(await refunded("a", 4, asked)).toMatchObject({ errorReason: undefined });
    expect(await adjustments()).toEqual([]);
    expect(await committed()).toEqual({ all: dollars(10) });
  });

  test("that names itself, or a charge that is only bound, adjusts nothing", async () => {
    const attemptId = attempt();
    const open = await granting.grant({ customerId: "open", settlement: "TWO_STEP", attemptId });
    await bind(open, attemptId, "ch_open");
    await refunded("open");
    const own = await refundOf("own");
    expect(await granting.commit(own, { vendorReference: "ch_own" })).toMatchObject({ errorReason: undefined });
    expect(await adjustments()).toEqual([]);
  });

  test("in one batch with its charge and other refunds is judged in their order", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    const charge = await granting.grant({ customerId: "a" });
    const [early, first, second] = [await refundOf("a"), await refundOf("a", 7), await refundOf("a", 7)];
    await commitBatch(database.pool, granting.workspace, [
      commitCommand(early, { amount: usd(4) }),
      commitCommand(charge, { vendorReference: "ch_a" }),
      commitCommand(first, { amount: usd(7) }),
      commitCommand(second, { amount: usd(7) }),
      commitCommand(first, { amount: usd(7) }),
    ]);
    expect(await adjustments()).toEqual([
      { customer: "a", amount: dollars(7), currency: "usd" },
      { customer: "a", amount: dollars(7), currency: "usd" },
    ]);
    expect(await committed()).toEqual({ all: 0n });
  });
});

async function bind(authorization: AuthorizationId, attemptId: string, vendorReference: string): Promise<void> {
  const command = { vaultKeyId: "main", authorization, attemptId, vendorReference, vendorState: "", followForMs: 1 };
  await bindVendorReference(database.pool, granting.workspace, { ...command, traceId: "" });
}

describe("refunds in a race", () => {
  test("of two commits of one refund the later one waits and adjusts nothing", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    await charged("a");
    const refund = await refundOf("a");
    await commitBatch(paused.client, granting.workspace, [commitCommand(refund, { amount: usd(4) })]);
    const late = granting.commit(refund, { amount: usd(4) });
    await paused.expectBlocking(late);
    await paused.commit();
    expect(await late).toMatchObject({ errorReason: undefined });
    expect(await adjustments()).toHaveLength(1);
    expect(await committed()).toEqual({ all: dollars(6) });
  });

  test("two refunds of one charge wait for each other and share what was committed", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    await charged("a");
    const [first, second] = [await refundOf("a", 7), await refundOf("a", 7)];
    await commitBatch(paused.client, granting.workspace, [commitCommand(first, { amount: usd(7) })]);
    const late = granting.commit(second, { amount: usd(7) });
    await paused.expectBlocking(late);
    await paused.commit();
    await late;
    expect(await committed()).toEqual({ all: 0n });
    expect(await adjustments()).toHaveLength(2);
  });

  test("headroom that a refund is giving back is granted after it", async () => {
    await granting.cap("all", usd(10), { refundsRestoreHeadroom: true });
    await charged("a");
    const refund = await refundOf("a");
    await commitBatch(paused.client, granting.workspace, [commitCommand(refund, { amount: usd(4) })]);
    const late = granting.authorize(asks({ customerId: "b", amount: usd(4) }));
    await paused.expectBlocking(late);
    await paused.commit();
    expect(await late).toMatchObject([{ disposition: "GRANTED" }]);
  });

  test("a charge that is committed while its refund waits for a lock is adjusted when the refund is tried again", async () => {
    await granting.cap("all", usd(100), { refundsRestoreHeadroom: true });
    const charge = await granting.grant({ customerId: "a" });
    const refund = await refundOf("a");
    await paused.client.query(
      "select from holdfast.authorizations where workspace_id = $1 and spend_key = $2 for update",
      [granting.workspace, refund.spendKey],
    );
    const late = granting.commit(refund, { amount: usd(4) }).then(
      () => undefined,
      (error: unknown) => error,
    );
    await paused.expectBlocking(late);
    await granting.commit(charge, { vendorReference: "ch_a" });
    await paused.commit();
    const error = await late;
    expect(error).toMatchObject({ code: "40001" });
    expect(batchRemedy(error)).toBe("retry");
    await granting.commit(refund, { amount: usd(4) });
    expect(await adjustments()).toHaveLength(1);
    expect(await committed()).toEqual({ all: dollars(6) });
  });

  test("batches in opposite orders never deadlock, and everything adds up", async () => {
    for (const capId of ["a", "b", "c"]) await granting.cap(capId, usd(100_000), { refundsRestoreHeadroom: true });
    await granting.cap("each", usd(100_000), { perCustomer: true, refundsRestoreHeadroom: true });
    await granting.cap("refunds", usd(100_000), { direction: "REFUND" });
    const names = "k l m n o p q r s t".split(" ");
    // The charges are bound, so that a refund locks them also before they are committed.
    const charges: Authorization[] = [];
    for (const name of names) {
      const attemptId = attempt();
      const charge = await granting.grant({ customerId: name, settlement: "TWO_STEP", attemptId });
      await bind(charge, attemptId, `ch_${name}`);
      charges.push(charge);
    }
    const settle = names.map((name, i) =>
      commitCommand(charges[i] as Authorization, { vendorReference: `ch_${name}` }),
    );
    for (let round = 0; round < 8; round += 1) {
      const refunds = await Promise.all(names.map((name) => refundOf(name, 1)));
      const give = refunds.map((refund) => commitCommand(refund, { amount: usd(1) }));
      const batches = [
        [...settle, ...give],
        [...give, ...settle].toReversed(),
        give,
        give.toReversed(),
        settle.toReversed(),
        ...give.map((one) => [one]),
      ];
      await Promise.all(batches.map((batch) => commitBatch(database.pool, granting.workspace, batch)));
      await granting.expectCountersToAddUp();
    }
    const given = await adjustments();
    expect(given.length).toBeGreaterThanOrEqual(70);
    expect(given.length).toBeLessThanOrEqual(80);
    const [a] = await granting.counters();
    expect(a?.committed).toBe(dollars(100 - given.length));
  });
});

import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { AuthorizationId, IncreaseCommand, IncreaseDecision } from "../../server/domain/spend.ts";
import { acquireBillingLease, releaseBillingLease } from "../../server/store/lease.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { bindVendorReference, commitBatch, reportUnknown } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, attempt, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
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

async function increase(
  id: AuthorizationId,
  amount: number,
  options: Partial<IncreaseCommand> & { readonly on?: pg.Pool | pg.PoolClient } = {},
): Promise<IncreaseDecision> {
  return await granting.raise(id, usd(amount), options);
}

const answer = ({ errorReason, rule }: IncreaseDecision): string => errorReason ?? rule ?? "GRANTED";

async function events(): Promise<unknown[]> {
  const { rows } = await database.pool.query<{ event: unknown }>(
    `select jsonb_build_object('kind', kind, 'disposition', disposition, 'reason', reason, 'detail', detail) as event
     from holdfast.audit_events where workspace_id = $1 and kind like 'spend.increase%' order by xid, n`,
    [granting.workspace],
  );
  return rows.map(({ event }) => event);
}

async function setKey(assignment: string): Promise<void> {
  const text = `update holdfast.vault_keys set ${assignment} where workspace_id = $1 and vault_key_id = 'main'`;
  expect((await database.pool.query(text, [granting.workspace])).rowCount).toBe(1);
}

describe("an increase", () => {
  test("takes the difference from every cap, keeps the amount that repeats are compared with, and is audited", async () => {
    await granting.cap("all", usd(100));
    await granting.cap("each", usd(100), { perCustomer: true });
    const attemptId = attempt();
    const id = await granting.grant({ attemptId });
    expect(await increase(id, 15)).toMatchObject({
      errorReason: undefined,
      rule: undefined,
      authorization: { held: usd(15).micros, amount: usd(10), state: "HELD" },
    });
    expect(await granting.counters()).toMatchObject([{ held: usd(15).micros }, { held: usd(15).micros }]);
    await granting.expectCountersToAddUp();
    const repeat = await granting.authorize(asks({ attemptId }), asks({ attemptId, amount: usd(15) }));
    expect(repeat).toMatchObject([{ disposition: "GRANTED" }, { errorReason: "SPEND_MISMATCH" }]);
    expect(await events()).toEqual([
      {
        kind: "spend.increased",
        disposition: "GRANTED",
        reason: null,
        detail: { previous_held_micros: 10_000_000, asked_micros: 15_000_000 },
      },
    ]);
  });

  test("to what is held, or less, is granted and changes nothing, also for a key that is revoked meanwhile", async () => {
    const id = await granting.grant();
    await increase(id, 15);
    await granting.revoke("main");
    const before = await granting.row(id);
    for (const amount of [15, 10, 1]) expect(answer(await increase(id, amount))).toBe("GRANTED");
    expect(await granting.row(id)).toEqual(before);
    expect(await events()).toHaveLength(1);
  });

  test("is judged in the window of the grant, and drawn from it, also on the next day", async () => {
    await granting.cap("day", usd(15), { window: "DAY" });
    const id = await granting.grant({ settlement: "TWO_STEP" });
    await clock.set("2026-11-16T12:00:00Z");
    await granting.grant({ customerId: "cust_2", amount: usd(14) });
    expect(answer(await increase(id, 15))).toBe("GRANTED");
    expect(await increase(id, 16)).toMatchObject({ rule: "CAP_HEADROOM", cap: { window: "2026-11-15" } });
    expect(await granting.counters()).toMatchObject([
      { window: "2026-11-15", held: usd(15).micros },
      { window: "2026-11-16", held: usd(14).micros },
    ]);
  });

  test("that does not fit is denied with every figure, changes nothing and is audited", async () => {
    await granting.cap("a-wide", usd(100));
    await granting.cap("b-day", usd(14), { window: "DAY" });
    const id = await granting.grant();
    const before = await granting.row(id);
    expect(await increase(id, 15)).toMatchObject({
      errorReason: undefined,
      rule: "CAP_HEADROOM",
      cap: { capId: "b-day", limit: usd(14).micros, committed: 0n, held: usd(10).micros, window: "2026-11-15" },
      authorization: { held: usd(10).micros },
    });
    expect(await granting.row(id)).toEqual(before);
    expect((await granting.counters()).map(({ held }) => held)).toEqual([usd(10).micros, usd(10).micros]);
    expect(await events()).toMatchObject([
      {
        kind: "spend.increase_denied",
        disposition: "DENIED",
        reason: "CAP_HEADROOM",
        detail: { cap: "b-day", window: "2026-11-15", limit_micros: 14_000_000, held_micros: 10_000_000 },
      },
    ]);
    expect(answer(await increase(id, 14))).toBe("GRANTED");
  });

  test.each([
    ["VAULT_KEY_REVOKED", () => granting.revoke("main")],
    ["VAULT_KEY_EXPIRED", () => setKey("expire_time = '2000-01-01'")],
    ["VENDOR", () => setKey("vendor = 'twilio'")],
    ["ENDPOINT", () => setKey("allowed_endpoints = '{}'")],
    ["BILLING_PERIOD", () => setKey("billing_periods = '{2026-12}'")],
    ["PURPOSE", () => setKey("purposes = '{other}'")],
    ["CUSTOMER", () => setKey("customers = '{other}'")],
    ["CURRENCY", () => setKey("max_per_spend_currency = 'eur', max_per_spend_micros = 100000000")],
    ["MAX_PER_SPEND", () => setKey("max_per_spend_currency = 'usd', max_per_spend_micros = 10999999")],
    ["MAX_PER_SPEND", () => granting.changeCap("all", { maxPerSpend: usd("10.999999").micros })],
    ["CAP_HEADROOM", () => granting.changeCap("all", { limit: usd("10.999999").micros })],
  ] as const)("is denied by %s as it is now", async (rule, change) => {
    await granting.cap("all", usd(100));
    const id = await granting.grant();
    await change();
    expect(answer(await increase(id, 11))).toBe(rule);
    expect(await granting.counters()).toMatchObject([{ held: usd(10).micros }]);
  });

  test("does not draw on a cap that was created after the grant", async () => {
    const id = await granting.grant();
    await granting.cap("late", usd(0));
    expect(answer(await increase(id, 11))).toBe("GRANTED");
    expect(await granting.counters()).toEqual([]);
  });

  test("is refused for another currency, another key and what does not exist", async () => {
    await granting.vaultKey("other");
    const id = await granting.grant();
    const eur = { currency: "eur", micros: usd(15).micros };
    expect(answer(await increase(id, 15, { amount: eur }))).toBe("SPEND_MISMATCH");
    expect(await increase(id, 15, { vaultKeyId: "other" })).toMatchObject({
      errorReason: "OTHER_VAULT_KEY",
      authorization: undefined,
    });
    expect(answer(await increase({ ...id, generation: 2 }, 15))).toBe("NOT_FOUND");
  });

  test("of one in doubt is granted, and leaves it in doubt", async () => {
    const attemptId = attempt();
    const id = await granting.grant({ attemptId });
    const command = { vaultKeyId: "main", authorization: id, attemptId, reason: "", traceId: "" };
    await reportUnknown(database.pool, granting.workspace, command);
    expect(await increase(id, 15)).toMatchObject({ rule: undefined, authorization: { state: "IN_DOUBT" } });
  });

  test("is what an over-commit is judged against, and all of it is settled", async () => {
    await granting.cap("all", usd(100));
    const id = await granting.grant();
    await increase(id, 15);
    expect(await granting.commit(id, { amount: usd(15) })).toMatchObject({ overCommitted: false });
    expect(await granting.commit(id, { amount: usd(15) })).toMatchObject({ overCommitted: false });
    expect(await granting.counters()).toMatchObject([{ held: 0n, committed: usd(15).micros }]);
    expect(answer(await increase(id, 16))).toBe("ALREADY_COMMITTED");
    const above = await granting.grant({ customerId: "cust_2" });
    await increase(above, 15);
    expect(await granting.commit(above, { amount: usd("15.01") })).toMatchObject({ overCommitted: true });
    expect(await granting.commit(above, { amount: usd("15.01") })).toMatchObject({ overCommitted: true });
  });

  test("is given back as a whole by a void", async () => {
    await granting.cap("all", usd(15));
    const id = await granting.grant();
    await increase(id, 15);
    await granting.refuse(id);
    expect(await granting.counters()).toMatchObject([{ held: 0n, committed: 0n }]);
    expect(answer(await increase(id, 16))).toBe("ALREADY_VOIDED");
  });

  test("where a counter is missing is denied", async () => {
    await granting.cap("all", usd(100));
    const id = await granting.grant();
    await database.pool.query("delete from holdfast.counters where workspace_id = $1", [granting.workspace]);
    expect(await increase(id, 11)).toMatchObject({ rule: "CAP_HEADROOM", cap: { capId: "all" } });
  });
});

describe("an increase in a race", () => {
  test("with another one for the last headroom: one gets it", async () => {
    await granting.cap("all", usd(25));
    const first = await granting.grant({ customerId: "a" });
    const second = await granting.grant({ customerId: "b" });
    expect(answer(await increase(first, 15, { on: paused.client }))).toBe("GRANTED");
    const late = increase(second, 15);
    await paused.expectBlocking(late);
    await paused.commit();
    expect(await late).toMatchObject({ rule: "CAP_HEADROOM", cap: { held: usd(25).micros } });
    await granting.expectCountersToAddUp();
  });

  test("with a grant of the last headroom: one gets it", async () => {
    await granting.cap("all", usd(15));
    const id = await granting.grant();
    await authorizeBatch(paused.client, granting.workspace, [asks({ customerId: "b", amount: usd(5) })]);
    const late = increase(id, 15);
    await paused.expectBlocking(late);
    await paused.commit();
    expect(answer(await late)).toBe("CAP_HEADROOM");
  });

  test("a revoke returns only after the increase has ended", async () => {
    const id = await granting.grant();
    await increase(id, 15, { on: paused.client });
    const revoked = granting.revoke("main");
    await paused.expectBlocking(revoked);
    await paused.commit();
    await revoked;
    expect(answer(await increase(id, 16))).toBe("VAULT_KEY_REVOKED");
  });

  test("with an unfinished revoke: it waits and is denied", async () => {
    const id = await granting.grant();
    await paused.client.query(
      "update holdfast.workspaces set policy_version = policy_version + 1 where workspace_id = $1",
      [granting.workspace],
    );
    await paused.client.query("update holdfast.vault_keys set state = 'REVOKED' where workspace_id = $1", [
      granting.workspace,
    ]);
    const late = increase(id, 15);
    await paused.expectBlocking(late);
    await paused.commit();
    expect(answer(await late)).toBe("VAULT_KEY_REVOKED");
  });

  test("does not overtake a change of policy that waits", async () => {
    const id = await granting.grant();
    await authorizeBatch(paused.client, granting.workspace, [asks({ customerId: "b" })]);
    const revoked = granting.revoke("main");
    await paused.expectBlocking(revoked);
    let ended = false;
    const late = increase(id, 15).finally(() => (ended = true));
    await untilWaiting(2);
    expect(ended).toBe(false);
    await paused.commit();
    await revoked;
    expect(answer(await late)).toBe("VAULT_KEY_REVOKED");
  });

  test("with a commit: the later of the two sees the other", async () => {
    await granting.cap("all", usd(15));
    const committed = await granting.grant({ customerId: "a", amount: usd(5) });
    await commitBatch(paused.client, granting.workspace, [commitCommand(committed, { amount: usd(5) })]);
    const lateIncrease = increase(committed, 6);
    await paused.expectBlocking(lateIncrease);
    await paused.commit();
    expect(answer(await lateIncrease)).toBe("ALREADY_COMMITTED");

    const increased = await granting.grant({ customerId: "b", amount: usd(5) });
    await increase(increased, 10, { on: paused.client });
    const lateCommit = granting.commit(increased, { amount: usd(10) });
    await paused.expectBlocking(lateCommit);
    await paused.commit();
    expect(await lateCommit).toMatchObject({ errorReason: undefined, overCommitted: false });
    expect(await granting.counters()).toMatchObject([{ held: 0n, committed: usd(15).micros }]);
    await granting.expectCountersToAddUp();
  });

  test("with a void: what is given back is what is held", async () => {
    await granting.cap("all", usd(15));
    const id = await granting.grant();
    await increase(id, 15, { on: paused.client });
    const late = granting.refuse(id);
    await paused.expectBlocking(late);
    await paused.commit();
    expect(await late).toMatchObject({ authorization: { state: "VOIDED" } });
    expect(await granting.counters()).toMatchObject([{ held: 0n }]);
  });

  test("never exceeds a cap, however many ask at once", async () => {
    await granting.cap("all", usd(100));
    await granting.cap("each", usd(13), { perCustomer: true });
    const ids = await Promise.all([...Array(9).keys()].map((n) => granting.grant({ customerId: `c${n}` })));
    const raised = await Promise.all(ids.flatMap((id) => [increase(id, 12), increase(id, 13), increase(id, 14)]));
    expect(raised.filter((one) => one.rule === "CAP_HEADROOM").length).toBeGreaterThan(9);
    const [all] = await granting.counters();
    expect(all?.held).toBeLessThanOrEqual(usd(100).micros);
    expect(all?.held).toBeGreaterThan(usd(98).micros);
    await granting.expectCountersToAddUp();
  });
});

async function untilWaiting(count: number): Promise<void> {
  for (;;) {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and a.wait_event_type = 'Lock'",
    );
    if (rowCount === count) return;
  }
}

describe("an increase by somebody who has lost the spend", () => {
  const bind = async (id: AuthorizationId, attemptId: string) => {
    const bound = { vendorReference: "pi_1", vendorState: "", followForMs: 1000, traceId: "" };
    const command = { vaultKeyId: "main", authorization: id, attemptId, ...bound };
    expect((await bindVendorReference(database.pool, granting.workspace, command)).errorReason).toBeUndefined();
  };

  test("is refused to an attempt that was superseded, and changes nothing", async () => {
    await granting.cap("all", usd(100));
    const [stale, holding] = [attempt(), attempt()];
    const id = await granting.grant({ settlement: "TWO_STEP", attemptId: stale });
    await bind(id, stale);
    await clock.advance(600_000);
    await granting.grant({ settlement: "TWO_STEP", attemptId: holding });
    const before = await granting.row(id);
    for (const amount of [5, 15]) {
      expect(answer(await increase(id, amount, { attemptId: stale }))).toBe("ATTEMPT_SUPERSEDED");
    }
    expect(await granting.row(id)).toEqual(before);
    expect(await granting.counters()).toMatchObject([{ held: usd(10).micros }]);
    expect(answer(await increase(id, 15, { attemptId: holding }))).toBe("GRANTED");
  });

  test("takes no attempt of who changes the bound object, and one where nothing is bound", async () => {
    const attemptId = attempt();
    const id = await granting.grant({ settlement: "TWO_STEP", attemptId });
    expect(answer(await increase(id, 15, { attemptId: "" }))).toBe("ATTEMPT_SUPERSEDED");
    await bind(id, attemptId);
    expect(answer(await increase(id, 15, { attemptId: "" }))).toBe("GRANTED");
  });

  test("is denied to the holder of a billing lease that is over, and granted to the present one", async () => {
    const name = { lease: "nightly", billingPeriod: "2026-11" };
    const asked = { vaultKeyId: "main", ...name, ttlMs: 60_000, traceId: "" };
    const acquire = async (holderId: string) => {
      const { lease } = await acquireBillingLease(database.pool, granting.workspace, { ...asked, holderId });
      return { ...name, holderId, fencingToken: lease.fencingToken };
    };
    const id = await granting.grant();
    const stale = await acquire("h1");
    expect(answer(await increase(id, 11, { fence: stale }))).toBe("GRANTED");
    await clock.advance(60_000);
    expect(answer(await increase(id, 12, { fence: stale }))).toBe("FENCING_TOKEN");
    const present = await acquire("h2");
    expect(answer(await increase(id, 12, { fence: stale }))).toBe("FENCING_TOKEN");
    expect(answer(await increase(id, 12, { fence: { ...present, holderId: "h1" } }))).toBe("FENCING_TOKEN");
    // What is held was granted, and is granted again.
    expect(answer(await increase(id, 11, { fence: stale }))).toBe("GRANTED");
    expect(answer(await increase(id, 12, { fence: present }))).toBe("GRANTED");
    await releaseBillingLease(database.pool, granting.workspace, { ...asked, ...present, completed: true });
    expect(answer(await increase(id, 13, { fence: present }))).toBe("FENCING_TOKEN");
    expect((await granting.row(id))["held_micros"]).toBe(Number(usd(12).micros));
  });

  test("holds back a takeover of its lease until it has ended", async () => {
    const name = { lease: "nightly", billingPeriod: "2026-11" };
    const asked = { vaultKeyId: "main", ...name, ttlMs: 60_000, traceId: "" };
    const { lease } = await acquireBillingLease(database.pool, granting.workspace, { ...asked, holderId: "h1" });
    const id = await granting.grant();
    const fence = { ...name, holderId: "h1", fencingToken: lease.fencingToken };
    expect(answer(await increase(id, 15, { on: paused.client, fence }))).toBe("GRANTED");
    await clock.advance(60_000);
    const takeover = acquireBillingLease(database.pool, granting.workspace, { ...asked, holderId: "h2" });
    await paused.expectBlocking(takeover);
    await paused.commit();
    expect(await takeover).toMatchObject({ answer: "ACQUIRED" });
  });
});

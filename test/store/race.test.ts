import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { AuthorizationId, AuthorizeDecision } from "../../server/domain/spend.ts";
import { acquireBillingLease, renewBillingLease } from "../../server/store/lease.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { bindVendorReference, commitBatch, voidSpend } from "../../server/store/spend.ts";
import { announcePolicyChange } from "../../server/store/workspace.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
/** The connection whose transaction is held open between what it read and its COMMIT. */
let paused: pg.PoolClient;
let pausedPid: number;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 40, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());

beforeEach(async () => {
  granting = await openGranting(database.pool);
  paused = await database.pool.connect();
  const { rows } = await paused.query<{ pid: number }>("select pg_backend_pid() as pid");
  pausedPid = rows[0]?.pid ?? 0;
  await paused.query("begin");
});
afterEach(() => paused.release());

/** Watches whether a promise has settled, and fails unless it is blocked by the paused transaction. */
async function expectBlocked(waiting: Promise<unknown>): Promise<void> {
  let settled = false;
  waiting.then(
    () => (settled = true),
    () => (settled = true),
  );
  for (;;) {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and $1::integer = any (pg_blocking_pids(a.pid))",
      [pausedPid],
    );
    if (settled) throw new Error("the other transaction did not wait for the paused one");
    if (rowCount !== 0) return;
  }
}

async function untilWaiting(count: number): Promise<void> {
  for (;;) {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and a.wait_event_type = 'Lock'",
    );
    if (rowCount === count) return;
  }
}

async function authorizePaused(...asked: Asked[]): Promise<AuthorizeDecision[]> {
  return await authorizeBatch(paused, granting.workspace, asked.map(asks));
}

const answers = (decisions: readonly AuthorizeDecision[]): (string | undefined)[] =>
  decisions.map((one) => one.rule ?? one.errorReason ?? one.disposition);

async function lease(holderId: string, ttlMs: number) {
  return await acquireBillingLease(database.pool, granting.workspace, {
    vaultKeyId: "main",
    lease: "nightly",
    billingPeriod: "2026-11",
    holderId,
    ttlMs,
    traceId: "",
  });
}

describe("a change of policy during a grant", () => {
  test("a revoke returns only after the grant has ended, and nothing is granted afterwards", async () => {
    const decisions = await authorizePaused({});
    const revoked = granting.revoke("main");
    await expectBlocked(revoked);
    await paused.query("commit");
    await revoked;
    expect(answers(decisions)).toEqual(["GRANTED"]);
    expect(answers(await granting.authorize(asks({ customerId: "cust_2" }), asks({})))).toEqual([
      "VAULT_KEY_REVOKED",
      "VAULT_KEY_REVOKED",
    ]);
  });

  test("a grant that comes after an unfinished revoke waits for it and is denied", async () => {
    const revoking = granting.changePolicy(
      { principal: { role: "operator", workspace: granting.workspace, id: "t" }, kind: "k", traceId: "", detail: {} },
      async (transaction) => {
        const pid = await transaction.query<{ pid: number }>({ text: "select pg_backend_pid() as pid", values: [] });
        pausedPid = pid.rows[0]?.pid ?? 0;
        const late = granting.authorize(asks());
        await expectBlocked(late);
        await transaction.query({
          text: "update holdfast.vault_keys set state = 'REVOKED' where workspace_id = $1",
          values: [granting.workspace],
        });
        return { late };
      },
    );
    const { late } = await revoking;
    expect(answers(await late)).toEqual(["VAULT_KEY_REVOKED"]);
  });

  test("a cap that is created during a grant counts every later grant", async () => {
    await authorizePaused({});
    const created = granting.cap("late", usd(10));
    await expectBlocked(created);
    await paused.query("commit");
    await created;
    expect(answers(await granting.authorize(asks({ customerId: "cust_2" }), asks({ customerId: "cust_3" })))).toEqual([
      "GRANTED",
      "CAP_HEADROOM",
    ]);
    await granting.expectCountersToAddUp();
  });

  test("a cap that is lowered during a grant denies every later one", async () => {
    await granting.cap("all", usd(100));
    await authorizePaused({});
    const lowered = granting.changeCap("all", { limit: usd(15).micros });
    await expectBlocked(lowered);
    await paused.query("commit");
    await lowered;
    const [decision] = await granting.authorize(asks({ customerId: "cust_2" }));
    expect(decision).toMatchObject({ rule: "CAP_HEADROOM", cap: { limit: usd(15).micros, held: usd(10).micros } });
  });

  // Postgres lets a new share lock pass a waiting exclusive one, so that grants that overlap could hold a revoke
  // back for ever.
  test("a grant that begins while a revoke waits does not overtake it", async () => {
    await authorizePaused({});
    const revoked = granting.revoke("main");
    await expectBlocked(revoked);
    let overtaken = true;
    const late = granting.authorize(asks({ customerId: "cust_2" })).finally(() => {
      overtaken = false;
    });
    await untilWaiting(2);
    expect(overtaken).toBe(true);
    await paused.query("commit");
    await revoked;
    expect(answers(await late)).toEqual(["VAULT_KEY_REVOKED"]);
  });

  test("grants are not held back for long by a change that was announced and never came", async () => {
    await announcePolicyChange(database.pool, granting.workspace);
    const first = authorizeBatch(paused, granting.workspace, [asks()]);
    expect(answers(await first)).toEqual(["GRANTED"]);
    const second = granting.authorize(asks({ customerId: "cust_2" }));
    await expectBlocked(second);
    await paused.query("commit");
    expect(answers(await second)).toEqual(["GRANTED"]);
    await clock.advance(5000);
    await paused.query("begin");
    await authorizePaused({ customerId: "cust_3" });
    expect(answers(await granting.authorize(asks({ customerId: "cust_4" })))).toEqual(["GRANTED"]);
    await paused.query("commit");
  });
});

describe("a billing lease", () => {
  test("a takeover waits for a fenced grant, and the old holder gets nothing afterwards", async () => {
    const { lease: first } = await lease("h1", 60_000);
    const fence = { lease: "nightly", billingPeriod: "2026-11", holderId: "h1", fencingToken: first.fencingToken };
    expect(answers(await authorizePaused({ fence }))).toEqual(["GRANTED"]);
    await clock.advance(60_000);
    const takeover = lease("h2", 60_000);
    await expectBlocked(takeover);
    await paused.query("commit");
    expect(await takeover).toMatchObject({ answer: "ACQUIRED", lease: { fencingToken: first.fencingToken + 1n } });
    expect(answers(await granting.authorize(asks({ customerId: "cust_2", fence })))).toEqual(["FENCING_TOKEN"]);
  });

  test("a renewal does not wait for the fenced grants of its own holder", async () => {
    const { lease: first } = await lease("h1", 60_000);
    const fence = { lease: "nightly", billingPeriod: "2026-11", holderId: "h1", fencingToken: first.fencingToken };
    await authorizePaused({ fence });
    const renewal = await renewBillingLease(database.pool, granting.workspace, {
      vaultKeyId: "main",
      lease: "nightly",
      billingPeriod: "2026-11",
      holderId: "h1",
      fencingToken: first.fencingToken,
      ttlMs: 60_000,
      traceId: "",
    });
    expect(renewal.renewed).toBe(true);
    await paused.query("commit");
  });

  test("a grant with an old token waits for an unfinished takeover and is denied", async () => {
    const { lease: first } = await lease("h1", 60_000);
    await clock.advance(60_000);
    const command = { vaultKeyId: "main", lease: "nightly", billingPeriod: "2026-11", holderId: "h2", traceId: "" };
    const taken = await acquireBillingLease(paused, granting.workspace, { ...command, ttlMs: 60_000 });
    expect(taken).toMatchObject({ answer: "ACQUIRED", lease: { fencingToken: first.fencingToken + 1n } });
    const fence = { lease: "nightly", billingPeriod: "2026-11", holderId: "h1", fencingToken: first.fencingToken };
    const late = granting.authorize(asks({ fence }));
    await expectBlocked(late);
    await paused.query("commit");
    expect(answers(await late)).toEqual(["FENCING_TOKEN"]);
  });
});

describe("two callers with one spend", () => {
  test("the loser of the claim is read again: IN_PROGRESS, whatever caps would say", async () => {
    await granting.cap("one", usd(10));
    expect(answers(await authorizePaused({}))).toEqual(["GRANTED"]);
    const second = granting.authorize(asks());
    await expectBlocked(second);
    await paused.query("commit");
    expect(answers(await second)).toEqual(["IN_PROGRESS"]);
    expect(await granting.counters()).toMatchObject([{ held: usd(10).micros }]);
  });

  test("the loser with another vault key under another cap learns IN_PROGRESS and nothing more", async () => {
    await granting.vaultKey("other");
    await granting.cap("main", usd(10), { scope: { vaultKeyId: "main" } });
    await granting.cap("other", usd(10), { scope: { vaultKeyId: "other" } });
    await authorizePaused({});
    const second = granting.authorize(asks({ vaultKeyId: "other", amount: usd(9) }));
    await expectBlocked(second);
    await paused.query("commit");
    expect(await second).toMatchObject([{ disposition: "IN_PROGRESS", authorization: undefined, differingFields: [] }]);
    await granting.expectCountersToAddUp();
  });

  test("the loser is granted when the winner's transaction is rolled back", async () => {
    await authorizePaused({});
    const second = granting.authorize(asks());
    await expectBlocked(second);
    await paused.query("rollback");
    expect(answers(await second)).toEqual(["GRANTED"]);
  });

  test("the loser is granted when the winner was denied", async () => {
    await granting.cap("one", usd(10), { scope: { vaultKeyId: "main" } });
    await granting.vaultKey("other");
    expect(answers(await authorizePaused({ amount: usd(11) }))).toEqual(["CAP_HEADROOM"]);
    const second = granting.authorize(asks({ vaultKeyId: "other", amount: usd(11) }));
    await expectBlocked(second);
    await paused.query("commit");
    expect(answers(await second)).toEqual(["GRANTED"]);
  });

  test("two that ask for the next generation get one", async () => {
    const first = await granting.grant({});
    await granting.refuse(first);
    const retry = { retryAfterGeneration: 1 };
    expect(await authorizePaused(retry)).toMatchObject([{ disposition: "GRANTED", authorization: { generation: 2 } }]);
    const second = granting.authorize(asks(retry));
    await expectBlocked(second);
    await paused.query("commit");
    expect(answers(await second)).toEqual(["IN_PROGRESS"]);
  });
});

describe("settling races", () => {
  test("of a commit and a void exactly one wins, and the other is told which", async () => {
    for (const winner of ["commit", "void"] as const) {
      const id = await granting.grant({ customerId: winner });
      const voiding = (client: pg.Pool | pg.PoolClient) => granting.refuse(id, client);
      const committing = (client: pg.Pool | pg.PoolClient) =>
        commitBatch(client, granting.workspace, [commitCommand(id)]).then(([result]) => result);
      const [first, second] = winner === "commit" ? [committing, voiding] : [voiding, committing];
      expect(await first(paused)).toMatchObject({ errorReason: undefined });
      const late = second(database.pool);
      await expectBlocked(late);
      await paused.query("commit");
      await paused.query("begin");
      const [state, reason] = winner === "commit" ? ["COMMITTED", "ALREADY_COMMITTED"] : ["VOIDED", "ALREADY_VOIDED"];
      expect(await late).toMatchObject({ errorReason: reason, authorization: { state } });
    }
  });

  test("the first bind wins and the loser is told the winner's reference", async () => {
    const attemptId = attempt();
    const id = await granting.grant({ settlement: "TWO_STEP", attemptId });
    const bind = (client: pg.Pool | pg.PoolClient, vendorReference: string) =>
      bindVendorReference(client, granting.workspace, {
        vaultKeyId: "main",
        authorization: id,
        attemptId,
        vendorReference,
        vendorState: "",
        followForMs: 1000,
        traceId: "",
      });
    await bind(paused, "pi_first");
    const late = bind(database.pool, "pi_second");
    await expectBlocked(late);
    await paused.query("commit");
    expect(await late).toMatchObject({ errorReason: "ALREADY_BOUND", authorization: { vendorReference: "pi_first" } });
  });

  test.each([
    ["bound and stays open", "bind"],
    ["bound and is committed meanwhile", "commit"],
    ["bound and is voided meanwhile", "void"],
  ] as const)("one object belongs to one spend, where it is %s", async (_, then) => {
    const [first, second] = [attempt(), attempt()];
    const asked = (customerId: string, attemptId: string): Asked => ({ customerId, attemptId, settlement: "TWO_STEP" });
    const one = await granting.grant(asked("a", first));
    const two = await granting.grant(asked("b", second));
    const bound = (on: pg.Pool | pg.PoolClient, authorization: AuthorizationId, attemptId: string) =>
      bindVendorReference(on, granting.workspace, {
        vaultKeyId: "main",
        authorization,
        attemptId,
        vendorReference: "in_1",
        vendorState: "",
        followForMs: 3_600_000,
        traceId: "",
      });
    if (then === "bind") await bound(paused, one, first);
    else await bound(database.pool, one, first);
    if (then === "commit") {
      await commitBatch(paused, granting.workspace, [commitCommand(one, { vendorReference: "in_1" })]);
    }
    if (then === "void") {
      await voidSpend(paused, granting.workspace, {
        actor: { kind: "vault_key", id: "main" },
        authorization: one,
        attemptId: first,
        evidence: "TOMBSTONE",
        vendorStatus: 0,
        vendorReplayed: false,
        vendorReference: "in_1",
        reason: "",
        traceId: "",
      });
    }
    const late = bound(database.pool, two, second);
    await expectBlocked(late);
    await paused.query("commit");
    const refused = { errorReason: "REFERENCE_BOUND_ELSEWHERE", authorization: { state: "HELD" } };
    expect(await late).toMatchObject(then === "void" ? { errorReason: undefined } : refused);
    await granting.expectCountersToAddUp();
  });

  test.each(["bind", "commit"] as const)("of a bind and a commit of one object the first wins: %s", async (winner) => {
    const attemptId = attempt();
    const one = await granting.grant({ customerId: "a", settlement: "TWO_STEP", attemptId });
    const two = await granting.grant({ customerId: "b" });
    const binding = (client: pg.Pool | pg.PoolClient) =>
      bindVendorReference(client, granting.workspace, {
        vaultKeyId: "main",
        authorization: one,
        attemptId,
        vendorReference: "in_1",
        vendorState: "",
        followForMs: 1000,
        traceId: "",
      });
    const committing = (client: pg.Pool | pg.PoolClient) =>
      commitBatch(client, granting.workspace, [commitCommand(two, { vendorReference: "in_1" })]).then(([done]) => done);
    const [first, second] = winner === "bind" ? [binding, committing] : [committing, binding];
    expect(await first(paused)).toMatchObject({ errorReason: undefined });
    const late = second(database.pool);
    await expectBlocked(late);
    await paused.query("commit");
    expect(await late).toMatchObject({ errorReason: "REFERENCE_BOUND_ELSEWHERE", authorization: { state: "HELD" } });
    await granting.expectCountersToAddUp();
  });

  test("one vendor reference settles one authorization", async () => {
    const first = await granting.grant({ customerId: "a" });
    const second = await granting.grant({ customerId: "b" });
    const vendorReference = "ch_1";
    await commitBatch(paused, granting.workspace, [commitCommand(first, { vendorReference })]);
    const late = granting.commit(second, { vendorReference });
    await expectBlocked(late);
    await paused.query("commit");
    expect(await late).toMatchObject({ errorReason: "REFERENCE_ALREADY_COMMITTED", authorization: { state: "HELD" } });
  });

  test("an authorization that waits for a commit sees it", async () => {
    const id = await granting.grant({});
    await commitBatch(paused, granting.workspace, [commitCommand(id)]);
    const late = granting.authorize(asks());
    await expectBlocked(late);
    await paused.query("commit");
    expect(answers(await late)).toEqual(["ALREADY_COMMITTED"]);
  });

  test("headroom that a void is giving back is granted after it, not lost", async () => {
    await granting.cap("one", usd(10));
    const attemptId = attempt();
    const id = await granting.grant({ attemptId });
    await voidSpend(paused, granting.workspace, {
      actor: { kind: "vault_key", id: "main" },
      authorization: id,
      attemptId,
      evidence: "NEVER_SENT",
      vendorStatus: 0,
      vendorReplayed: false,
      vendorReference: "",
      reason: "",
      traceId: "",
    });
    const late = granting.authorize(asks({ customerId: "cust_2" }));
    await expectBlocked(late);
    await paused.query("commit");
    expect(answers(await late)).toEqual(["GRANTED"]);
    await granting.expectCountersToAddUp();
  });
});

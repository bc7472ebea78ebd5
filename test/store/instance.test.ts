import { randomBytes } from "node:crypto";
import pg from "pg";
import { afterAll, beforeEach, describe, expect, test } from "vitest";
import { requiresRecovery } from "../../server/store/database-errors.ts";
import { createInstanceWatch, type InstanceProblem, recover } from "../../server/store/instance.ts";
import { acquireBillingLease, releaseBillingLease, renewBillingLease } from "../../server/store/lease.ts";
import { createPool } from "../../server/store/postgres.ts";
import { bindVendorReference, reportUnknown, sweepExpired, voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

const hour = 3_600_000;
let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
const closers: (() => Promise<void>)[] = [];
afterAll(async () => {
  for (const close of closers.toReversed()) await close();
});
beforeEach(async () => {
  database = await createTestDatabase();
  const opened = database;
  closers.push(() => opened.close());
  clock = await replaceClock(database.pool);
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  await granting.cap("everything", usd(1000));
});

const promoted = () => database.pool.query("update holdfast.instance set timeline = timeline + 1");
const run = (force = false) => recover(database.connection, { force });

async function refusal(work: Promise<unknown>): Promise<boolean> {
  return await work.then(
    () => false,
    (error: unknown) => requiresRecovery(error),
  );
}

function lease(holderId: string, name = "november") {
  return { lease: name, billingPeriod: "2026-11", holderId, vaultKeyId: "main", traceId: "" };
}

describe("a database that is not the one that was granted from before", () => {
  test("grants, raises, leases and binds nothing, and goes on to settle and to read", async () => {
    const attemptId = attempt();
    const [bound, held, doubtful] = await Promise.all(
      ["bound", "held", "doubtful"].map((customerId) =>
        granting.grant({ customerId, settlement: "TWO_STEP", attemptId }),
      ),
    );
    if (bound === undefined || held === undefined || doubtful === undefined) throw new Error("no grant");
    const { workspace } = granting;
    const { lease: running } = await acquireBillingLease(database.pool, workspace, { ...lease("h1"), ttlMs: hour });
    await promoted();
    const { pool } = database;
    const own = { vaultKeyId: "main", attemptId, traceId: "" };
    const refused: Record<string, () => Promise<unknown>> = {
      grant: () => granting.authorize(asks({ customerId: "new" })),
      "same attempt": () => granting.authorize(asks({ customerId: "held", settlement: "TWO_STEP", attemptId })),
      "in a batch": () => granting.authorize(asks({ customerId: "a" }), asks({ customerId: "b" })),
      increase: () => granting.raise(held, usd(20)),
      acquire: () => acquireBillingLease(pool, workspace, { ...lease("h2", "december"), ttlMs: hour }),
      renew: () =>
        renewBillingLease(pool, workspace, {
          ...lease("h1"),
          fencingToken: running.fencingToken,
          ttlMs: hour,
        }),
      bind: () =>
        bindVendorReference(pool, workspace, {
          ...own,
          authorization: held,
          vendorReference: "pi_1",
          vendorState: "",
          followForMs: hour,
        }),
    };
    for (const [what, work] of Object.entries(refused)) expect(await refusal(work()), what).toBe(true);
    expect(await granting.row(held)).toMatchObject({ state: "HELD", vendor_reference: null });

    expect(await granting.commit(bound)).toMatchObject({ errorReason: undefined });
    expect(await reportUnknown(pool, workspace, { ...own, authorization: doubtful, reason: "timeout" })).toMatchObject({
      errorReason: undefined,
    });
    expect(
      await releaseBillingLease(pool, workspace, {
        ...lease("h1"),
        fencingToken: running.fencingToken,
        completed: false,
      }),
    ).toMatchObject({ released: true });
    await granting.expectCountersToAddUp();
  });

  test.each<[InstanceProblem, string]>([
    ["MISSING", "delete from holdfast.instance"],
    ["TIMELINE", "update holdfast.instance set timeline = timeline + 1"],
    ["OTHER_CLUSTER", "update holdfast.instance set system_identifier = system_identifier + 1"],
    ["OTHER_DATABASE", "update holdfast.instance set database_oid = database_oid + 1"],
    ["LOG_WENT_BACK", "update holdfast.instance set suspicion = 'LOG_WENT_BACK'"],
  ])("%s is found at the start, and grants go on after the recovery", async (problem, how) => {
    await granting.grant({ customerId: "before" });
    await database.pool.query(how);
    const told: unknown[] = [];
    const watch = createInstanceWatch((found) => told.push(found));
    await watch.start(database.pool);
    expect(told).toEqual([problem]);
    expect(await refusal(granting.authorize(asks({ customerId: "new" })))).toBe(true);
    expect(await run()).toMatchObject({ problem, recovered: true, held: 1n });
    await granting.grant({ customerId: "new" });
    await watch.look(database.pool);
    expect(told).toEqual([problem, undefined]);
  });

  test("a missing row is written at the first start, and never after something was granted", async () => {
    await database.pool.query("delete from holdfast.instance");
    const told: unknown[] = [];
    await createInstanceWatch((problem) => told.push(problem)).start(database.pool);
    expect(told).toEqual([]);
    await granting.grant();
    await database.pool.query("delete from holdfast.instance");
    await createInstanceWatch((problem) => told.push(problem)).start(database.pool);
    expect(told).toEqual(["MISSING"]);
  });

  test("a copy made by Postgres itself is another database", async () => {
    await granting.grant({ customerId: "before" });
    await database.pool.end();
    const name = `test_${randomBytes(8).toString("hex")}`;
    const admin = new pg.Client({ ...database.connection, database: "postgres" });
    await admin.connect();
    try {
      await admin.query(`create database ${name} template ${database.connection.database}`);
      const copy = createPool({ connection: { ...database.connection, database: name } });
      const { rows } = await copy.query("select holdfast.instance_problem() as problem");
      expect(rows).toEqual([{ problem: "OTHER_DATABASE" }]);
      await copy.end();
      await admin.query(`drop database ${name} with (force)`);
    } finally {
      await admin.end();
    }
    database = { ...database, close: () => Promise.resolve() };
    closers[closers.length - 1] = () => Promise.resolve();
  });

  test("another database of Holdfast than at the start gets no connection", async () => {
    const other = await createTestDatabase();
    closers.push(() => other.close());
    const watch = createInstanceWatch(() => {});
    await watch.start(database.pool);
    await expect(watch.look(other.pool)).rejects.toMatchObject({ exitCode: 78 });
  });

  test("log that went back on one timeline is noticed by a server that ran before", async () => {
    const told: unknown[] = [];
    const watch = createInstanceWatch((problem) => told.push(problem));
    await watch.start(database.pool);
    const later = { query: () => Promise.resolve({ rows: [{ ...(rows[0] as object), flushed: 1n }] }) };
    const { rows } = await database.pool.query(
      "select instance_id, recovery_count, null::text as problem, holdfast.current_timeline() as timeline from holdfast.instance",
    );
    await watch.look(later as never);
    expect(told).toEqual(["LOG_WENT_BACK"]);
  });

  test("a role that may not ask which cluster it is gets no server", async () => {
    const role = `role_${randomBytes(6).toString("hex")}`;
    const { pool, connection } = database;
    await pool.query("revoke execute on function pg_control_system() from public");
    await pool.query(`create role ${role} login`);
    await pool.query(`grant usage on schema holdfast to ${role}`);
    await pool.query(`grant all on all tables in schema holdfast to ${role}`);
    const plain = createPool({ connection: { ...connection, user: role } });
    await expect(createInstanceWatch(() => {}).start(plain)).rejects.toMatchObject({
      exitCode: 78,
      message: expect.stringContaining("pg_control_system"),
    });
    await plain.end();
    await pool.query(`drop owned by ${role}`);
    await pool.query(`drop role ${role}`);
  });
});

describe("recover", () => {
  test("does nothing where nothing is wrong, and repeats nothing", async () => {
    const id = await granting.grant();
    expect(await run()).toMatchObject({ problem: undefined, recovered: false });
    expect(await granting.row(id)).toMatchObject({ state: "HELD" });
    expect(await run(true)).toMatchObject({ problem: undefined, recovered: true, held: 1n, inDoubt: 1n });
    const first = await granting.row(id);
    expect(await run(true)).toMatchObject({ recovered: true, held: 0n, open: 1n, inDoubt: 0n });
    expect(await granting.row(id)).toEqual(first);
    expect(await run()).toMatchObject({ recovered: false });
  });

  test("puts everything held into doubt, with its headroom and one event each", async () => {
    const attemptId = attempt();
    const plain = await granting.grant({ customerId: "plain" });
    const followed = await granting.grant({ customerId: "followed", settlement: "TWO_STEP", attemptId });
    await bindVendorReference(database.pool, granting.workspace, {
      vaultKeyId: "main",
      attemptId,
      traceId: "",
      authorization: followed,
      vendorReference: "pi_1",
      vendorState: "requires_action",
      followForMs: 24 * hour,
    });
    const committed = await granting.grant({ customerId: "committed" });
    await granting.commit(committed);
    const before = await granting.counters();
    await promoted();
    const report = await run();
    expect(report).toMatchObject({ problem: "TIMELINE", held: 2n, inDoubt: 2n });
    expect(report.newestGrantTime).toBe("2026-11-15T12:00:00.000000Z");
    expect(await granting.row(plain)).toMatchObject({ state: "IN_DOUBT", told_may_have_been_sent: true });
    // What the vendor was seen to do was seen before the loss; its object says what it has done since.
    expect(await granting.row(followed)).toMatchObject({
      state: "IN_DOUBT",
      vendor_state: "",
      vendor_reference: "pi_1",
      settlement: "TWO_STEP",
    });
    expect(await granting.row(committed)).toMatchObject({ state: "COMMITTED" });
    expect(await granting.counters()).toEqual(before);
    await granting.expectCountersToAddUp();
    const { rows } = await database.pool.query(
      `select kind, customer_id, reason from holdfast.audit_events where actor_id = 'recover' order by n`,
    );
    expect(rows).toEqual([
      { kind: "spend.in_doubt", customer_id: expect.any(String), reason: "RECOVERED" },
      { kind: "spend.in_doubt", customer_id: expect.any(String), reason: "RECOVERED" },
      { kind: "instance.recovered", customer_id: null, reason: null },
    ]);
  });

  test("ends every lease, and every later token is above all that can have been handed out", async () => {
    const { pool } = database;
    const { workspace } = granting;
    const { lease: before } = await acquireBillingLease(pool, workspace, { ...lease("h1"), ttlMs: hour });
    await promoted();
    expect(await run()).toMatchObject({ leases: 1n });
    const fence = { lease: "november", billingPeriod: "2026-11", holderId: "h1", fencingToken: before.fencingToken };
    expect(await granting.authorize(asks({ fence }))).toMatchObject([{ disposition: "DENIED", rule: "FENCING_TOKEN" }]);
    const lost = 1_000_000n;
    for (const name of ["november", "one that was lost"]) {
      const next = await acquireBillingLease(pool, workspace, { ...lease("h2", name), ttlMs: hour });
      expect(next).toMatchObject({ answer: "ACQUIRED" });
      expect(next.lease.fencingToken).toBeGreaterThan(before.fencingToken + lost);
      expect(Number.isSafeInteger(Number(next.lease.fencingToken))).toBe(true);
    }
  });

  test.each([
    ["TWO_STEP", {}],
    ["RESEND_SAFE", { resendSafeForMs: 20 * hour }],
    ["SEND_ONCE", {}],
  ] as const)(
    "an unbound %s is not sent again, by nobody and at no time, until it is settled",
    async (settlement, more) => {
      const attemptId = attempt();
      const asked = { settlement, attemptId, bodyFingerprint: "a", ...more };
      const id = await granting.grant(asked);
      await promoted();
      await run();
      const { pool } = database;
      const { workspace } = granting;
      await granting.vaultKey("other");
      for (const hours of [0, 1, 48, 24 * 30]) {
        await clock.advance(hours * hour);
        await sweepExpired(pool, workspace, 100);
        for (const again of [
          asked,
          { ...asked, attemptId: attempt() },
          { ...asked, attemptId: attempt(), bodyFingerprint: "b" },
          { ...asked, attemptId: attempt(), vaultKeyId: "other" },
        ]) {
          expect(await granting.authorize(asks(again))).toMatchObject([
            { disposition: "IN_DOUBT", errorReason: undefined },
          ]);
        }
      }
      // The attempt that was at it cannot go on to confirm, nor say that it has sent nothing.
      const own = { vaultKeyId: "main", attemptId, traceId: "", authorization: id };
      expect(
        await bindVendorReference(pool, workspace, {
          ...own,
          vendorReference: "pi_1",
          vendorState: "",
          followForMs: hour,
        }),
      ).toMatchObject({ errorReason: "STATE_NOT_ALLOWED" });
      const voided = (actor: "vault_key" | "operator", evidence: "NEVER_SENT" | "OPERATOR") =>
        voidSpend(pool, workspace, {
          actor: { kind: actor, id: actor === "operator" ? "root" : "main" },
          authorization: id,
          attemptId,
          evidence,
          vendorStatus: 0,
          vendorReplayed: false,
          vendorReference: "",
          reason: "looked it up",
          traceId: "",
        });
      expect(await voided("vault_key", "NEVER_SENT")).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
      expect(await voided("operator", "OPERATOR")).toMatchObject({ errorReason: undefined });
      const next = { ...asked, attemptId: attempt(), retryAfterGeneration: 1 };
      expect(await granting.grant(next)).toMatchObject({ generation: 2, settlement });
      await granting.expectCountersToAddUp();
    },
  );

  test("what is committed afterwards is answered without a difference", async () => {
    const asked = { settlement: "TWO_STEP" } as const;
    const id = await granting.grant(asked);
    await promoted();
    await run();
    await granting.commit(id);
    expect(await granting.authorize(asks(asked))).toMatchObject([
      { disposition: "ALREADY_COMMITTED", differingFields: [] },
    ]);
    // Other spends are judged as ever.
    expect(await granting.grant({ ...asked, customerId: "cust_2" })).toMatchObject({ settlement: "TWO_STEP" });
  });

  test("a bound two-step is continued by its object", async () => {
    const attemptId = attempt();
    const asked = { settlement: "TWO_STEP", attemptId } as const;
    const id = await granting.grant(asked);
    await bindVendorReference(database.pool, granting.workspace, {
      vaultKeyId: "main",
      attemptId,
      traceId: "",
      authorization: id,
      vendorReference: "pi_1",
      vendorState: "",
      followForMs: hour,
    });
    await promoted();
    await run();
    const [decision] = await granting.authorize(asks({ ...asked, attemptId: attempt() }));
    expect(decision).toMatchObject({
      disposition: "GRANTED",
      mayHaveBeenSent: true,
      authorization: { vendorReference: "pi_1" },
    });
  });

  test("an audit log that is ahead of the cluster's transactions is refused with exit code 86", async () => {
    await granting.grant();
    await database.pool.query("alter table holdfast.audit_events disable trigger audit_events_append_only");
    await database.pool.query("update holdfast.audit_events set xid = '99999999999' where kind = 'spend.granted'");
    await promoted();
    await expect(run()).rejects.toMatchObject({ exitCode: 86 });
    expect(await refusal(granting.authorize(asks({ customerId: "new" })))).toBe(true);
  });

  test("a database that was not migrated is refused with exit code 81", async () => {
    const empty = await createTestDatabase({ migrated: false });
    closers.push(() => empty.close());
    for (const force of [false, true]) {
      await expect(recover(empty.connection, { force })).rejects.toMatchObject({ exitCode: 81 });
    }
  });

  test("two at once: one does it, the other finds nothing to do", async () => {
    await granting.grant();
    await promoted();
    const both = await Promise.all([run(), run()]);
    expect(both.filter(({ recovered }) => recovered)).toHaveLength(1);
  });
});

test("a repeat that waits while what was recovered is voided gets the generation that it asks for", async () => {
  const asked = { settlement: "TWO_STEP" } as const;
  const id = await granting.grant(asked);
  await promoted();
  await run();
  const paused = await database.pool.connect();
  try {
    await paused.query("begin");
    const { rows } = await paused.query<{ pid: number }>("select pg_backend_pid() as pid");
    const voided = await voidSpend(paused, granting.workspace, {
      actor: { kind: "operator", id: "root" },
      authorization: id,
      attemptId: "",
      evidence: "OPERATOR",
      vendorStatus: 0,
      vendorReplayed: false,
      vendorReference: "",
      reason: "looked it up",
      traceId: "",
    });
    expect(voided).toMatchObject({ errorReason: undefined });
    const late = granting.authorize(asks({ ...asked, retryAfterGeneration: 1 }));
    await untilBlockedBy(rows[0]?.pid);
    await paused.query("commit");
    expect(await late).toMatchObject([
      { disposition: "GRANTED", authorization: { generation: 2, settlement: "TWO_STEP" } },
    ]);
  } finally {
    paused.release();
  }
});

async function untilBlockedBy(pid: number | undefined): Promise<void> {
  for (;;) {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and $1::integer = any (pg_blocking_pids(a.pid))",
      [pid],
    );
    if (rowCount !== 0) return;
  }
}

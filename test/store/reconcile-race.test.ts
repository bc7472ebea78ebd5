import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import type { Authorization } from "../../server/domain/spend.ts";
import { closeContradiction } from "../../server/store/contradiction.ts";
import { readLookTime, reportReconciliation } from "../../server/store/reconcile.ts";
import { resolveVoid } from "../../server/store/resolve.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { bindVendorReference, commitBatch, reportUnknown, sweepExpired, voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

type Connection = pg.Pool | pg.PoolClient;

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 20, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(100));
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

const hour = 3_600_000;

/** In doubt, and proven absent but for the void. */
async function absentLongAgo(asked: Asked = {}): Promise<{ one: Authorization; attemptId: string }> {
  const attemptId = attempt();
  const one = await granting.grant({ attemptId, ...asked });
  const call = { vaultKeyId: "main", authorization: one, attemptId, reason: "", traceId: "" };
  await reportUnknown(database.pool, granting.workspace, call);
  await clock.advance(26 * hour);
  await report(database.pool, one, "");
  await clock.advance(hour);
  return { one, attemptId };
}

/** OPEN where an object is named, else ABSENT. */
const report = async (connection: Connection, authorization: Authorization, vendorReference: string) =>
  await reportReconciliation(connection, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    finding: vendorReference === "" ? "ABSENT" : "OPEN",
    vendorReference,
    vendorState: vendorReference === "" ? "" : "processing",
    note: "",
    followForMs: hour,
    traceId: "",
    look: { time: await readLookTime(database.pool), account: "" },
  });

const absent = async (connection: Connection, authorization: Authorization) =>
  await voidSpend(connection, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    attemptId: "",
    evidence: "ABSENT_AFTER_QUARANTINE",
    vendorStatus: 0,
    vendorReplayed: false,
    vendorReference: "",
    reason: "",
    traceId: "",
    look: { time: await readLookTime(database.pool), account: "" },
  });

const commit = (connection: Connection, authorization: Authorization) =>
  commitBatch(connection, granting.workspace, [commitCommand(authorization)]).then(([result]) => result);

const takeOver = (connection: Connection, asked: Asked) =>
  authorizeBatch(connection, granting.workspace, [asks(asked)]).then(([decision]) => decision);

const resolveAway = (connection: Connection, authorization: Authorization) =>
  resolveVoid(connection, granting.workspace, {
    operatorId: "alice",
    authorization,
    vendorReference: "",
    reason: "seen",
    traceId: "",
  });

test("a charge that comes while absence voids is kept as a contradiction", async () => {
  const { one } = await absentLongAgo();
  expect((await absent(paused.client, one)).errorReason).toBeUndefined();
  const late = commit(database.pool, one);
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "ALREADY_VOIDED" });
  expect(await granting.counters()).toMatchObject([{ committed: usd(10).micros, held: 0n }]);
  await granting.expectCountersToAddUp();
});

test("absence that waits for a commit voids nothing", async () => {
  const { one } = await absentLongAgo();
  await commit(paused.client, one);
  const late = absent(database.pool, one);
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "ALREADY_COMMITTED" });
});

test("absence that waits for a takeover voids nothing, for the new attempt may send", async () => {
  const asked = { settlement: "TWO_STEP", holdForMs: 60 * hour } as const;
  const attemptId = attempt();
  const one = await granting.grant({ attemptId, ...asked });
  const call = { vaultKeyId: "main", authorization: one, attemptId, reason: "", traceId: "" };
  await reportUnknown(database.pool, granting.workspace, call);
  await clock.advance(86 * hour);
  await report(database.pool, one, "");
  await clock.advance(hour);
  expect(await takeOver(paused.client, asked)).toMatchObject({ disposition: "GRANTED", mayHaveBeenSent: true });
  const late = absent(database.pool, one);
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT", authorization: { state: "HELD" } });
});

test("an attempt that waits for absence to void learns that it has failed", async () => {
  const { one } = await absentLongAgo();
  await absent(paused.client, one);
  const late = takeOver(database.pool, {});
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ disposition: "ALREADY_FAILED", failedGeneration: 1 });
});

test("of an attempt and a reconciler that bind, the first wins and the other learns its object", async () => {
  for (const winner of ["attempt", "reconciler"] as const) {
    const { one, attemptId } = await absentLongAgo({ customerId: winner });
    const binding = (connection: Connection) =>
      bindVendorReference(connection, granting.workspace, {
        vaultKeyId: "main",
        authorization: one,
        attemptId,
        vendorReference: "pi_attempt",
        vendorState: "processing",
        followForMs: hour,
        traceId: "",
      });
    const reporting = (connection: Connection) => report(connection, one, "pi_reconciler");
    const [first, second] = winner === "attempt" ? [binding, reporting] : [reporting, binding];
    expect((await first(paused.client)).errorReason).toBeUndefined();
    const late = second(database.pool);
    await paused.expectBlocking(late);
    await paused.commit();
    expect(await late).toMatchObject({
      errorReason: "ALREADY_BOUND",
      authorization: { vendorReference: `pi_${winner}` },
    });
  }
});

test("of two replicas that report different objects one is bound", async () => {
  const { one } = await absentLongAgo();
  await report(paused.client, one, "pi_1");
  const late = report(database.pool, one, "pi_2");
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "ALREADY_BOUND", authorization: { vendorReference: "pi_1" } });
});

test("a report that waits for a commit is told of it", async () => {
  const { one } = await absentLongAgo();
  await commit(paused.client, one);
  const late = report(database.pool, one, "pi_1");
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "ALREADY_COMMITTED" });
});

test("an operator's word that waits for a takeover leaves the attempt alone", async () => {
  const asked = { settlement: "RESEND_SAFE", resendSafeForMs: 23 * hour } as const;
  const one = await granting.grant(asked);
  await clock.advance(hour);
  await takeOver(paused.client, asked);
  const late = resolveAway(database.pool, one);
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ errorReason: "STATE_NOT_ALLOWED", holdLeftMs: 600_000 });
});

test("the sweep passes over what an operator is resolving", async () => {
  const one = await granting.grant();
  await clock.advance(hour);
  await resolveAway(paused.client, one);
  expect(await sweepExpired(database.pool, granting.workspace, 100)).toBe(0);
  await paused.commit();
  expect(await granting.row(one)).toMatchObject({ state: "VOIDED", void_evidence: "OPERATOR" });
  await granting.expectCountersToAddUp();
});

test("of two operators who close a contradiction the first one's reason stays", async () => {
  const one = await granting.grant();
  await granting.commit(one, { vendorReference: "ch_1" });
  await granting.commit(one, { vendorReference: "ch_2" });
  const { rows } = await database.pool.query<{ id: string }>(
    "select contradiction_id as id from holdfast.contradictions where workspace_id = $1",
    [granting.workspace],
  );
  const close = (connection: Connection, reason: string) =>
    closeContradiction(connection, granting.workspace, {
      contradictionId: rows[0]?.id ?? "",
      operatorId: "alice",
      reason,
      traceId: "",
    });
  await close(paused.client, "refunded");
  const late = close(database.pool, "forgotten");
  await paused.expectBlocking(late);
  await paused.commit();
  expect(await late).toMatchObject({ closeReason: "refunded" });
});

test("many reconcilers, operators, attempts and commits at once end without a deadlock and add up", async () => {
  const ones: Authorization[] = [];
  for (let n = 0; n < 8; n += 1) ones.push((await absentLongAgo({ customerId: `c${n}` })).one);
  const calls = ones.flatMap((one, n) => [
    absent(database.pool, one),
    resolveAway(database.pool, one),
    report(database.pool, one, `pi_${n}`),
    commitBatch(
      database.pool,
      granting.workspace,
      ones.map((each) => commitCommand(each, { resolution: "seen", actor: { kind: "operator", id: "alice" } })),
    ),
    takeOver(database.pool, { customerId: `c${n}` }),
    sweepExpired(database.pool, granting.workspace, 3),
  ]);
  const ended = await Promise.allSettled(calls);
  expect(ended.filter(({ status }) => status === "rejected")).toEqual([]);
  await granting.expectCountersToAddUp();
});

import type pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Actor, Authorization, AuthorizationId, Finding, Look } from "../../server/domain/spend.ts";
import {
  listUnsettled,
  readLookTime,
  reportReconciliation,
  type UnsettledFilter,
} from "../../server/store/reconcile.ts";
import {
  bindVendorReference,
  reportUnknown,
  type Settled,
  sweepExpired,
  type VoidCommand,
  voidSpend,
} from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 10, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set(start);
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1000));
});

const start = "2026-11-15T12:00:00Z";
const second = 1000;
const minute = 60 * second;
const hour = 60 * minute;

interface Held {
  readonly one: Authorization;
  readonly attemptId: string;
}

async function held(asked: Asked = {}): Promise<Held> {
  const attemptId = attempt();
  return { one: await granting.grant({ attemptId, ...asked }), attemptId };
}

async function doubted(asked: Asked = {}): Promise<Held> {
  const subject = await held(asked);
  await unknown(subject);
  return subject;
}

const unknown = ({ one, attemptId }: Held) =>
  reportUnknown(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization: one,
    attemptId,
    reason: "",
    traceId: "",
  });

const bind = ({ one, attemptId }: Held, vendorReference: string, vendorState: string) =>
  bindVendorReference(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization: one,
    attemptId,
    vendorReference,
    vendorState,
    followForMs: 24 * hour,
    traceId: "",
  });

interface Object {
  readonly vendorReference?: string;
  readonly vendorState?: string;
  readonly actor?: Actor;
  readonly look?: Look;
}

/** One that begins now. */
const look = async (account = ""): Promise<Look> => ({ time: await readLookTime(database.pool), account });

const report = async (
  authorization: AuthorizationId,
  finding: Finding,
  object: Object = {},
  connection: pg.Pool | pg.PoolClient = database.pool,
): Promise<Settled> =>
  reportReconciliation(connection, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    finding,
    vendorReference: "",
    vendorState: "",
    note: "lists read to their end",
    followForMs: 7 * 24 * hour,
    traceId: "",
    look: await look(),
    ...object,
  });

const absent = async (authorization: AuthorizationId, options: Partial<VoidCommand> = {}): Promise<Settled> =>
  voidSpend(database.pool, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    attemptId: "",
    evidence: "ABSENT_AFTER_QUARANTINE",
    vendorStatus: 0,
    vendorReplayed: false,
    vendorReference: "",
    reason: "",
    traceId: "",
    look: await look(),
    ...options,
  });

const sweep = () => sweepExpired(database.pool, granting.workspace, 1000);

async function unsettled(filter: Partial<UnsettledFilter> = {}): Promise<string[]> {
  const rows = await listUnsettled(database.pool, granting.workspace, {
    vaultKeyId: "main",
    includeNotDue: false,
    after: undefined,
    limit: 100,
    ...filter,
  });
  return rows.map(({ spend }) => spend.customerId);
}

const atMinutes = (minutes: number) => BigInt(Date.parse(start) + minutes * minute) * 1000n;

describe("the list of what is not settled", () => {
  test("holds what is in doubt, followed, or has run out, oldest first, and nothing else", async () => {
    await granting.vaultKey("other");
    await doubted({ customerId: "in-doubt" });
    await clock.advance(second);
    await bind(await held({ customerId: "followed" }), "pi_1", "processing");
    await clock.advance(second);
    await held({ customerId: "ran-out", holdForMs: 5000 });
    await held({ customerId: "never-bound", settlement: "TWO_STEP", holdForMs: 5000 });
    await held({ customerId: "running", holdForMs: hour });
    await bind(await held({ customerId: "bound", settlement: "TWO_STEP", holdForMs: hour }), "pi_2", "");
    const others = { vaultKeyId: "other", customerId: "others" };
    await granting.grant({ ...others, holdForMs: 5000 });
    await granting.commit(await granting.grant({ customerId: "committed" }));
    await clock.advance(minute);
    expect(await unsettled()).toEqual(["in-doubt", "followed", "ran-out"]);
    expect(await unsettled({ vaultKeyId: "other" })).toEqual(["others"]);
    await sweep();
    expect(await unsettled()).toEqual(["in-doubt", "followed", "ran-out"]);
  });

  test("shows what only the clock has decided with the time of it, and changes nothing", async () => {
    const { one } = await held({ holdForMs: 5000 });
    await clock.advance(minute);
    const before = await granting.row(one);
    const [listed] = await listUnsettled(database.pool, granting.workspace, {
      vaultKeyId: "main",
      includeNotDue: false,
      after: undefined,
      limit: 1,
    });
    expect(listed).toMatchObject({ state: "HELD", inDoubtTime: atMinutes(0) + 5_000_000n });
    expect(await granting.row(one)).toEqual(before);
  });

  test("leaves out what need not be asked about yet, unless told otherwise", async () => {
    await bind(await held({ customerId: "followed" }), "pi_1", "processing");
    const asked = await doubted({ customerId: "asked" });
    await report(asked.one, "UNREADABLE");
    await doubted({ customerId: "never-asked" });
    expect(await unsettled()).toEqual(["never-asked"]);
    expect((await unsettled({ includeNotDue: true })).toSorted()).toEqual(["asked", "followed", "never-asked"]);
    await clock.advance(minute - 1);
    expect(await unsettled()).toEqual(["never-asked"]);
    await clock.advance(1);
    expect((await unsettled()).toSorted()).toEqual(["asked", "followed", "never-asked"]);
  });

  test("is read page by page without a gap, also while the pages are being settled", async () => {
    const ones: Held[] = [];
    for (let n = 0; n < 5; n += 1) ones.push(await doubted({ customerId: `c${n}` }));
    const seen: string[] = [];
    let after: UnsettledFilter["after"];
    for (;;) {
      const page = await listUnsettled(database.pool, granting.workspace, {
        vaultKeyId: "main",
        includeNotDue: false,
        after,
        limit: 2,
      });
      if (page.length === 0) break;
      seen.push(...page.map(({ spend }) => spend.customerId));
      await granting.commit(page[0] as Authorization);
      after = page.at(-1);
    }
    expect(seen.toSorted()).toEqual(["c0", "c1", "c2", "c3", "c4"]);
  });
});

describe("a report", () => {
  test("is kept with its count, and asks again after 1, 5 and 30 minutes and then hourly", async () => {
    const { one } = await doubted();
    const next: (bigint | undefined)[] = [];
    for (const wait of [0, 1, 4, 25, 60, 90]) {
      await clock.advance(wait * minute);
      next.push((await report(one, "UNREADABLE")).authorization?.reconciliation?.nextTime);
    }
    expect(next).toEqual([1, 5, 30, 90, 150, 240].map(atMinutes));
    const { authorization } = await report(one, "UNCLEAR");
    expect(authorization?.reconciliation).toMatchObject({
      finding: "UNCLEAR",
      lastTime: atMinutes(180),
      count: 7,
      note: "lists read to their end",
      absentSinceTime: undefined,
    });
  });

  test("of an open object binds it and follows it: it is no longer in doubt", async () => {
    const { one } = await doubted();
    const bound = await report(one, "OPEN", { vendorReference: "pi_1", vendorState: "processing" });
    expect(bound.authorization).toMatchObject({
      state: "HELD",
      vendorReference: "pi_1",
      vendorState: "processing",
      inDoubtTime: undefined,
      followUntilTime: atMinutes(7 * 24 * 60),
      reconciliation: { finding: "OPEN", nextTime: atMinutes(1) },
    });
    const [decision] = await granting.authorize(asks());
    expect(decision).toMatchObject({ disposition: "IN_PROGRESS", authorization: { vendorReference: "pi_1" } });
    await clock.advance(minute);
    const again = await report(one, "OPEN", { vendorReference: "pi_1", vendorState: "requires_action" });
    expect(again.authorization).toMatchObject({
      vendorState: "requires_action",
      followUntilTime: atMinutes(7 * 24 * 60),
    });
    const other = await report(one, "OPEN", { vendorReference: "pi_2", vendorState: "processing" });
    expect(other).toMatchObject({ errorReason: "ALREADY_BOUND", authorization: { vendorReference: "pi_1" } });
    await granting.expectCountersToAddUp();
  });

  test("is refused while an attempt is in the middle of its call, and of what is settled", async () => {
    const running = await held({ customerId: "c1" });
    expect(await report(running.one, "ABSENT")).toMatchObject({ errorReason: "STATE_NOT_ALLOWED" });
    await granting.commit(running.one);
    expect(await report(running.one, "ABSENT")).toMatchObject({ errorReason: "ALREADY_COMMITTED" });
    const voided = await held({ customerId: "c2" });
    await granting.refuse(voided.one);
    expect(await report(voided.one, "ABSENT")).toMatchObject({ errorReason: "ALREADY_VOIDED" });
    await granting.vaultKey("other");
    expect(await report(voided.one, "ABSENT", { actor: { kind: "vault_key", id: "other" } })).toEqual({
      errorReason: "OTHER_VAULT_KEY",
      authorization: undefined,
    });
    expect(await report({ ...voided.one, generation: 9 }, "ABSENT")).toMatchObject({ errorReason: "NOT_FOUND" });
  });

  test("about a hold that ran out writes down first that it is in doubt", async () => {
    const { one } = await held();
    await clock.advance(hour);
    const { authorization } = await report(one, "UNREADABLE");
    expect(authorization).toMatchObject({ state: "IN_DOUBT", inDoubtTime: atMinutes(10) });
  });

  test("is one event with what was found", async () => {
    const { one } = await doubted();
    await report(one, "OPEN", { vendorReference: "pi_1", vendorState: "processing" });
    const { rows } = await database.pool.query(
      "select actor_kind, actor_id, detail from holdfast.audit_events where workspace_id = $1 and kind = 'spend.reconciled'",
      [granting.workspace],
    );
    expect(rows).toMatchObject([
      {
        actor_kind: "vault_key",
        actor_id: "main",
        detail: { finding: "OPEN", vendor_reference: "pi_1", bound: true, note: "lists read to their end" },
      },
    ]);
  });
});

describe("absence", () => {
  // The hold ends after 10 minutes: the quarantine is over at 25 h 10 min.
  const quarantine = 25 * hour + 10 * minute;

  test("voids 5 minutes after it was seen, once the quarantine was over", async () => {
    const { one } = await doubted();
    await clock.advance(quarantine);
    const seen = await report(one, "ABSENT");
    expect(seen.authorization?.reconciliation).toMatchObject({
      absentSinceTime: atMinutes(quarantine / minute),
      nextTime: atMinutes(quarantine / minute + 5),
    });
    await clock.advance(5 * minute - 1);
    expect(await absent(one)).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    await clock.advance(1);
    expect(await absent(one)).toMatchObject({ authorization: { voidEvidence: "ABSENT_AFTER_QUARANTINE" } });
    expect(await granting.counters()).toMatchObject([{ held: 0n, committed: 0n }]);
    const [failed] = await granting.authorize(asks());
    expect(failed).toMatchObject({ disposition: "ALREADY_FAILED", failedGeneration: 1 });
    const [next] = await granting.authorize(asks({ retryAfterGeneration: 1 }));
    expect(next).toMatchObject({ disposition: "GRANTED", authorization: { generation: 2 } });
  });

  /** The instant from which on a look counts is that one and not the millisecond before. */
  async function expectToCountAfter(one: Authorization, waitMs: number): Promise<void> {
    await clock.advance(waitMs - 1);
    const early = await report(one, "ABSENT");
    expect(early.authorization?.reconciliation).toMatchObject({ finding: "ABSENT", absentSinceTime: undefined });
    await clock.advance(1);
    await report(one, "ABSENT");
    await clock.advance(5 * minute - 1);
    const before = await granting.row(one);
    expect(await absent(one)).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    expect(await granting.row(one)).toEqual(before);
    await clock.advance(1);
    expect((await absent(one)).errorReason).toBeUndefined();
  }

  test("that was seen before the quarantine was over proves nothing, and the refusal changes nothing", async () => {
    const { one } = await doubted();
    await report(one, "ABSENT");
    await expectToCountAfter(one, quarantine);
  });

  test("waits for the latest hold of any attempt, also of one that was taken over", async () => {
    const asked: Asked = { settlement: "RESEND_SAFE", resendSafeForMs: minute };
    const { one } = await doubted({ ...asked, holdForMs: 3 * hour });
    const attemptId = attempt();
    await granting.authorize(asks({ ...asked, attemptId, holdForMs: minute }));
    await unknown({ one, attemptId });
    await expectToCountAfter(one, 28 * hour);
  });

  test("waits until a request that may be sent again is no longer safe", async () => {
    const { one } = await doubted({ settlement: "RESEND_SAFE", resendSafeForMs: 23 * hour });
    await expectToCountAfter(one, 48 * hour);
  });

  test("is judged by when the look began: who was stopped for days before telling it proves nothing", async () => {
    const { one } = await doubted();
    const stopped = await look();
    await clock.advance(quarantine);
    const alsoStopped = await look();
    // What was on its way arrives and is charged meanwhile.
    await clock.advance(48 * hour);
    await report(one, "ABSENT", { look: stopped });
    expect((await granting.row(one)).absent_since_time).toBeNull();
    for (const told of [stopped, alsoStopped]) {
      expect(await absent(one, { look: told })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    }
    await report(one, "ABSENT", { look: alsoStopped });
    expect(await absent(one, { look: alsoStopped })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    expect(await absent(one, { look: stopped })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    const fresh = await look();
    expect((await absent(one, { look: fresh })).errorReason).toBeUndefined();
  });

  test("at a time that is still to come, or at none, proves nothing", async () => {
    const { one } = await doubted();
    await clock.advance(2 * quarantine);
    const { time } = await look();
    const later = { time: time + 3_600_000_000n, account: "" };
    await report(one, "ABSENT", { look: { ...later, time: time + 1n } });
    expect((await granting.row(one)).absent_since_time).toBeNull();
    await report(one, "ABSENT");
    expect(await absent(one, { look: later })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    await clock.advance(hour);
    const { rows } = await database.pool.query<{ error_reason: string }>(
      `select error_reason from holdfast.void_spend($1, $2, 1, 'vault_key', 'main', '', 'ABSENT_AFTER_QUARANTINE', 0, false,
         '', '', '', null, '')`,
      [granting.workspace, one.spendKey],
    );
    expect(rows).toEqual([{ error_reason: "EVIDENCE_INSUFFICIENT" }]);
  });

  test("of a look that began before something else was found or told counts no more", async () => {
    const { one, attemptId } = await doubted();
    await clock.advance(quarantine);
    const first = await look();
    await clock.advance(10 * minute);
    const second = await look();
    await report(one, "UNCLEAR");
    await report(one, "ABSENT", { look: first });
    expect(await absent(one, { look: second })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    await clock.advance(1);
    const third = await look();
    await clock.advance(10 * minute);
    const fourth = await look();
    // An attempt that says now that it has sent.
    await voidSpend(database.pool, granting.workspace, {
      actor: { kind: "vault_key", id: "main" },
      authorization: one,
      attemptId,
      evidence: "VENDOR_REFUSED",
      vendorStatus: 500,
      vendorReplayed: false,
      vendorReference: "",
      reason: "",
      traceId: "",
    });
    await report(one, "ABSENT", { look: third });
    expect(await absent(one, { look: fourth })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
  });

  test.each(["UNREADABLE", "UNCLEAR", "OPEN"] as const)("is no longer believed after %s", async (finding) => {
    const { one } = await doubted();
    await clock.advance(quarantine);
    await report(one, "ABSENT");
    await clock.advance(5 * minute);
    await report(one, finding);
    expect((await absent(one)).errorReason).toBe("EVIDENCE_INSUFFICIENT");
    await clock.advance(1);
    await report(one, "ABSENT");
    expect((await absent(one)).errorReason).toBe("EVIDENCE_INSUFFICIENT");
    await clock.advance(5 * minute);
    await report(one, "ABSENT");
    expect((await absent(one)).errorReason).toBeUndefined();
  });

  test("that was seen before another attempt is forgotten", async () => {
    const asked: Asked = { settlement: "TWO_STEP", holdForMs: 60 * hour };
    const first = await doubted(asked);
    await clock.advance(85 * hour);
    const seen = await look();
    await report(first.one, "ABSENT");
    const attemptId = attempt();
    await granting.authorize(asks({ ...asked, attemptId }));
    expect(await granting.row(first.one)).toMatchObject({ absent_since_time: null, reconciliation_count: 0 });
    await unknown({ one: first.one, attemptId });
    await report(first.one, "ABSENT", { look: seen });
    await clock.advance(60 * hour);
    expect((await absent(first.one)).errorReason).toBe("EVIDENCE_INSUFFICIENT");
  });

  test("proves nothing of a bound object, nor of what is not in doubt, nor to another key", async () => {
    const bound = await held({ customerId: "c1", settlement: "TWO_STEP" });
    await bind(bound, "pi_1", "");
    await unknown(bound);
    const { one } = await doubted({ customerId: "c2" });
    const running = await held({ customerId: "c3", holdForMs: 24 * hour });
    await clock.advance(quarantine);
    await report(bound.one, "ABSENT");
    await report(one, "ABSENT");
    await clock.advance(5 * minute);
    expect((await absent(bound.one)).errorReason).toBe("EVIDENCE_INSUFFICIENT");
    expect((await absent(running.one)).errorReason).toBe("EVIDENCE_INSUFFICIENT");
    await granting.vaultKey("other");
    expect((await absent(one, { actor: { kind: "vault_key", id: "other" } })).errorReason).toBe("OTHER_VAULT_KEY");
    expect((await absent(one, { actor: { kind: "operator", id: "t" } })).errorReason).toBeUndefined();
    await granting.expectCountersToAddUp();
  });
});

import type pg from "pg";
import type { Authorization, Finding, VoidEvidence } from "../../server/domain/spend.ts";
import { readLookTime, reportReconciliation } from "../../server/store/reconcile.ts";
import { resolveVoid } from "../../server/store/resolve.ts";
import {
  bindVendorReference,
  reportUnknown,
  type Settled,
  sweepExpired,
  type VoidCommand,
  voidSpend,
} from "../../server/store/spend.ts";
import { type Asked, asks, attempt, type Granting, usd } from "../support/granting.ts";

/** One authorization in a state, and what it was asked with. */
export interface Subject {
  readonly granting: Granting;
  readonly pool: pg.Pool;
  readonly asked: Asked & { readonly customerId: string; readonly attemptId: string };
  readonly authorization: Authorization;
}

/** How an authorization gets into a state. `laterMs` is how far the clock moves after `prepare`. */
export interface State {
  readonly asked: Asked;
  readonly prepare?: (subject: Subject) => Promise<unknown>;
  readonly laterMs?: number;
}

const hour = 3_600_000;
const once: Asked = { settlement: "SEND_ONCE" };
const resend: Asked = { settlement: "RESEND_SAFE", resendSafeForMs: hour };
const twoStep: Asked = { settlement: "TWO_STEP" };
const expired = 600_000;
/** A hold that is still running when everything else has run out. */
const long = (asked: Asked): Asked => ({ ...asked, holdForMs: 24 * hour });

export const states = {
  "HELD once": { asked: once },
  "HELD once, told twice": { asked: once, prepare: (s) => s.granting.authorize(asks(s.asked)) },
  "HELD once, expired": { asked: once, laterMs: expired },
  "HELD resend, expired, safe": { asked: resend, laterMs: hour - 1 },
  "HELD resend, expired, no longer safe": { asked: resend, laterMs: hour },
  "HELD once, followed": { asked: once, prepare: (s) => bind(s, "pi_1", "processing"), laterMs: expired },
  "HELD once, no longer followed": { asked: long(once), prepare: (s) => bind(s, "pi_1", "processing"), laterMs: hour },
  "HELD once, continued": { asked: once, prepare: continued, laterMs: expired - 1 },
  "HELD once, continued, expired": { asked: once, prepare: continued, laterMs: expired },
  "HELD resend, no longer safe": { asked: long(resend), laterMs: hour },
  "HELD resend, no longer followed, safe": {
    asked: long({ ...resend, resendSafeForMs: 3 * hour }),
    prepare: (s) => bind(s, "pi_1", "processing"),
    laterMs: hour,
  },
  "HELD two-step": { asked: twoStep },
  "HELD two-step, expired": { asked: twoStep, laterMs: expired },
  "HELD two-step, bound": { asked: twoStep, prepare: (s) => bind(s, "pi_1") },
  "HELD two-step, bound, expired": { asked: twoStep, prepare: (s) => bind(s, "pi_1"), laterMs: expired },
  "HELD two-step, followed": { asked: twoStep, prepare: (s) => bind(s, "pi_1", "requires_action"), laterMs: expired },
  "IN_DOUBT once": { asked: once, prepare: doubt },
  "IN_DOUBT once, swept": { asked: { ...once, holdForMs: 0 }, prepare: sweep },
  "IN_DOUBT once, absent long ago": {
    asked: once,
    prepare: async (s) => (await doubt(s), await report(s, "ABSENT"), await seenAfterQuarantine(s)),
    laterMs: 26 * hour,
  },
  "IN_DOUBT once, bound": { asked: once, prepare: async (s) => (await bind(s, "pi_1", "processing"), await doubt(s)) },
  "IN_DOUBT resend, safe": { asked: resend, prepare: doubt },
  "IN_DOUBT two-step": { asked: twoStep, prepare: doubt },
  "IN_DOUBT two-step, bound": { asked: twoStep, prepare: async (s) => (await bind(s, "pi_1"), await doubt(s)) },
  COMMITTED: { asked: once, prepare: (s) => commit(s, "pi_1") },
  "VOIDED NEVER_SENT": { asked: once, prepare: (s) => voidIt(s, { evidence: "NEVER_SENT" }) },
  "VOIDED NOT_EXECUTED": { asked: once, prepare: (s) => voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 429 }) },
  "VOIDED VENDOR_REFUSED": {
    asked: once,
    prepare: (s) => voidIt(s, { evidence: "VENDOR_REFUSED", vendorStatus: 402 }),
  },
  "VOIDED TOMBSTONE": {
    asked: twoStep,
    prepare: async (s) => (await bind(s, "pi_1"), await voidIt(s, { evidence: "TOMBSTONE", vendorReference: "pi_1" })),
  },
  "VOIDED OPERATOR": {
    asked: once,
    prepare: async (s) => {
      await doubt(s);
      return await byOperator(s);
    },
  },
  "VOIDED NEVER_BOUND": {
    asked: { ...twoStep, holdForMs: 0 },
    prepare: sweep,
  },
} as const satisfies Record<string, State>;

export type Operation = (subject: Subject) => Promise<string>;

export const operations = {
  "authorize, same attempt": (s) => authorize(s, {}),
  "authorize, other attempt": (s) => authorize(s, { attemptId: attempt() }),
  "authorize, other key": (s) => authorize(s, { attemptId: attempt(), vaultKeyId: "other" }),
  "authorize, other amount": (s) => authorize(s, { attemptId: attempt(), amount: usd(11) }),
  "authorize, other body": (s) => authorize(s, { attemptId: attempt(), bodyFingerprint: "b".repeat(64) }),
  "authorize, same attempt, continue pi_1": (s) => authorize(s, { continueVendorReference: reference(s, "pi_1") }),
  "authorize, continue pi_1": (s) =>
    authorize(s, { attemptId: attempt(), continueVendorReference: reference(s, "pi_1") }),
  "authorize, continue pi_2": (s) =>
    authorize(s, { attemptId: attempt(), continueVendorReference: reference(s, "pi_2") }),
  "authorize, continue pi_1, other key": (s) =>
    authorize(s, { vaultKeyId: "other", attemptId: attempt(), continueVendorReference: reference(s, "pi_1") }),
  "authorize, retry after 1": (s) => authorize(s, { attemptId: attempt(), retryAfterGeneration: 1 }),
  "commit pi_1": (s) => commit(s, "pi_1"),
  "commit pi_2": (s) => commit(s, "pi_2"),
  "commit pi_1, other amount": (s) => commit(s, "pi_1", 12),
  "void, never sent": (s) => voidIt(s, { evidence: "NEVER_SENT" }),
  "void, never sent, other attempt": (s) => voidIt(s, { evidence: "NEVER_SENT", attemptId: attempt() }),
  "void, refused 402": (s) => voidIt(s, { evidence: "VENDOR_REFUSED", vendorStatus: 402 }),
  "void, refused 400": (s) => voidIt(s, { evidence: "VENDOR_REFUSED", vendorStatus: 400 }),
  "void, refused 400 replayed": (s) =>
    voidIt(s, { evidence: "VENDOR_REFUSED", vendorStatus: 400, vendorReplayed: true }),
  "void, not executed 401": (s) => voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 401 }),
  "void, not executed 403": (s) => voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 403 }),
  "void, not executed 429": (s) => voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 429 }),
  "void, not executed 429 replayed": (s) =>
    voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 429, vendorReplayed: true }),
  "void, not executed 400": (s) => voidIt(s, { evidence: "NOT_EXECUTED", vendorStatus: 400 }),
  "void, tombstone pi_1": (s) => voidIt(s, { evidence: "TOMBSTONE", vendorReference: "pi_1" }),
  "void, tombstone pi_1, other attempt": (s) =>
    voidIt(s, { evidence: "TOMBSTONE", vendorReference: "pi_1", attemptId: attempt() }),
  "void, tombstone pi_2, other attempt": (s) =>
    voidIt(s, { evidence: "TOMBSTONE", vendorReference: "pi_2", attemptId: attempt() }),
  "void, tombstone pi_2": (s) => voidIt(s, { evidence: "TOMBSTONE", vendorReference: "pi_2" }),
  "void, absent": (s) => voidIt(s, { evidence: "ABSENT_AFTER_QUARANTINE" }),
  "void, never bound": (s) => voidIt(s, { evidence: "NEVER_BOUND" }),
  "void, operator's reason by a key": (s) => voidIt(s, { evidence: "OPERATOR", reason: "seen" }),
  "void, operator": byOperator,
  "report unknown": doubt,
  "bind pi_1": (s) => bind(s, "pi_1"),
  "bind pi_2": (s) => bind(s, "pi_2"),
  "bind pi_1, processing": (s) => bind(s, "pi_1", "processing"),
  "increase to 12": (s) => increase(s, 12),
  "report, open pi_1": (s) => report(s, "OPEN", "pi_1"),
  "report, open pi_2": (s) => report(s, "OPEN", "pi_2"),
  "report, absent": (s) => report(s, "ABSENT"),
  "report, unclear": (s) => report(s, "UNCLEAR"),
  "resolve, committed pi_1": (s) => resolveCommit(s, "pi_1"),
  "resolve, committed pi_2": (s) => resolveCommit(s, "pi_2"),
  "resolve, voided": (s) => resolveVoided(s),
  "resolve, voided pi_1": (s) => resolveVoided(s, "pi_1"),
} as const satisfies Record<string, Operation>;

// References are unique per workspace, and every subject has one of its own.
function reference({ asked }: Pick<Subject, "asked">, name: string): string {
  return `${name}_${asked.customerId}`;
}

/** The holder has read its followed object and is in the middle of a call about it. */
async function continued(subject: Subject): Promise<void> {
  await bind(subject, "pi_1", "processing");
  await authorize(subject, {
    holdForMs: expired,
    ...subject.asked,
    continueVendorReference: reference(subject, "pi_1"),
  });
}

async function sweep({ pool, granting }: Subject): Promise<void> {
  await sweepExpired(pool, granting.workspace, 1000);
}

async function authorize({ granting, asked }: Subject, difference: Asked): Promise<string> {
  const [decision] = await granting.authorize(asks({ ...asked, holdForMs: expired, ...difference }));
  const { disposition, errorReason, mayHaveBeenSent, authorization } = decision ?? {};
  const seen = authorization === undefined ? "hidden" : `g${authorization.generation}`;
  return `${disposition ?? errorReason} ${seen}${mayHaveBeenSent === true ? " maybe-sent" : ""}`;
}

async function commit(subject: Subject, name: string, amount = 10): Promise<string> {
  const { granting, authorization } = subject;
  const vendorReference = reference(subject, name);
  const result = await granting.commit(authorization, { vendorReference, amount: usd(amount) });
  return outcome(result);
}

async function bind(subject: Subject, name: string, vendorState = "") {
  const { pool, granting, asked, authorization } = subject;
  return outcome(
    await bindVendorReference(pool, granting.workspace, {
      vaultKeyId: "main",
      authorization,
      attemptId: asked.attemptId,
      vendorReference: reference(subject, name),
      vendorState,
      followForMs: hour,
      traceId: "",
    }),
  );
}

async function increase({ granting, authorization }: Subject, amount: number): Promise<string> {
  return outcome(await granting.raise(authorization, usd(amount)));
}

async function report(subject: Subject, finding: Finding, name?: string): Promise<string> {
  const { pool, granting, authorization } = subject;
  return outcome(
    await reportReconciliation(pool, granting.workspace, {
      actor: { kind: "vault_key", id: "main" },
      authorization,
      finding,
      vendorReference: name === undefined ? "" : reference(subject, name),
      vendorState: name === undefined ? "" : "processing",
      note: "",
      followForMs: hour,
      traceId: "",
      look: { time: await readLookTime(pool), account: "" },
    }),
  );
}

/** As if it had been reported when the quarantine was over: all that is prepared is prepared at one instant. */
async function seenAfterQuarantine({ pool, granting, authorization }: Subject): Promise<void> {
  await pool.query(
    `update holdfast.authorizations t set absent_since_time = holdfast.quarantine_end_time(t)
     where t.workspace_id = $1 and t.spend_key = $2`,
    [granting.workspace, authorization.spendKey],
  );
}

async function resolveCommit(subject: Subject, name: string): Promise<string> {
  const { granting, authorization } = subject;
  return outcome(
    await granting.commit(authorization, {
      vendorReference: reference(subject, name),
      actor: { kind: "operator", id: "t" },
      resolution: "seen in the dashboard",
    }),
  );
}

async function resolveVoided(subject: Subject, name?: string): Promise<string> {
  const { pool, granting, authorization } = subject;
  return outcome(
    await resolveVoid(pool, granting.workspace, {
      operatorId: "t",
      authorization,
      vendorReference: name === undefined ? "" : reference(subject, name),
      reason: "seen in the dashboard",
      traceId: "",
    }),
  );
}

async function doubt({ pool, granting, asked, authorization }: Subject): Promise<string> {
  const { attemptId } = asked;
  return outcome(
    await reportUnknown(pool, granting.workspace, {
      vaultKeyId: "main",
      authorization,
      attemptId,
      traceId: "",
      reason: "",
    }),
  );
}

async function voidIt(
  subject: Subject,
  command: Partial<VoidCommand> & { readonly evidence: VoidEvidence },
): Promise<string> {
  const { pool, granting, asked, authorization } = subject;
  const name = command.vendorReference;
  return outcome(
    await voidSpend(pool, granting.workspace, {
      actor: { kind: "vault_key", id: "main" },
      authorization,
      attemptId: asked.attemptId,
      vendorStatus: 0,
      vendorReplayed: false,
      reason: "",
      traceId: "",
      look: { time: await readLookTime(pool), account: "" },
      ...command,
      vendorReference: name === undefined ? "" : reference(subject, name),
    }),
  );
}

/** On a HELD one, once its attempt has ended. */
async function byOperator(subject: Subject): Promise<string> {
  return await voidIt(subject, { evidence: "OPERATOR", actor: { kind: "operator", id: "t" }, reason: "seen" });
}

function outcome({ errorReason }: Pick<Settled, "errorReason">): string {
  return errorReason ?? "ok";
}

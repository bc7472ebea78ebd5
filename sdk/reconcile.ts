import {
  type Authorization,
  ReconciliationFinding,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import type { ControlPlane } from "./control-plane.ts";
import { toDecimalMoney } from "./convert.ts";
import { type DecimalMoney, toStripeAmount } from "./money.ts";
import { checkNumber } from "./option-check.ts";
import { type Look, look, type Looking, type Subject, subjectOf } from "./reconcile-look.ts";
import { createStripeReader } from "./reconcile-stripe.ts";
import { translateFailure } from "./refusal.ts";
import { toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import type { StripeLike } from "./stripe.ts";
import { moneyFrom } from "./stripe-call.ts";
import { text, type Verdict } from "./stripe-object.ts";

/** How far a reconciliation goes, and who learns of it. */
export interface ReconcileOptions {
  /** How many reads of Stripe one run may make. 500 by default: Stripe allots reads by the number of payments. */
  readonly maxReads?: number;
  /** Also look at what need not be asked about yet. False by default. */
  readonly includeNotDue?: boolean;
  /** Ends the run; what was settled until then stays settled. */
  readonly signal?: AbortSignal;
  /** Learns of each authorization as it is done. */
  readonly onProgress?: (step: ReconcileStep) => void;
}

export const RECONCILE_OPTIONS = {
  maxReads: true,
  includeNotDue: true,
  signal: true,
  onProgress: true,
} as const satisfies Record<keyof ReconcileOptions, true>;

/** What became of one authorization. */
export interface ReconcileStep {
  /** Resource name, "authorizations/…". */
  readonly authorization: string;
  /**
   * "committed" and "voided" are settled now. "open": the vendor's object is not at its end. "absent": complete lists
   * show nothing, which becomes a proof only after a quarantine of 25 h. "unreadable": Stripe did not answer, or cannot
   * be asked about this kind. "unclear": an operator has to look. "contradiction": a charge that the authorization does
   * not allow was recorded. "skipped": another attempt is at it, or it was settled meanwhile.
   */
  readonly outcome: "committed" | "voided" | "open" | "absent" | "unreadable" | "unclear" | "contradiction" | "skipped";
  readonly vendorReference: string | undefined;
  /** What was charged, where it is committed now. */
  readonly money: DecimalMoney | undefined;
  /** One line: what was looked at. */
  readonly note: string;
}

/** What a reconciliation did. */
export interface ReconcileReport {
  readonly steps: readonly ReconcileStep[];
  /** How many steps ended in each outcome. */
  readonly counts: Readonly<Record<ReconcileStep["outcome"], number>>;
  readonly reads: number;
  /** False if the reads were used up, the run was aborted or Stripe did not answer: run it again. */
  readonly complete: boolean;
}

export interface ReconcileSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly timeoutMs: number;
}

const READS_DEFAULT = 500;
const READS_LIMIT = 100_000;

/**
 * Asks Stripe about everything of this vault key that is not settled, and settles what Stripe can answer: by the bound
 * object, by events with our idempotency key, and by lists with our metadata, each read to its end. Commits what was
 * really charged; gives headroom back only where the object was seen ended, or after the quarantine. Safe to run on
 * several replicas and to stop at any step. Rejects with a HoldfastError if the control plane does not answer.
 */
export async function reconcile(
  settings: ReconcileSettings,
  stripe: StripeLike,
  options: ReconcileOptions = {},
): Promise<ReconcileReport> {
  const { maxReads = READS_DEFAULT, signal } = options;
  checkNumber("maxReads", maxReads, { min: 1, max: READS_LIMIT, unit: "reads" });
  const reader = createStripeReader({ stripe, runtime: settings.runtime, maxReads, signal });
  const unsettled = await listUnsettled(settings, options.includeNotDue === true);
  // A two-step that was never bound has confirmed nothing: the control plane voids it by itself.
  const mine = unsettled.filter(
    ({ vendor, settlement, vendorReference }) =>
      vendor === "stripe" && (settlement !== Settlement.TWO_STEP || vendorReference !== ""),
  );
  const run: Run = { settings, reader, lists: new Map() };
  const steps: ReconcileStep[] = [];
  let complete = true;
  for (const authorization of mine) {
    if (reader.spent()) {
      complete = false;
      break;
    }
    const step = await reconcileOne(run, mine, authorization);
    steps.push(step);
    options.onProgress?.(step);
  }
  return { steps, counts: countsOf(steps), reads: reader.reads(), complete };
}

interface Run extends Looking {
  readonly settings: ReconcileSettings;
}

function countsOf(steps: readonly ReconcileStep[]): ReconcileReport["counts"] {
  const counts = {
    committed: 0,
    voided: 0,
    open: 0,
    absent: 0,
    unreadable: 0,
    unclear: 0,
    contradiction: 0,
    skipped: 0,
  };
  for (const { outcome } of steps) counts[outcome] += 1;
  return counts;
}

async function listUnsettled({ controlPlane, runtime, timeoutMs }: ReconcileSettings, includeNotDue: boolean) {
  const all: Authorization[] = [];
  try {
    for (let pageToken = ""; ; ) {
      const deadline = runtime.clock.now() + timeoutMs;
      const page = await controlPlane.listUnsettled({ pageSize: 200, pageToken, includeNotDue }, deadline);
      all.push(...page.authorizations);
      pageToken = page.nextPageToken;
      if (pageToken === "") return all;
    }
  } catch (error) {
    throw translateFailure(error, "what is not settled", {});
  }
}

async function reconcileOne(run: Run, all: readonly Authorization[], authorization: Authorization) {
  const subject = subjectOf(authorization);
  try {
    const found = await look(run, all, subject);
    return await settle(run, subject, found);
  } catch (error) {
    const { reason } = toRpcFailure(error);
    // Settled by somebody else meanwhile, or an attempt is at it: nothing is lost.
    if (SETTLED_ELSEWHERE.has(reason)) return stepOf(authorization, "skipped", `the control plane answered ${reason}`);
    throw translateFailure(error, "a reconciliation", { authorization: authorization.name });
  }
}

const SETTLED_ELSEWHERE = new Set([
  "ALREADY_COMMITTED",
  "ALREADY_VOIDED",
  "ALREADY_BOUND",
  "STATE_NOT_ALLOWED",
  "ATTEMPT_SUPERSEDED",
  "EVIDENCE_INSUFFICIENT",
]);

async function settle(run: Run, subject: Subject, { found, note, byMark }: Look): Promise<ReconcileStep> {
  const { authorization, family } = subject;
  switch (found.kind) {
    case "unreadable":
      await report(run, authorization, ReconciliationFinding.UNREADABLE, `${note}: ${found.why}`);
      return stepOf(authorization, "unreadable", `${note}: ${found.why}`);
    case "absent":
      return absent(run, authorization, note);
    case "found": {
      const id = text(found.value, "id");
      if (family !== undefined) {
        const verdict = family.judge(found.value);
        const doubtful = byMark === true && isMoreThanHeld(authorization, verdict);
        return settleFound(
          run,
          authorization,
          doubtful ? { kind: "unclear", state: "dearer than held" } : verdict,
          id,
          note,
        );
      }
      const reference = `${id}+${authorization.name.slice("authorizations/".length)}`.slice(0, 255);
      return commit(run, authorization, { kind: "obliged" }, reference, note);
    }
  }
}

/** The guard never sends more than it holds, so an object that only a mark ties to the spend may be another's. */
function isMoreThanHeld({ heldAmount, spend }: Authorization, verdict: Verdict): boolean {
  if (verdict.kind !== "charged") return false;
  const held = toDecimalMoney(heldAmount) ?? toDecimalMoney(spend?.amount);
  if (held === undefined || held.currency !== verdict.currency) return true;
  return verdict.minor > toStripeAmount(held);
}

async function settleFound(
  run: Run,
  authorization: Authorization,
  verdict: Verdict,
  id: string,
  note: string,
): Promise<ReconcileStep> {
  const { controlPlane } = run.settings;
  switch (verdict.kind) {
    case "charged":
    case "obliged":
      return commit(run, authorization, verdict, id, note);
    case "open": {
      const vendorState = verdict.state.replaceAll(/[^a-z_]/g, "_").slice(0, 64);
      await report(run, authorization, ReconciliationFinding.OPEN, note, { vendorReference: id, vendorState });
      return stepOf(authorization, "open", `${note}: ${verdict.state}`, id);
    }
    case "gone": {
      const reference = { vendorReference: id, vendorState: "ended" };
      // Only a bound object is a tombstone.
      if (authorization.vendorReference === "") {
        await report(run, authorization, ReconciliationFinding.OPEN, note, reference);
      }
      await controlPlane.void(
        { authorization: authorization.name, evidence: VoidEvidence.TOMBSTONE, vendorReference: id },
        deadlineOf(run),
      );
      return stepOf(authorization, "voided", `${note}: ${verdict.state}`, id);
    }
    case "unclear":
      await report(run, authorization, ReconciliationFinding.UNCLEAR, `${note}: ${id} is ${verdict.state}`);
      return stepOf(authorization, "unclear", `${note}: ${id} is ${verdict.state}`, id);
  }
}

const CONTRADICTIONS = new Set(["COMMIT_CONTRADICTS", "ALREADY_VOIDED", "REFERENCE_ALREADY_COMMITTED"]);

async function commit(
  run: Run,
  authorization: Authorization,
  verdict: Extract<Verdict, { kind: "charged" | "obliged" }>,
  id: string,
  note: string,
): Promise<ReconcileStep> {
  const held = toDecimalMoney(authorization.heldAmount) ?? toDecimalMoney(authorization.spend?.amount);
  const charged = verdict.kind === "charged" ? moneyFrom(verdict.minor, verdict.currency) : held;
  if (charged === undefined) return stepOf(authorization, "unclear", `${note}: an amount that is none`, id);
  try {
    const amount = { currency: charged.currency, amount: charged.amount };
    await run.settings.controlPlane.commit(
      { authorization: authorization.name, amount, vendorReference: id },
      deadlineOf(run),
    );
    return { ...stepOf(authorization, "committed", note, id), money: charged };
  } catch (error) {
    const { reason } = toRpcFailure(error);
    if (!CONTRADICTIONS.has(reason)) throw error;
    return { ...stepOf(authorization, "contradiction", `${note}: ${reason}`, id), money: charged };
  }
}

/** Absence is no proof until the quarantine is over; the control plane knows when that is. */
async function absent(run: Run, authorization: Authorization, note: string): Promise<ReconcileStep> {
  if (authorization.vendorReference !== "") {
    await report(run, authorization, ReconciliationFinding.UNCLEAR, `${note}: the bound object is not there`);
    return stepOf(authorization, "unclear", `${note}: the bound object is not there`);
  }
  const voided = await tryVoidAbsent(run, authorization);
  if (voided) return stepOf(authorization, "voided", `${note}: absent after the quarantine`);
  await report(run, authorization, ReconciliationFinding.ABSENT, note);
  return stepOf(authorization, "absent", note);
}

async function tryVoidAbsent(run: Run, authorization: Authorization): Promise<boolean> {
  // Only a second look can prove it.
  if (authorization.reconciliation?.absentSinceTime === undefined) return false;
  try {
    await run.settings.controlPlane.void(
      { authorization: authorization.name, evidence: VoidEvidence.ABSENT_AFTER_QUARANTINE },
      deadlineOf(run),
    );
    return true;
  } catch (error) {
    if (toRpcFailure(error).reason === "EVIDENCE_INSUFFICIENT") return false;
    throw error;
  }
}

async function report(
  run: Run,
  authorization: Authorization,
  finding: ReconciliationFinding,
  note: string,
  object: { readonly vendorReference?: string; readonly vendorState?: string } = {},
): Promise<void> {
  await run.settings.controlPlane.reportReconciliation(
    { authorization: authorization.name, finding, note: note.replaceAll(/[^ -~]/g, " ").slice(0, 500), ...object },
    deadlineOf(run),
  );
}

function deadlineOf({ settings }: Run): number {
  return settings.runtime.clock.now() + settings.timeoutMs;
}

function stepOf(
  authorization: Authorization,
  outcome: ReconcileStep["outcome"],
  note: string,
  vendorReference?: string,
): ReconcileStep {
  const known = vendorReference ?? (authorization.vendorReference === "" ? undefined : authorization.vendorReference);
  return { authorization: authorization.name, outcome, vendorReference: known, money: undefined, note };
}

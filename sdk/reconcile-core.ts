import { type DecimalMoney, moneyFrom, toStripeAmount } from "./money.ts";
import { type Look, look, type Looking, placeOf, type Reconcilable } from "./reconcile-look.ts";
import type { StripeReader } from "./reconcile-stripe.ts";
import { text, type Verdict } from "./stripe-object.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

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

export type StepOutcome = ReconcileStep["outcome"];

export type FindingName = "OPEN" | "ABSENT" | "UNREADABLE" | "UNCLEAR";

/** Why the control plane did not do it, for example "ALREADY_COMMITTED"; undefined if it did. */
export type Refusal = string | undefined;

/** What a reconciliation finds where it settles nothing. */
export interface Report {
  readonly finding: FindingName;
  /** One printable line of at most 500 characters. */
  readonly note: string;
  /** With OPEN: the object and its state. */
  readonly vendorReference?: string;
  readonly vendorState?: string;
}

export type Proof =
  | { readonly evidence: "TOMBSTONE"; readonly vendorReference: string }
  | { readonly evidence: "ABSENT_AFTER_QUARANTINE" };

/**
 * Where a reconciliation settles. Each method answers with the reason of a refusal that settles the question elsewhere,
 * and rejects where it could not be asked.
 */
export interface ReconcileDesk<Row extends Reconcilable = Reconcilable> {
  commit(row: Row, money: DecimalMoney, vendorReference: string): Promise<Refusal>;
  void(row: Row, proof: Proof): Promise<Refusal>;
  report(row: Row, report: Report): Promise<Refusal>;
}

/** Another charge than the authorization allows: it is recorded, and settles nothing. */
export const CONTRADICTIONS: ReadonlySet<string> = new Set([
  "COMMIT_CONTRADICTS",
  "ALREADY_VOIDED",
  "REFERENCE_ALREADY_COMMITTED",
  "REFERENCE_BOUND_ELSEWHERE",
]);

/** Settled by somebody else meanwhile, an attempt is at it, or not proven yet: nothing is lost. */
export const REFUSALS: ReadonlySet<string> = new Set([
  ...CONTRADICTIONS,
  "ALREADY_COMMITTED",
  "ALREADY_BOUND",
  "STATE_NOT_ALLOWED",
  "ATTEMPT_SUPERSEDED",
  "EVIDENCE_INSUFFICIENT",
  "RECOVERY_REQUIRED",
]);

export interface ReconcileRun<Row extends Reconcilable = Reconcilable> {
  readonly desk: ReconcileDesk<Row>;
  readonly reader: StripeReader;
  /** Asked before each authorization; false ends the run. */
  readonly goOn?: () => Promise<boolean>;
  readonly onStep?: (step: ReconcileStep, row: Row) => void;
}

/**
 * Settles what Stripe can answer of these authorizations, each in turn. Every step may be repeated and interrupted.
 * `complete` is false if the reads were used up, the run was ended or Stripe did not answer.
 */
export async function reconcileEach<Row extends Reconcilable>(
  run: ReconcileRun<Row>,
  rows: readonly Row[],
): Promise<{ readonly steps: readonly ReconcileStep[]; readonly complete: boolean }> {
  const looking: Looking = { reader: run.reader, lists: new Map() };
  const steps: ReconcileStep[] = [];
  for (const row of rows) {
    if (run.reader.spent() || (await run.goOn?.()) === false) return { steps, complete: false };
    const attributes = { [ATTRIBUTES.authorization]: `authorizations/${row.mark}` };
    const step = await inSpan("holdfast.reconcile_step", attributes, async (span) => {
      const settled = await settle(run.desk, row, await look(looking, rows, row));
      span.setAttribute(ATTRIBUTES.outcome, settled.outcome);
      return settled;
    });
    steps.push(step);
    run.onStep?.(step, row);
  }
  return { steps, complete: true };
}

async function settle<Row extends Reconcilable>(
  desk: ReconcileDesk<Row>,
  row: Row,
  looked: Look,
): Promise<ReconcileStep> {
  const { found, note, byMark } = looked;
  switch (found.kind) {
    case "unreadable":
      return report(desk, row, "unreadable", { finding: "UNREADABLE", note: `${note}: ${found.why}` });
    case "absent":
      return absent(desk, row, note);
    case "found": {
      const { family } = placeOf(row);
      const id = text(found.value, "id");
      if (family === undefined) {
        return commit(desk, row, { kind: "obliged" }, { id: `${id}+${row.mark}`.slice(0, 255), note });
      }
      const verdict = family.judge(found.value);
      // A dead object with a copied mark says nothing of a request that is still on its way: it counts as nothing found.
      if (byMark === true && verdict.kind === "gone") return absent(desk, row, `${note}: ${id} is ${verdict.state}`);
      const doubtful = byMark === true && isMoreThanHeld(row, verdict);
      return settleFound(desk, row, doubtful ? { kind: "unclear", state: "dearer than held" } : verdict, { id, note });
    }
  }
}

/** The guard never sends more than it holds, so an object that only a mark ties to the spend may be another's. */
export function isMoreThanHeld({ held }: Pick<Reconcilable, "held">, verdict: Verdict): boolean {
  if (verdict.kind !== "charged") return false;
  if (held === undefined || held.currency !== verdict.currency) return true;
  return verdict.minor > toStripeAmount(held);
}

interface Seen {
  readonly id: string;
  readonly note: string;
}

async function settleFound<Row extends Reconcilable>(
  desk: ReconcileDesk<Row>,
  row: Row,
  verdict: Verdict,
  { id, note }: Seen,
): Promise<ReconcileStep> {
  switch (verdict.kind) {
    case "charged":
    case "obliged":
      return commit(desk, row, verdict, { id, note });
    case "open": {
      const vendorState = verdict.state.replaceAll(/[^a-z_]/g, "_").slice(0, 64);
      const step = await report(desk, row, "open", { finding: "OPEN", note, vendorReference: id, vendorState });
      return { ...step, vendorReference: id, note: step.outcome === "open" ? `${note}: ${verdict.state}` : step.note };
    }
    case "gone": {
      const object = { vendorReference: id, vendorState: "ended" };
      // Only a bound object is a tombstone.
      if (row.vendorReference === "") {
        const bound = await report(desk, row, "open", { finding: "OPEN", note, ...object });
        if (bound.outcome === "skipped") return bound;
      }
      const refusal = await desk.void(row, { evidence: "TOMBSTONE", vendorReference: id });
      if (refusal !== undefined) return skipped(row, refusal);
      return stepOf(row, "voided", `${note}: ${verdict.state}`, id);
    }
    case "unclear": {
      const unclear = `${note}: ${id} is ${verdict.state}`;
      return { ...(await report(desk, row, "unclear", { finding: "UNCLEAR", note: unclear })), vendorReference: id };
    }
  }
}

async function commit<Row extends Reconcilable>(
  desk: ReconcileDesk<Row>,
  row: Row,
  verdict: Extract<Verdict, { kind: "charged" | "obliged" }>,
  { id, note }: Seen,
): Promise<ReconcileStep> {
  const money = verdict.kind === "charged" ? moneyFrom(verdict.minor, verdict.currency) : row.held;
  if (money === undefined) {
    return report(desk, row, "unclear", { finding: "UNCLEAR", note: `${note}: ${id} has an amount that is none` });
  }
  const refusal = await desk.commit(row, money, id);
  if (refusal === undefined) return { ...stepOf(row, "committed", note, id), money };
  if (!CONTRADICTIONS.has(refusal)) return skipped(row, refusal);
  return { ...stepOf(row, "contradiction", `${note}: ${refusal}`, id), money };
}

/** Absence is no proof until the quarantine is over; the control plane knows when that is. */
async function absent<Row extends Reconcilable>(
  desk: ReconcileDesk<Row>,
  row: Row,
  note: string,
): Promise<ReconcileStep> {
  if (row.vendorReference !== "") {
    return report(desk, row, "unclear", { finding: "UNCLEAR", note: `${note}: the bound object is not there` });
  }
  // Only a second look can prove it.
  if (row.wasAbsent) {
    const refusal = await desk.void(row, { evidence: "ABSENT_AFTER_QUARANTINE" });
    if (refusal === undefined) return stepOf(row, "voided", `${note}: absent after the quarantine`);
    if (refusal !== "EVIDENCE_INSUFFICIENT" && refusal !== "RECOVERY_REQUIRED") return skipped(row, refusal);
  }
  return report(desk, row, "absent", { finding: "ABSENT", note });
}

async function report<Row extends Reconcilable>(
  desk: ReconcileDesk<Row>,
  row: Row,
  outcome: StepOutcome,
  finding: Report,
): Promise<ReconcileStep> {
  const refusal = await desk.report(row, { ...finding, note: finding.note.replaceAll(/[^ -~]/g, " ").slice(0, 500) });
  return refusal === undefined ? stepOf(row, outcome, finding.note) : skipped(row, refusal);
}

function skipped(row: Reconcilable, refusal: string): ReconcileStep {
  return stepOf(row, "skipped", `the control plane answered ${refusal}`);
}

function stepOf(row: Reconcilable, outcome: StepOutcome, note: string, vendorReference?: string): ReconcileStep {
  const known = vendorReference ?? (row.vendorReference === "" ? undefined : row.vendorReference);
  return { authorization: `authorizations/${row.mark}`, outcome, vendorReference: known, money: undefined, note };
}

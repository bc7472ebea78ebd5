// Settles what nobody was told about, and compares both sides: a timer runs it every few minutes, on one replica or on
// all. It asks Stripe about every spend of the vault key that is in doubt or waits for a customer, commits or voids what
// Stripe can answer, and says what Holdfast and Stripe do not agree on. Its exit code tells the timer whether somebody
// has to look.
import type { Holdfast, ReconcileReport, ReconcileStep } from "@holdfast/sdk";
import type Stripe from "stripe";

/** 0: both sides agree. 1: an operator has to look at something. 2: it did not get through; run it again. */
export type ExitCode = 0 | 1 | 2;

const NEEDS_SOMEBODY: ReadonlySet<ReconcileStep["outcome"]> = new Set(["unclear", "contradiction"]);

/** Takes the plain Stripe client. `report` gets one line for each spend that was looked at, and each difference. */
export async function reconcileJob(
  holdfast: Holdfast,
  stripe: Stripe,
  report: (line: string) => void,
  since = new Date(Date.now() - 48 * 3_600_000),
): Promise<ExitCode> {
  let result: ReconcileReport;
  try {
    result = await holdfast.reconcile(stripe, {
      since,
      onProgress: ({ authorization, outcome, note }) => report(`${authorization} ${outcome}: ${note}`),
    });
  } catch (error) {
    report(error instanceof Error ? error.message : String(error));
    return 2;
  }
  for (const { kind, authorization, message } of result.differences) report(`${kind} ${authorization}: ${message}`);
  // What is still in doubt is asked about again; the others stay until somebody has dealt with them.
  const lasting = result.differences.filter(({ kind }) => kind !== "UNSETTLED");
  if (lasting.length > 0 || result.steps.some(({ outcome }) => NEEDS_SOMEBODY.has(outcome))) return 1;
  return result.complete && result.counts.unreadable === 0 && result.differences.length === 0 ? 0 : 2;
}

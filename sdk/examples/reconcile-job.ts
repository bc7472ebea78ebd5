// Settles what nobody was told about: a timer runs it every few minutes, on one replica or on all. It asks Stripe about
// every spend of the vault key that is in doubt or waits for a customer, and commits or voids what Stripe can answer.
// Its exit code tells the timer whether somebody has to look.
import type { Holdfast, ReconcileStep } from "@holdfast/sdk";
import type Stripe from "stripe";

/** 0: nothing needs anybody. 1: an operator has to look at something. 2: it did not get through; run it again. */
export type ExitCode = 0 | 1 | 2;

const NEEDS_SOMEBODY: ReadonlySet<ReconcileStep["outcome"]> = new Set(["unclear", "contradiction"]);

/** Takes the plain Stripe client. `report` gets one line for each spend that was looked at. */
export async function reconcileJob(
  holdfast: Holdfast,
  stripe: Stripe,
  report: (line: string) => void,
): Promise<ExitCode> {
  let result: Awaited<ReturnType<Holdfast["reconcile"]>>;
  try {
    result = await holdfast.reconcile(stripe, {
      onProgress: ({ authorization, outcome, note }) => report(`${authorization} ${outcome}: ${note}`),
    });
  } catch (error) {
    report(error instanceof Error ? error.message : String(error));
    return 2;
  }
  if (result.steps.some(({ outcome }) => NEEDS_SOMEBODY.has(outcome))) return 1;
  return result.complete && result.counts.unreadable === 0 ? 0 : 2;
}

import { type Denial, DenialRule } from "@holdfast/api/holdfast/v1/spend_pb";
import type { LeaseGuard } from "./context.ts";
import { denialFigures } from "./convert.ts";
import { type ErrorContext, LeaseLostError, SpendDeniedError } from "./errors.ts";

/** The typed error of a denial of a spend that was asked for under `lease`, or under none. */
export function deniedError(
  denial: Denial,
  lease: LeaseGuard | undefined,
  context: ErrorContext,
): LeaseLostError | SpendDeniedError {
  if (denial.rule !== DenialRule.FENCING_TOKEN || lease === undefined) {
    return new SpendDeniedError(denialFigures(denial), context);
  }
  // No matter of this spend: every other one that the run asks for would be denied the same way.
  lease.fenced();
  const { lease: name = "", billingPeriod = "" } = lease.fence;
  return new LeaseLostError(name, billingPeriod, context);
}

/**
 * What this package knows about Stripe, for Holdfast's own server. Not for applications: anything here may change or go
 * away in any version, also in a patch.
 */
export { type Assembly, assemble, type AssemblyOptions } from "./assembly.ts";
export {
  type Comparable,
  type CommittedJudgement,
  type Difference,
  type DifferenceKind,
  judgeCommitted,
  judgeMovement,
  LISTED_FAMILIES,
  type ListedFamily,
  type Movement,
  movementPage,
  type MovementJudgement,
  movementsOf,
  notLookedAt,
  type Span,
} from "./compare.ts";
export { checkSpend } from "./context.ts";
export {
  type DecimalMoney,
  fromStripeAmount,
  fromStripeChargeAmount,
  fromStripePayoutAmount,
  moneyFrom,
  stripeExponent,
  toStripeAmount,
} from "./money.ts";
export { classifyOutcome, type Outcome, type VendorAnswerSignal, type VendorSignal } from "./outcome.ts";
export {
  type Proof,
  reconcileEach,
  type ReconcileDesk,
  type ReconcileRun,
  type ReconcileStep,
  type Refusal,
  REFUSALS,
  type Report,
  type StepOutcome,
} from "./reconcile-core.ts";
export { placeOf, type Reconcilable } from "./reconcile-look.ts";
export {
  createStripeReader,
  type Found,
  type StripeGet,
  type StripePage,
  type StripeRead,
  type StripeReader,
  type StripeReaderOptions,
} from "./reconcile-stripe.ts";
export {
  type Clock,
  type Random,
  type Runtime,
  sleep,
  systemClock,
  systemRandom,
  systemTimers,
  type Timers,
} from "./runtime.ts";
export { STRIPE_ENDPOINTS } from "./stripe-endpoint-table.ts";
export { isHarmless } from "./stripe-edit.ts";
export { findStripeEndpoint, type StripeEffect, type StripeEndpoint } from "./stripe-endpoints.ts";
export { createStripeGuard, type GuardSettings, type StripeCallScope, type StripeGuard } from "./stripe-guard.ts";
export type { StripeHttpClient, StripeHttpResponse } from "./stripe-http.ts";
export { FAMILIES, type FamilyName, type ObjectFamily, type Verdict } from "./stripe-object.ts";
export { type OneCallPlan, type Plan, planOf } from "./stripe-plan.ts";
export { problemOfAllowing, takesSpend } from "./stripe-plan.ts";

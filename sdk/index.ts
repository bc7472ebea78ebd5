export { type CloseOptions, createHoldfast, type Holdfast, type StripeOptions } from "./client.ts";
export type { SpendOption } from "./context.ts";
export * from "./errors.ts";
export type { BillingLeaseOptions, BillingLeaseResult, HeldBillingLease } from "./lease.ts";
export {
  type DecimalMoney,
  fromStripeAmount,
  fromStripeChargeAmount,
  fromStripePayoutAmount,
  stripeExponent,
  toStripeAmount,
} from "./money.ts";
export { classifyOutcome, type Outcome, type VendorAnswerSignal, type VendorSignal } from "./outcome.ts";
export type { HoldfastOptions } from "./options.ts";
export type { Clock, Random, Timers } from "./runtime.ts";
export type { ReconcileStep } from "./reconcile-core.ts";
export type { ReconcileDifference, ReconcileOptions, ReconcileReport } from "./reconcile.ts";
export { authorizationName, type SpendIdentity, stableKey } from "./stable-key.ts";
export type { GuardedCallOptions, GuardedStripe, StripeLike } from "./stripe.ts";
export type { OnDecline } from "./stripe-call.ts";
export type { TlsOptions } from "./tls.ts";
export { ATTRIBUTES } from "./telemetry-attributes.ts";
export type { SignalOption, SpendResult, VendorGrant, VendorReceipt, VendorSpend } from "./vendor-call.ts";

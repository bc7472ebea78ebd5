/** How a billing process charges: by a PaymentIntent in two steps, or by one call. */
export type BillingKind = "two_step" | "one_call";

/** One call that a billing process is told to make. */
export interface BillingCall {
  readonly id: string;
  readonly kind: BillingKind;
  readonly baseUrl: string;
  readonly vaultKey: string;
  readonly stripePort: number;
  readonly customerId: string;
  /** In cents. */
  readonly amount: number;
  readonly timeoutMs: number;
  readonly vendorDeadlineMs: number;
  readonly holdMs: number;
  /** Where to stop until told to go on, for example "before AuthorizeSpend" or "after POST /v1/charges". */
  readonly pauseAt?: string;
}

export const billingPeriod = "2026-11";
export const purpose = "subscription";

/** What became of a call: the vendor's object, or the error that the application caught. */
export type BillingOutcome =
  | { readonly ok: string; readonly status: string; readonly ms: number }
  | { readonly error: string; readonly code: string; readonly message: string; readonly ms: number };

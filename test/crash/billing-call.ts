/** How a billing process charges: by a PaymentIntent in two steps, or by one call. */
export type BillingKind = "two_step" | "one_call";

/** What it does beside: raise and capture what it has authorized, charge under a billing lease, ask the vendor. */
export type BillingWork = "charge" | "raise_and_capture" | "under_lease" | "reconcile";

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
  /**
   * Where to stop until told to go on, for example "before AuthorizeSpend" or "after POST /v1/charges". With a "*" in the
   * end only the beginning counts.
   */
  readonly pauseAt?: string;
  /** The how manieth time it is there; 1 unless told. */
  readonly pauseNth?: number;
  /** "charge" unless told. */
  readonly work?: BillingWork;
  /** Instead of a card that pays. */
  readonly card?: string;
  readonly retryAfterGeneration?: number;
  /** False only authorizes a charge of one call. */
  readonly capture?: boolean;
  /** A file with the milliseconds by which all clocks were moved; the process's own follows. */
  readonly clockFile?: string;
}

export const billingPeriod = "2026-11";
export const purpose = "subscription";

/** What became of a call: the vendor's object, or the error that the application caught. */
export type BillingOutcome =
  | { readonly ok: string; readonly status: string; readonly ms: number }
  | { readonly error: string; readonly code: string; readonly message: string; readonly ms: number };

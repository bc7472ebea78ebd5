import type { Customer } from "./customers.ts";

/** What retries: the operator around one charge, the function around the whole run, or nothing. */
export type Retrying = "rxjs" | "p-retry" | "none";

/** How Stripe is asked for money: `paymentIntents.create` with `confirm: true`, or `charges.create`. */
export type Call = "payment_intent" | "charge";

/** Demo settings of the SDK, in milliseconds. Much shorter than the defaults, so that a demo can wait for their end. */
export interface GuardOptions {
  readonly baseUrl: string;
  readonly vaultKey: string;
  readonly holdMs: number;
  readonly vendorDeadlineMs: number;
  readonly timeoutMs: number;
}

/** What one billing process is told to do. Travels as JSON. */
export interface BillingJob {
  readonly retrying: Retrying;
  readonly call: Call;
  readonly stripePort: number;
  readonly billingPeriod: string;
  readonly purpose: string;
  readonly customers: readonly Customer[];
  /** How many customers are billed at a time. */
  readonly concurrency: number;
  /** Absent: the plain Stripe client with a random key for every call. */
  readonly guard?: GuardOptions;
  /** Stand still, to be killed, as soon as Stripe has accepted that many charges and before anybody is told. */
  readonly stopAfterCharges?: number;
  /** A planted bug: every request to Stripe leaves with another idempotency key. */
  readonly plantRandomKeys: boolean;
}

/** How a customer's last try ended. */
export type Ending = "charged" | "denied" | "in_doubt" | "failed";

export interface BillingReport {
  /** By customer id; a customer that was never tried is absent. */
  readonly endings: Readonly<Record<string, Ending>>;
  /** How often the retrying code ran something again. */
  readonly retries: number;
  /** A few messages of unexpected errors. */
  readonly problems: readonly string[];
}

export type ToBilling = { readonly kind: "prepare"; readonly job: BillingJob } | { readonly kind: "go" };

export type FromBilling =
  | { readonly kind: "ready" }
  | { readonly kind: "stopped" | "done"; readonly report: BillingReport };

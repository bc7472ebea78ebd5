// Everything that the checker judges by. Nothing here comes from the product: the vendors' ledgers, rows of the
// database as they are, and what the billing processes wrote down.

/** The ways in which money is asked for. */
export const spendClasses = [
  "intent",
  "intent_later",
  "intent_manual",
  "intent_action",
  "charge",
  "charge_later",
  "invoice",
  "invoice_final",
  "subscription",
  "checkout",
  "link",
  "refund",
  "reversal",
  "credit_note",
  "transfer",
  "payout",
  "topup",
  "credit",
  "v2",
  "plain",
] as const;

export type SpendClass = (typeof spendClasses)[number];

/** A spend as it was planned, and what of it may move. Amounts are in the currency's minor unit. */
export interface PlannedSpend {
  readonly id: string;
  readonly spendClass: SpendClass;
  readonly customerId: string;
  readonly billingPeriod: string;
  readonly purpose: string;
  readonly currency: string;
  /** What one movement may be at most. */
  readonly amountMax: number;
  /** The kinds of movement it may make, of which it makes one at most. */
  readonly kinds: readonly string[];
  /** Committed as it was held, since only the vendor knows what was paid: a movement may be smaller or missing. */
  readonly isObligation: boolean;
  /** The object of which money is given back. */
  readonly base?: string;
}

/** A movement of money, as a vendor wrote it down. `at` is on the vendor's clock. */
export interface LedgerMovement {
  readonly at: number;
  readonly kind: string;
  readonly id: string;
  readonly payment_intent?: string;
  readonly cause?: string;
  readonly amount: number;
  readonly currency: string;
  readonly idempotency_key: string | null;
  readonly metadata: Readonly<Record<string, string>>;
}

/** A row of `authorizations`; whole numbers of 64 bits come as text. */
export interface AuthorizationRow {
  readonly spend_key: string;
  readonly generation: number;
  readonly customer_id: string;
  readonly billing_period: string;
  readonly purpose: string;
  readonly idempotency_key: string;
  readonly endpoint: string;
  readonly settlement: string;
  readonly direction: string;
  readonly state: string;
  readonly vendor_reference: string | null;
  readonly vendor_state: string;
  readonly is_followed: boolean;
  readonly held_micros: string;
  readonly committed_micros: string | null;
  readonly committed_currency: string | null;
  readonly void_evidence: string | null;
  readonly void_reason: string | null;
}

export interface ContradictionRow {
  readonly spend_key: string;
  readonly generation: number;
  readonly kind: string;
  readonly vendor_reference: string;
  readonly amount_micros: string;
  readonly counted_micros: string;
}

/** What one authorization takes from one cap. */
export interface HoldRow {
  readonly spend_key: string;
  readonly generation: number;
  readonly cap_id: string;
  readonly window_label: string;
  readonly subject: string;
}

export interface CounterRow {
  readonly cap_id: string;
  readonly window_label: string;
  readonly subject: string;
  readonly committed_micros: string;
  readonly held_micros: string;
  readonly limit_micros: string;
}

/** One call of a billing process, written down by itself. Times are of the machine's clock, in milliseconds. */
export interface AnswerLine {
  readonly operation: number;
  readonly spend: string;
  readonly worker: string;
  /** The method that was called, for example "paymentIntents.create". */
  readonly call: string;
  readonly start: number;
  /** When it was answered, or the process was found killed. */
  readonly end: number;
  readonly answer: Answer;
}

export type Answer =
  | {
      readonly kind: "ok";
      readonly id: string;
      readonly status: string;
      /** What the answer says has moved, judged by the billing process from the object alone. */
      readonly claimsMoved: boolean;
    }
  | {
      readonly kind: "error";
      readonly name: string;
      readonly code: string;
      readonly message: string;
      /** Of an aborted call: it goes on in the background. */
      readonly carriedThrough?: boolean;
      readonly retryAfterGeneration?: number;
    }
  /** The process was killed. */
  | { readonly kind: "lost" };

/** A request that ran into a failure of the vendor. */
export interface FaultedRequest {
  readonly at: number;
  readonly method: string;
  readonly path: string;
  readonly key: string | null;
  readonly fault: string;
  readonly executed: boolean;
  readonly status: number | null;
}

/** What the last reconciliation said of an authorization, "authorizations/…". */
export interface Reconciled {
  readonly authorization: string;
  readonly outcome: string;
}

/** Something that was done from outside. Times are of the machine's clock. */
export interface Disturbance {
  readonly kind: string;
  readonly start: number;
  readonly end: number;
  /** How far the clocks were moved. */
  readonly movedMs?: number;
  /** The spend of a customer who acted in a browser. */
  readonly spend?: string;
  readonly object?: string;
}

export interface Evidence {
  readonly spends: readonly PlannedSpend[];
  readonly movements: readonly LedgerMovement[];
  readonly authorizations: readonly AuthorizationRow[];
  readonly contradictions: readonly ContradictionRow[];
  readonly holds: readonly HoldRow[];
  readonly counters: readonly CounterRow[];
  /** Counters that were found above their limit while everything ran. */
  readonly excesses: readonly CounterRow[];
  readonly answers: readonly AnswerLine[];
  readonly faulted: readonly FaultedRequest[];
  readonly disturbances: readonly Disturbance[];
  /** By a reconciliation in peace, after the quarantine. */
  readonly reconciled: readonly Reconciled[];
  /** What a billing process said that is no answer: an exception that escaped. */
  readonly defects: readonly string[];
  /** A call that lasted this long may have given up by itself. Milliseconds. */
  readonly vendorDeadlineMs: number;
}

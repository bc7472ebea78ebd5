/** Names a request of one vault key. */
export interface ProxiedRequestId {
  readonly vaultKeyId: string;
  /** SHA-256 of how the request is identified: 32 bytes. */
  readonly requestKey: Uint8Array;
}

/** A request before anything is sent for it. */
export interface ProxiedRequestClaim extends ProxiedRequestId {
  /** 32 random hex digits, made once per request of a client. */
  readonly claimId: string;
  /** Where a claim of the same is open, that one is not forgotten any more: for what may be sent without a grant. */
  readonly joins?: boolean;
  readonly endpoint: string;
  /** SHA-256 of everything that is asked for. */
  readonly bodySha256: Uint8Array;
  /** SHA-256 of that without the payment method. */
  readonly retrySha256: Uint8Array;
  readonly spend: { readonly customerId: string; readonly billingPeriod: string; readonly purpose: string } | undefined;
}

/** What a client was answered. Lower-case names of headers. */
export interface StoredAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/**
 * `generation` counts how often the request was open, and goes with the answer that is stored for it; `openMicros` is how
 * long it is open by now.
 */
export type ClaimedRequest =
  | { readonly kind: "new"; readonly generation: number; readonly openMicros: bigint }
  /** Somebody is at it, or was and has ended without an answer. */
  | {
      readonly kind: "open";
      readonly generation: number;
      readonly openMicros: bigint;
      readonly sameBody: boolean;
    }
  | {
      readonly kind: "answered";
      readonly generation: number;
      readonly sameBody: boolean;
      /** Another body, and what differs is how it is paid. */
      readonly sameButPaymentMethod: boolean;
      /** The vendor refused the payment. */
      readonly declined: boolean;
      /** Since the answer was stored. */
      readonly ageMicros: bigint;
      /** Undefined where it was too large, is too old, or none of the server's keys opens it. */
      readonly answer: StoredAnswer | undefined;
    };

/** What there is to see of a request. Times are microseconds since 1970 on the database clock. */
export interface ProxiedRequestSummary {
  readonly vaultKeyId: string;
  readonly endpoint: string;
  readonly isOpen: boolean;
  /** Counts how often it was open. */
  readonly generation: number;
  /** HTTP status of the last answer. */
  readonly status: number | undefined;
  readonly declined: boolean;
  readonly createTime: bigint;
  readonly answerTime: bigint | undefined;
}

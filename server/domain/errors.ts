/** The names of `holdfast.v1.ErrorReason` without their prefix; `rpc/errors.ts` maps each to one code. */
export type ErrorReasonName =
  | "INVALID_FIELD"
  | "INVALID_TOKEN"
  | "ROLE_NOT_ALLOWED"
  | "NOT_FOUND"
  | "ALREADY_EXISTS"
  | "ETAG_MISMATCH"
  | "SPEND_MISMATCH"
  | "OTHER_VAULT_KEY"
  | "ATTEMPT_SUPERSEDED"
  | "GENERATION_NOT_FOUND"
  | "ALREADY_COMMITTED"
  | "ALREADY_VOIDED"
  | "COMMIT_CONTRADICTS"
  | "REFERENCE_ALREADY_COMMITTED"
  | "EVIDENCE_INSUFFICIENT"
  | "ALREADY_BOUND"
  | "STATE_NOT_ALLOWED"
  | "QUEUE_FULL"
  | "OUTCOME_UNKNOWN"
  | "DATABASE_UNAVAILABLE"
  | "AMOUNT_OUT_OF_RANGE"
  | "INTERNAL"
  | "RECOVERY_REQUIRED"
  | "REFERENCE_BOUND_ELSEWHERE"
  | "STORAGE_FULL";

export interface HoldfastErrorOptions {
  readonly metadata?: Readonly<Record<string, string>>;
  /** How long to wait before trying again; becomes google.rpc.RetryInfo. */
  readonly retryAfterMs?: number;
  readonly cause?: unknown;
}

/** A refusal: the request cannot be carried out, and the message says in one sentence why and what to do. */
export class HoldfastError extends Error {
  override readonly name = "HoldfastError";
  readonly reason: ErrorReasonName;
  readonly metadata: Readonly<Record<string, string>>;
  readonly retryAfterMs: number | undefined;

  constructor(reason: ErrorReasonName, message: string, options: HoldfastErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.reason = reason;
    this.metadata = options.metadata ?? {};
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** The refusal of one field. `field` is the path in the request, for example `spend.customer_id`. */
export function invalidField(field: string, message: string): HoldfastError {
  return new HoldfastError("INVALID_FIELD", `${field}: ${message}`, { metadata: { field } });
}

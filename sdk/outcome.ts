/** What is known about a charge after one exchange with the vendor. Only `not_charged` may give headroom back. */
export type Outcome = "charged" | "not_charged" | "unknown";

/** Everything that can come back from one send, reduced to what decides about the charge. */
export type VendorSignal =
  /** The guard refused the request itself; it never reached a socket. */
  | { readonly kind: "denied" }
  /** The connection was never established, so no byte of the request left: refused, no such host, TLS, connect timeout. */
  | { readonly kind: "not_sent" }
  /** The connection was reset or cut, the read timed out, the call was aborted, or the answer's body is incomplete. */
  | { readonly kind: "lost" }
  /** A complete answer. */
  | VendorAnswerSignal;

/** What counts of a complete answer of the vendor. */
export interface VendorAnswerSignal {
  readonly kind: "answer";
  readonly status: number;
  /** False if the body is not the vendor's JSON: somebody in front of the vendor answered. */
  readonly readable: boolean;
  /** The vendor marked the answer as the saved one of an earlier request with this key. */
  readonly replayed: boolean;
  /** `error.type` of the body. */
  readonly errorType?: string | undefined;
  /** `error.code` of the body. */
  readonly errorCode?: string | undefined;
  /** `Stripe-Rate-Limited-Reason`: only the limiters in front of the idempotency layer send it. */
  readonly rateLimitedReason?: string | undefined;
}

// These say that the object is already past the step: what happened to it must be read.
const STATE_CODES = new Set([
  "payment_intent_unexpected_state",
  "charge_already_captured",
  "charge_already_refunded",
  "invoice_already_paid",
]);

/** True if the answer is an error about the state of the object, which is then to be read. */
export function isStateError(signal: VendorSignal): boolean {
  return signal.kind === "answer" && signal.errorCode !== undefined && STATE_CODES.has(signal.errorCode);
}

/**
 * Did the charge happen? Total over every signal. `replay` is false only for the very first send of a generation:
 * as soon as an earlier send may have arrived, an answer counts only if it speaks about that earlier send. `charged`
 * means that the vendor carried the request out; the object's own status says how far.
 */
export function classifyOutcome(signal: VendorSignal, send: { readonly replay: boolean }): Outcome {
  switch (signal.kind) {
    case "denied":
    case "not_sent":
      return send.replay ? "unknown" : "not_charged";
    case "lost":
      return "unknown";
    case "answer":
      return signal.readable ? classifyAnswer(signal, send.replay) : "unknown";
  }
}

function classifyAnswer(signal: VendorAnswerSignal, replay: boolean): Outcome {
  const silentAboutEarlier: Outcome = replay ? "unknown" : "not_charged";
  if (signal.status >= 200 && signal.status <= 299) return signal.errorType === undefined ? "charged" : "unknown";
  switch (signal.status) {
    case 402:
      // Cached under the key like a success, so it always speaks about the first execution.
      return "not_charged";
    case 400:
      if (signal.errorType === "idempotency_error" || isStateError(signal)) return "unknown";
      return signal.replayed ? "not_charged" : silentAboutEarlier;
    case 401:
    case 403:
    case 404:
      return silentAboutEarlier;
    case 429:
      // Without a reason the request may have been executed as far as a lock; its answer is then saved.
      return signal.rateLimitedReason === undefined ? "unknown" : silentAboutEarlier;
    default:
      // 409 in use, 424, 5xx and everything unforeseen.
      return "unknown";
  }
}

import {
  HoldfastClosedError,
  type HoldfastError,
  HoldfastOverloadedError,
  HoldfastRefusedError,
  HoldfastUnavailableError,
  SpendAbortedError,
  SpendAlreadyCommittedError,
  SpendAlreadyFailedError,
  SpendDeniedError,
  SpendIdentityMissingError,
  SpendInDoubtError,
  SpendInProgressError,
  SpendMismatchError,
  SpendUnsupportedError,
  VendorUnreachableError,
} from "@holdfast/sdk";
import { type ProxyRefusal, RefusedRequest } from "./refusal.ts";

/** What a client is told, and what it means for a repeat of the request. */
export interface SdkRefusal {
  readonly refusal: ProxyRefusal;
  /** It is certain that nothing of this request was or will be sent: a repeat may differ from it. */
  readonly nothingSent: boolean;
}

/**
 * A refusal of the guard in words of HTTP. Statuses are chosen so that no vendor's client takes one for a decline (402),
 * and repeats by itself only where `retry` says so: a twin that still runs, and an outage in which nothing was sent.
 */
export function refusalOfSdk(error: HoldfastError): SdkRefusal {
  const { message } = error;
  const refused = (status: ProxyRefusal["status"], code: string): SdkRefusal => ({
    refusal: { status, code, message },
    nothingSent: true,
  });
  const again = (status: 409 | 503, code: string, nothingSent: boolean): SdkRefusal => ({
    refusal: { status, code, message, retry: true },
    nothingSent,
  });
  const unknown = (status: 409, code: string): SdkRefusal => ({
    refusal: { status, code, message },
    nothingSent: false,
  });
  if (error instanceof SpendDeniedError) return refused(...denied(error.denial.rule));
  if (error instanceof SpendMismatchError) {
    const refusal = refused(400, "idempotency_error");
    const bodyDiffers = error.differingFields.includes("body_fingerprint");
    return bodyDiffers ? { ...refusal, refusal: { ...refusal.refusal, message: otherParameters } } : refusal;
  }
  if (error instanceof SpendIdentityMissingError) return refused(400, "idempotency_key_required");
  if (error instanceof SpendUnsupportedError) return refused(403, "unsupported_request");
  if (error instanceof SpendInProgressError) return again(409, "idempotency_key_in_use", false);
  if (error instanceof SpendInDoubtError) return unknown(409, "spend_in_doubt");
  if (error instanceof SpendAlreadyCommittedError) return unknown(409, "spend_already_committed");
  if (error instanceof SpendAlreadyFailedError) return refused(409, "spend_already_failed");
  // The spend may be open from an earlier request, so what is known of it stays.
  if (error instanceof VendorUnreachableError) return again(503, "vendor_unreachable", false);
  if (error instanceof HoldfastUnavailableError) return again(503, "holdfast_unavailable", false);
  if (error instanceof HoldfastOverloadedError) return again(503, "holdfast_overloaded", false);
  if (error instanceof HoldfastClosedError || error instanceof SpendAbortedError) {
    return again(503, "holdfast_closing", false);
  }
  if (error instanceof HoldfastRefusedError) {
    return refused(error.reason === "INVALID_TOKEN" ? 401 : 403, error.reason.toLowerCase() || "refused");
  }
  return unknown(409, "spend_in_doubt");
}

const otherParameters =
  "The spend was asked for before with other parameters. Send the same ones, or name another spend.";

/** The key itself is dead: no other request with it would do better. */
const deadKeyRules: ReadonlySet<string> = new Set([
  "VAULT_KEY_REVOKED",
  "VAULT_KEY_EXPIRED",
  "VAULT_KEY_SUSPENDED",
  "KILL_SWITCH",
]);

function denied(rule: string): [ProxyRefusal["status"], string] {
  if (deadKeyRules.has(rule)) return [401, rule.toLowerCase()];
  if (rule === "CAP_HEADROOM" || rule === "MAX_PER_SPEND") return [403, "spend_cap_exceeded"];
  if (rule === "CURRENCY") return [403, "currency_not_allowed"];
  return [403, `${rule.toLowerCase()}_not_allowed`];
}

/** Why a request must not go on, for what is thrown while it is judged. Undefined where it was no refusal. */
export function refusalOfThrown(error: unknown): ProxyRefusal | undefined {
  return error instanceof RefusedRequest ? error.refusal : undefined;
}

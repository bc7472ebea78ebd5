import { type ErrorReasonName, HoldfastError } from "../domain/errors.ts";
import { formatMicros } from "../domain/money.ts";
import type { Authorization } from "../domain/spend.ts";
import type { Settled } from "../store/spend.ts";

/** How long a vendor object in a known, unfinished state is followed before it is in doubt: 7 days. */
export const followForMsDefault = 7 * 86_400_000;

/**
 * The authorization of a settling call that went through. Throws the refusal of one that did not; `stateNotAllowed` is
 * its message where the call is not possible in the authorization's state.
 */
export function requireSettled(
  result: Pick<Settled, "errorReason" | "authorization">,
  stateNotAllowed?: string,
): Authorization {
  const { errorReason, authorization } = result;
  if (errorReason === "STATE_NOT_ALLOWED" && stateNotAllowed !== undefined) {
    throw new HoldfastError(errorReason, stateNotAllowed, { metadata: metadataOf(authorization) });
  }
  if (errorReason !== undefined) throw refusal(errorReason, authorization);
  if (authorization === undefined) throw new Error("a settled call has no authorization");
  return authorization;
}

/** Why an operator's word has to wait, and for how long. */
export function midCall({ holdLeftMs = 0 }: Settled): string {
  const seconds = Math.ceil(holdLeftMs / 1000);
  return `An attempt is in the middle of its call to the vendor. Wait until it has ended, at most ${seconds} s, and resolve what is left.`;
}

function refusal(reason: ErrorReasonName, authorization: Authorization | undefined): HoldfastError {
  return new HoldfastError(reason, describe(reason, authorization), { metadata: metadataOf(authorization) });
}

function metadataOf(authorization: Authorization | undefined): Record<string, string> {
  if (authorization === undefined) return {};
  const { committed, vendorReference } = authorization;
  return {
    state: authorization.state,
    ...(vendorReference === undefined ? {} : { vendor_reference: vendorReference }),
    ...(committed === undefined ? {} : { amount: formatMicros(committed.micros), currency: committed.currency }),
  };
}

function describe(reason: ErrorReasonName, authorization: Authorization | undefined): string {
  switch (reason) {
    case "NOT_FOUND":
      return "There is no such authorization. Check the name that AuthorizeSpend answered.";
    case "OTHER_VAULT_KEY":
      return "The authorization was granted to another vault key. Use that key, or an operator's token.";
    case "ATTEMPT_SUPERSEDED":
      return "Another attempt holds the authorization now. Cancel what you created at the vendor and authorize again.";
    case "ALREADY_COMMITTED":
      return "The authorization is committed. The charge exists under the reference in the metadata.";
    case "ALREADY_VOIDED":
      return "The authorization is voided, for ever. A charge that is committed after all is kept as a contradiction.";
    case "COMMIT_CONTRADICTS":
      return "Another charge is recorded for this authorization. Yours has been kept as a contradiction; tell an operator.";
    case "REFERENCE_ALREADY_COMMITTED":
      return "This vendor reference settles another authorization. It has been kept as a contradiction; tell an operator.";
    case "EVIDENCE_INSUFFICIENT":
      return `The evidence does not prove that no charge exists. The authorization is ${authorization?.state ?? "open"} and keeps its headroom. Ask the vendor and commit or void by what it shows, or let an operator resolve it.`;
    case "REFERENCE_BOUND_ELSEWHERE":
      return "The vendor object belongs to another spend. Make no vendor call with it for this one, and void it as never sent. A commit with it is kept as a contradiction.";
    case "ALREADY_BOUND":
      return "Another vendor object is bound. Cancel yours and continue with the reference in the metadata.";
    case "STATE_NOT_ALLOWED":
      return `A one-call authorization is bound only together with its vendor_state; this one is ${authorization?.settlement ?? "another kind"}.`;
    default:
      return "The call is not possible in the authorization's present state.";
  }
}

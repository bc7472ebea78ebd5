import type { DecimalMoney } from "./money.ts";
import { networkCause } from "./network-cause.ts";
import type { SpendIdentity } from "./stable-key.ts";

/** What every error of this SDK may carry. */
export interface ErrorContext {
  readonly spend?: SpendIdentity | undefined;
  /** Resource name of the authorization, "authorizations/…". */
  readonly authorization?: string | undefined;
  readonly cause?: unknown;
}

function named(spend: SpendIdentity | undefined): string {
  return spend === undefined
    ? "the spend"
    : `the spend of customer ${spend.customerId}, period ${spend.billingPeriod}, purpose ${spend.purpose}`;
}

/** What the network said, in parentheses; empty if the cause is of another kind. */
function because({ cause }: ErrorContext): string {
  const said = networkCause(cause);
  return said === undefined ? "" : ` (${said})`;
}

/** Base of all errors that Holdfast makes. Match on the class or on `code`, never on the message. */
export abstract class HoldfastError extends Error {
  /** Stable, for example "holdfast_spend_denied". */
  abstract readonly code: string;
  readonly spend: SpendIdentity | undefined;
  readonly authorization: string | undefined;

  constructor(message: string, context: ErrorContext = {}) {
    super(message, context.cause === undefined ? undefined : { cause: context.cause });
    this.name = new.target.name;
    this.spend = context.spend;
    this.authorization = context.authorization;
  }
}

/**
 * The figures of a denial. Amounts are decimal strings; absent where the rule has no cap. A cap that counts spends has
 * the counts instead.
 */
export interface DenialFigures {
  /** The rule without its prefix, for example "CAP_HEADROOM" or "VAULT_KEY_REVOKED". */
  readonly rule: string;
  readonly explanation: string;
  readonly cap?: string | undefined;
  readonly limit?: DecimalMoney | undefined;
  readonly committed?: DecimalMoney | undefined;
  readonly held?: DecimalMoney | undefined;
  readonly headroom?: DecimalMoney | undefined;
  readonly shortBy?: DecimalMoney | undefined;
  readonly limitCount?: bigint | undefined;
  readonly committedCount?: bigint | undefined;
  readonly heldCount?: bigint | undefined;
  readonly headroomCount?: bigint | undefined;
  readonly shortByCount?: bigint | undefined;
  readonly window?: string | undefined;
  readonly windowStartTime?: Date | undefined;
  readonly windowEndTime?: Date | undefined;
}

/**
 * A rule says no. Nothing was charged by this call; a key's rules are judged before an earlier charge is looked up, so
 * whether an earlier call charged is not said. `denial` has the figures of the message.
 */
export class SpendDeniedError extends HoldfastError {
  readonly code = "holdfast_spend_denied";
  readonly denial: DenialFigures;

  constructor(denial: DenialFigures, context: ErrorContext) {
    super(
      `Denied ${named(context.spend)} (${denial.rule}): ${denial.explanation} ${figures(denial)}` +
        "Nothing was charged by this call; whether an earlier one charged is not said here.",
      context,
    );
    this.denial = denial;
  }
}

/** The figures of a cap in one sentence with a space behind it; empty where no cap denied. */
function figures(denial: DenialFigures): string {
  const { cap, window, windowEndTime } = denial;
  const named: readonly (readonly [string, DecimalMoney | undefined, bigint | undefined])[] = [
    ["limit", denial.limit, denial.limitCount],
    ["committed", denial.committed, denial.committedCount],
    ["held", denial.held, denial.heldCount],
    ["headroom", denial.headroom, denial.headroomCount],
    ["short by", denial.shortBy, denial.shortByCount],
  ];
  const parts = named.flatMap(([name, money, count]) => {
    if (money !== undefined) return [`${name} ${money.amount} ${money.currency}`];
    return count === undefined ? [] : [`${name} ${count} ${count === 1n ? "spend" : "spends"}`];
  });
  if (cap === undefined && parts.length === 0) return "";
  const ends = windowEndTime === undefined ? "" : `, which ends at ${windowEndTime.toISOString()}`;
  const when = window === undefined ? ends : ` in the window ${window}${ends}`;
  return `${cap ?? "The rule"}${parts.length === 0 ? "" : ` has ${parts.join(", ")}`}${when}. `;
}

/** Another attempt is at it, or the customer has to act. */
export class SpendInProgressError extends HoldfastError {
  readonly code = "holdfast_spend_in_progress";
  /** The vendor's object and its state, where they are known. */
  readonly vendorReference: string | undefined;
  readonly vendorState: string | undefined;

  constructor(context: ErrorContext & { vendorReference?: string | undefined; vendorState?: string | undefined }) {
    const state = context.vendorState
      ? `the vendor's object ${context.vendorReference} is in state ${context.vendorState}`
      : "another attempt holds it";
    super(
      `Not charged by this call: ${named(context.spend)} is in progress, ${state}. ` +
        "Whether it ends in a charge is not known yet. Call again later with the same spend; it cannot charge twice.",
      context,
    );
    this.vendorReference = context.vendorReference;
    this.vendorState = context.vendorState;
  }
}

/** Nobody knows whether the vendor charged. The headroom stays taken until that is known. */
export class SpendInDoubtError extends HoldfastError {
  readonly code = "holdfast_spend_in_doubt";
  readonly vendorReference: string | undefined;

  constructor(reason: string, context: ErrorContext & { vendorReference?: string | undefined }) {
    super(
      `The charge may exist: ${reason}${because(context)}. Do not charge ${named(context.spend)} in any other way. ` +
        "Call again with the same spend to continue it safely, or let Holdfast reconcile it.",
      context,
    );
    this.vendorReference = context.vendorReference;
  }
}

/** The spend exists with other values, or the vendor knows its key with another body. */
export class SpendMismatchError extends HoldfastError {
  readonly code = "holdfast_spend_mismatch";
  /** The fields that differ, for example "spend.amount.amount". */
  readonly differingFields: readonly string[];

  constructor(differingFields: readonly string[], context: ErrorContext) {
    super(
      `Not charged by this call: ${named(context.spend)} exists with other values of ${differingFields.join(", ")}. ` +
        "One spend has one amount; use another purpose for another charge, or repeat the call with the first values.",
      context,
    );
    this.differingFields = differingFields;
  }
}

/** The spend to pass for another try, as it is written in code. */
function retrySpend(generation: number, spend: SpendIdentity | undefined): string {
  const fields =
    spend === undefined
      ? "…"
      : Object.entries({
          customerId: spend.customerId,
          billingPeriod: spend.billingPeriod,
          purpose: spend.purpose,
        })
          .map(([name, value]) => `${name}: ${JSON.stringify(value)}`)
          .join(", ");
  return `spend: { ${fields}, retryAfterGeneration: ${generation} }`;
}

/** An earlier generation was proven not to have charged, and nobody asked for another try. */
export class SpendAlreadyFailedError extends HoldfastError {
  readonly code = "holdfast_spend_already_failed";
  /** Pass this as `retryAfterGeneration` to try again. 0 if another vault key was granted it: only that key learns it. */
  readonly retryAfterGeneration: number;

  constructor(retryAfterGeneration: number, context: ErrorContext) {
    super(
      retryAfterGeneration === 0
        ? `Not charged: the last try of ${named(context.spend)} failed for certain, under another vault key. ` +
            "To try again on purpose, use that key."
        : `Not charged: try ${retryAfterGeneration} of ${named(context.spend)} failed for certain. ` +
            `To try again on purpose, repeat the call with ${retrySpend(retryAfterGeneration, context.spend)}.`,
      context,
    );
    this.retryAfterGeneration = retryAfterGeneration;
  }
}

/** The spend was committed before, but the vendor's object cannot be given back. */
export class SpendAlreadyCommittedError extends HoldfastError {
  readonly code = "holdfast_spend_already_committed";
  /** Undefined if another vault key was granted the spend: its reference is shown to that key only. */
  readonly vendorReference: string | undefined;

  constructor(vendorReference: string | undefined, context: ErrorContext) {
    super(
      vendorReference === undefined
        ? `Charged before: ${named(context.spend)} is committed under another vault key. Do not charge again; ` +
            "read the charge with that key, or ask an operator."
        : `Charged before: ${named(context.spend)} is committed as ${vendorReference}, which could not be read just ` +
            "now. Do not charge again; read that object, or call again with the same spend.",
      context,
    );
    this.vendorReference = vendorReference;
  }
}

/** The vendor could not be reached and it is certain that this call charged nothing. */
export class VendorUnreachableError extends HoldfastError {
  readonly code = "holdfast_vendor_unreachable";

  constructor(what: string, context: ErrorContext) {
    super(
      `Not charged: ${what}${because(context)}. Call again with the same spend to continue ${named(context.spend)}.`,
      context,
    );
  }
}

/** The control plane did not answer in time. Without a grant nothing is sent to a vendor. */
export class HoldfastUnavailableError extends HoldfastError {
  readonly code = "holdfast_unavailable";

  constructor(what: string, context: ErrorContext) {
    super(
      `Not charged by this call: Holdfast did not answer ${what}. An earlier call may have charged; ` +
        "call again with the same spend when Holdfast is back.",
      context,
    );
  }
}

/** Too many spends of this process wait for the control plane. Nothing was sent. */
export class HoldfastOverloadedError extends HoldfastError {
  readonly code = "holdfast_overloaded";

  constructor(what: string, context: ErrorContext) {
    super(
      `Not charged by this call: ${what}, so it was not asked for. Limit how many spends run at the same time, or raise ` +
        "maxQueued; call again later with the same spend.",
      context,
    );
  }
}

/** The client was closed before the call was granted. Nothing was sent. */
export class HoldfastClosedError extends HoldfastError {
  readonly code = "holdfast_closed";

  constructor(context: ErrorContext = {}) {
    super(
      "Not charged by this call: this Holdfast client is closed. Call close() after the last spend only, or make a new " +
        "client with createHoldfast.",
      context,
    );
  }
}

/** The caller's AbortSignal was aborted; `cause` is its reason. */
export class SpendAbortedError extends HoldfastError {
  readonly code = "holdfast_spend_aborted";
  /**
   * False: the call had no grant, nothing was sent, and what may have been granted is given back. True: the vendor may
   * be charging just now; the call is carried through and settled in the background, also by `close()`.
   */
  readonly carriedThrough: boolean;

  constructor(carriedThrough: boolean, context: ErrorContext) {
    super(
      carriedThrough
        ? `Aborted after ${named(context.spend)} was granted: it may be charged just now, and is carried through in the ` +
            "background. Call again with the same spend to learn how it ended; it cannot charge twice."
        : `Not charged by this call: it was aborted before ${named(context.spend)} was granted. Call again with the ` +
            "same spend to charge.",
      context,
    );
    this.carriedThrough = carriedThrough;
  }
}

/** The control plane refused the request itself: a bad token, a malformed field, a state that does not allow it. */
export class HoldfastRefusedError extends HoldfastError {
  readonly code = "holdfast_refused";
  /** An ErrorReason without its prefix, for example "INVALID_TOKEN"; empty if the server gave none. */
  readonly reason: string;
  readonly metadata: Readonly<Record<string, string>>;

  constructor(
    reason: string,
    explanation: string,
    context: ErrorContext & { metadata?: Readonly<Record<string, string>> },
  ) {
    super(`Holdfast refused the request${reason === "" ? "" : ` (${reason})`}: ${explanation}`, context);
    this.reason = reason;
    this.metadata = context.metadata ?? {};
  }
}

/** This process may no longer act for the billing lease. */
export class LeaseLostError extends HoldfastError {
  readonly code = "holdfast_lease_lost";
  readonly lease: string;
  readonly billingPeriod: string;

  constructor(lease: string, billingPeriod: string, context: ErrorContext = {}) {
    super(
      `Not sent: the billing lease ${lease} of ${billingPeriod} is no longer surely held by this process, another may ` +
        "run the job now. Stop this run; what it was granted is settled or reconciled.",
      context,
    );
    this.lease = lease;
    this.billingPeriod = billingPeriod;
  }
}

/** A guarded request came without saying which spend it is. */
export class SpendIdentityMissingError extends HoldfastError {
  readonly code = "holdfast_spend_identity_missing";

  constructor(endpoint: string) {
    super(
      `Not sent: ${endpoint} moves money and needs a spend. Pass { spend: { customerId, billingPeriod, purpose } } as a ` +
        "request option, or wrap the call in holdfast.withSpend(identity, fn).",
    );
  }
}

/** The guard does not know how to make this write safe, so it is not sent. */
export class SpendUnsupportedError extends HoldfastError {
  readonly code = "holdfast_spend_unsupported";
  readonly endpoint: string;

  constructor(endpoint: string, why: string, remedy: string) {
    super(`Not sent: ${endpoint} ${why}. ${remedy}`);
    this.endpoint = endpoint;
  }
}

/**
 * Thrown by the callback of `holdfast.spend` to say that the vendor certainly did not charge. Without a status nothing
 * was sent at all; with one the vendor refused. Any other error leaves the spend in doubt.
 */
export class NotChargedError extends HoldfastError {
  readonly code = "holdfast_not_charged";
  readonly vendorStatus: number | undefined;

  constructor(options: ErrorContext & { message?: string; vendorStatus?: number } = {}) {
    super(options.message ?? "Not charged: the vendor was not called or refused.", options);
    this.vendorStatus = options.vendorStatus;
  }
}

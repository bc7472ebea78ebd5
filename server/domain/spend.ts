import { createHash } from "node:crypto";
import type { CapDraw, CapFigures } from "./cap.ts";
import { type ErrorReasonName, HoldfastError } from "./errors.ts";
import type { EngagedKillSwitch } from "./kill-switch.ts";
import type { Micros, Money } from "./money.ts";

export type Settlement = "TWO_STEP" | "RESEND_SAFE" | "SEND_ONCE";
/** Which way the money goes: charged or paid, or given back. */
export type Direction = "SPEND" | "REFUND";
export type AuthorizationState = "HELD" | "COMMITTED" | "VOIDED" | "IN_DOUBT";
export type VoidEvidence =
  | "NEVER_SENT"
  | "NOT_EXECUTED"
  | "VENDOR_REFUSED"
  | "TOMBSTONE"
  | "ABSENT_AFTER_QUARANTINE"
  | "OPERATOR"
  | "NEVER_BOUND";
/** What asking the vendor has found where it settles nothing. */
export type Finding = "OPEN" | "ABSENT" | "UNREADABLE" | "UNCLEAR";
export type ContradictionKind = "COMMIT_AFTER_VOID" | "OTHER_REFERENCE" | "OTHER_AMOUNT" | "REFERENCE_OF_ANOTHER_SPEND";
export type Disposition = "GRANTED" | "ALREADY_COMMITTED" | "ALREADY_FAILED" | "IN_PROGRESS" | "IN_DOUBT" | "DENIED";
export type DenialRule =
  | "CAP_HEADROOM"
  | "MAX_PER_SPEND"
  | "CURRENCY"
  | "VAULT_KEY_REVOKED"
  | "VAULT_KEY_SUSPENDED"
  | "VAULT_KEY_EXPIRED"
  | "VENDOR"
  | "ENDPOINT"
  | "BILLING_PERIOD"
  | "PURPOSE"
  | "CUSTOMER"
  | "BILLING_PERIOD_NOT_PINNED"
  | "FENCING_TOKEN"
  | "KILL_SWITCH";

/** Who asks for a change, as the audit names it. */
export interface Actor {
  readonly kind: "vault_key" | "operator" | "server";
  readonly id: string;
}

/** What names a spend for ever. Amounts, times, hosts and attempts are not part of it. */
export interface SpendIdentity {
  readonly customerId: string;
  readonly billingPeriod: string;
  readonly purpose: string;
}

/** The key of one generation of a spend. */
export interface AuthorizationId {
  /** The stable key of generation 1. */
  readonly spendKey: string;
  readonly generation: number;
}

export interface LeaseFence {
  readonly lease: string;
  readonly billingPeriod: string;
  readonly holderId: string;
  readonly fencingToken: bigint;
}

export interface AuthorizeCommand {
  readonly vaultKeyId: string;
  readonly spend: SpendIdentity;
  readonly amount: Money;
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly endpoint: string;
  readonly direction: Direction;
  /** The vendor reference of the charge that a REFUND gives back of, or empty. */
  readonly refundOf: string;
  readonly settlement: Settlement;
  readonly resendSafeForMs: number | undefined;
  readonly holdForMs: number;
  readonly attemptId: string;
  readonly bodyFingerprint: string;
  readonly credentialFingerprint: string;
  /** A spend that is committed or bound is not answered for another body. */
  readonly sameBodyRequired: boolean;
  readonly retryAfterGeneration: number;
  /** The bound object that the caller has read and goes on with, or empty. */
  readonly continueVendorReference: string;
  readonly fence: LeaseFence | undefined;
  readonly traceId: string;
}

export interface CommitCommand {
  readonly actor: Actor;
  readonly authorization: AuthorizationId;
  readonly amount: Money;
  readonly vendorReference: string;
  readonly attemptId: string;
  readonly traceId: string;
  /** An operator's reason: then it is refused while an attempt is in the middle of its call. */
  readonly resolution?: string;
}

export interface IncreaseCommand {
  readonly vaultKeyId: string;
  readonly authorization: AuthorizationId;
  /** The new total. */
  readonly amount: Money;
  /** Empty where a bound object is changed without an attempt. */
  readonly attemptId: string;
  readonly fence: LeaseFence | undefined;
  readonly traceId: string;
}

/** An authorization as it is stored. Times are microseconds since 1970 on the database clock. */
export interface Authorization extends AuthorizationId {
  readonly spend: SpendIdentity;
  /** What repeats are compared with. */
  readonly amount: Money;
  /** What is held, in the currency of `amount`: that, or more after an increase. */
  readonly held: Micros;
  readonly idempotencyKey: string;
  readonly vaultKeyId: string;
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly endpoint: string;
  readonly direction: Direction;
  readonly refundOf: string;
  readonly settlement: Settlement;
  readonly state: AuthorizationState;
  readonly grantTime: bigint;
  readonly holdExpireTime: bigint;
  readonly vendorReference: string | undefined;
  readonly vendorState: string;
  readonly followUntilTime: bigint | undefined;
  readonly committed: Money | undefined;
  /** What later refunds gave back, in the currency of `committed`. Undefined until committed. */
  readonly refunded: Money | undefined;
  readonly commitTime: bigint | undefined;
  readonly voidEvidence: VoidEvidence | undefined;
  readonly voidReason: string | undefined;
  readonly voidTime: bigint | undefined;
  /** Since when the outcome is unknown; also, where it is listed as in doubt, what only the clock has decided yet. */
  readonly inDoubtTime: bigint | undefined;
  readonly reconciliation: Reconciliation | undefined;
  readonly traceId: string;
}

/** What asking the vendor has found so far. Times are microseconds since 1970. */
export interface Reconciliation {
  readonly finding: Finding;
  readonly lastTime: bigint;
  readonly count: number;
  /** Undefined once it is settled. */
  readonly nextTime: bigint | undefined;
  readonly absentSinceTime: bigint | undefined;
  readonly note: string;
}

/** A look at the vendor that has shown nothing. */
export interface Look {
  /** When what was looked for was listed, in microseconds since 1970 on the database clock: the look began later. */
  readonly time: bigint;
  /** The account that was looked at, "acct_…" or with its mode "acct_…/live"; empty if it is not known. */
  readonly account: string;
}

/** A charge that the state of its authorization does not allow. */
export interface Contradiction {
  readonly contradictionId: string;
  readonly kind: ContradictionKind;
  readonly authorization: AuthorizationId;
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly vendorReference: string;
  readonly amount: Money;
  /** What of it counts as committed, in the currency of `amount`. */
  readonly counted: Micros;
  readonly attemptId: string;
  readonly createTime: bigint;
  readonly closeTime: bigint | undefined;
  readonly closeReason: string | undefined;
}

/** The answer to one AuthorizeCommand, or the reason why it is refused. */
export interface AuthorizeDecision {
  readonly disposition: Disposition | undefined;
  readonly errorReason: "SPEND_MISMATCH" | "GENERATION_NOT_FOUND" | undefined;
  readonly differingFields: readonly string[];
  readonly mayHaveBeenSent: boolean;
  readonly retryAfterMs: number | undefined;
  readonly failedGeneration: number | undefined;
  readonly rule: DenialRule | undefined;
  readonly cap: CapFigures | undefined;
  /** With rule KILL_SWITCH. */
  readonly killSwitch: EngagedKillSwitch | undefined;
  /** Of a rehearsal whose caps were judged: every cap that the spend draws on, by id. */
  readonly draws: readonly CapDraw[];
  /** Absent where there is none or it belongs to another vault key. */
  readonly authorization: Authorization | undefined;
}

/** The answer to one IncreaseCommand, or the reason why it is refused. */
export interface IncreaseDecision {
  readonly errorReason: ErrorReasonName | undefined;
  /** Absent where it is granted. */
  readonly rule: DenialRule | undefined;
  readonly cap: CapFigures | undefined;
  /** With rule KILL_SWITCH. */
  readonly killSwitch: EngagedKillSwitch | undefined;
  /** As it is now. Absent where there is none or it belongs to another vault key. */
  readonly authorization: Authorization | undefined;
}

/**
 * The idempotency key of a spend's generation: the first 32 hex digits of SHA-256 over
 * `customer:period:purpose`, from generation 2 on followed by a line feed and `g<n>`.
 */
export function stableKey(spend: SpendIdentity, generation = 1): string {
  const suffix = generation === 1 ? "" : `\ng${generation}`;
  const text = `${spend.customerId}:${spend.billingPeriod}:${spend.purpose}${suffix}`;
  return createHash("sha256").update(text, "utf8").digest("hex").slice(0, 32);
}

/**
 * What a spend is found by: four hex digits of its billing period, then the stable key of generation 1, 36 in all. Spends of
 * one period lie together in every index that begins with it, so that old periods cost a new spend nothing.
 */
export function spendKeyOf(spend: SpendIdentity): string {
  return createHash("sha256").update(spend.billingPeriod, "utf8").digest("hex").slice(0, 4) + stableKey(spend);
}

const authorizationName = /^authorizations\/([0-9a-f]{36})-([1-9][0-9]{0,6})$/;

/** The resource name of an authorization. */
export function formatAuthorizationName(id: AuthorizationId): string {
  return `authorizations/${id.spendKey}-${id.generation}`;
}

/** Reads a resource name. Throws INVALID_FIELD. */
export function parseAuthorizationName(name: string, field: string): AuthorizationId {
  const match = authorizationName.exec(name);
  if (match === null) {
    throw new HoldfastError(
      "INVALID_FIELD",
      `${field}: must be a name that AuthorizeSpend has answered, for example "authorizations/05e0…29f5-1".`,
      { metadata: { field } },
    );
  }
  return { spendKey: match[1] as string, generation: Number(match[2]) };
}

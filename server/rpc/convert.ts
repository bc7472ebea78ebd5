import { create } from "@bufbuild/protobuf";
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { type Money as MoneyMessage, MoneySchema } from "@holdfast/api/holdfast/v1/money_pb";
import {
  AuthorizationSchema,
  AuthorizationState,
  type Authorization as AuthorizationMessage,
  DenialRule,
  Direction,
  Disposition,
  type LeaseFence,
  type Reconciliation as ReconciliationMessage,
  ReconciliationFinding,
  ReconciliationSchema,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import { invalidField } from "../domain/errors.ts";
import { formatMicros, type Money, parseAmount } from "../domain/money.ts";
import type * as domain from "../domain/spend.ts";
import { formatAuthorizationName } from "../domain/spend.ts";

const stateOf = {
  HELD: AuthorizationState.HELD,
  COMMITTED: AuthorizationState.COMMITTED,
  VOIDED: AuthorizationState.VOIDED,
  IN_DOUBT: AuthorizationState.IN_DOUBT,
} as const satisfies Record<domain.AuthorizationState, AuthorizationState>;

const settlementOf = {
  TWO_STEP: Settlement.TWO_STEP,
  RESEND_SAFE: Settlement.RESEND_SAFE,
  SEND_ONCE: Settlement.SEND_ONCE,
} as const satisfies Record<domain.Settlement, Settlement>;

export const directionOf = {
  SPEND: Direction.SPEND,
  REFUND: Direction.REFUND,
} as const satisfies Record<domain.Direction, Direction>;

const evidenceOf = {
  NEVER_SENT: VoidEvidence.NEVER_SENT,
  NOT_EXECUTED: VoidEvidence.NOT_EXECUTED,
  VENDOR_REFUSED: VoidEvidence.VENDOR_REFUSED,
  TOMBSTONE: VoidEvidence.TOMBSTONE,
  ABSENT_AFTER_QUARANTINE: VoidEvidence.ABSENT_AFTER_QUARANTINE,
  OPERATOR: VoidEvidence.OPERATOR,
  NEVER_BOUND: VoidEvidence.NEVER_BOUND,
} as const satisfies Record<domain.VoidEvidence, VoidEvidence>;

const findingOf = {
  OPEN: ReconciliationFinding.OPEN,
  ABSENT: ReconciliationFinding.ABSENT,
  UNREADABLE: ReconciliationFinding.UNREADABLE,
  UNCLEAR: ReconciliationFinding.UNCLEAR,
} as const satisfies Record<domain.Finding, ReconciliationFinding>;

export const dispositionOf = {
  GRANTED: Disposition.GRANTED,
  ALREADY_COMMITTED: Disposition.ALREADY_COMMITTED,
  ALREADY_FAILED: Disposition.ALREADY_FAILED,
  IN_PROGRESS: Disposition.IN_PROGRESS,
  IN_DOUBT: Disposition.IN_DOUBT,
  DENIED: Disposition.DENIED,
} as const satisfies Record<domain.Disposition, Disposition>;

export const denialRuleOf = {
  CAP_HEADROOM: DenialRule.CAP_HEADROOM,
  MAX_PER_SPEND: DenialRule.MAX_PER_SPEND,
  CURRENCY: DenialRule.CURRENCY,
  VAULT_KEY_REVOKED: DenialRule.VAULT_KEY_REVOKED,
  VAULT_KEY_SUSPENDED: DenialRule.VAULT_KEY_SUSPENDED,
  VAULT_KEY_EXPIRED: DenialRule.VAULT_KEY_EXPIRED,
  VENDOR: DenialRule.VENDOR,
  ENDPOINT: DenialRule.ENDPOINT,
  BILLING_PERIOD: DenialRule.BILLING_PERIOD,
  PURPOSE: DenialRule.PURPOSE,
  CUSTOMER: DenialRule.CUSTOMER,
  BILLING_PERIOD_NOT_PINNED: DenialRule.BILLING_PERIOD_NOT_PINNED,
  FENCING_TOKEN: DenialRule.FENCING_TOKEN,
  KILL_SWITCH: DenialRule.KILL_SWITCH,
} as const satisfies Record<domain.DenialRule, DenialRule>;

/** An unspecified settlement is the most careful one. */
export function settlementFrom(value: Settlement): domain.Settlement {
  return keyOf(settlementOf, value) ?? "SEND_ONCE";
}

/** Money that nobody called a refund is spent. */
export function directionFrom(value: Direction): domain.Direction {
  return keyOf(directionOf, value) ?? "SPEND";
}

export function evidenceFrom(value: VoidEvidence): domain.VoidEvidence {
  const evidence = keyOf(evidenceOf, value);
  if (evidence === undefined) throw invalidField("evidence", "must be set: say what proves that no charge exists.");
  return evidence;
}

export function findingFrom(value: ReconciliationFinding): domain.Finding {
  const finding = keyOf(findingOf, value);
  if (finding === undefined) throw invalidField("finding", "must be set: say what asking the vendor has found.");
  return finding;
}

export function stateFrom(value: AuthorizationState): domain.AuthorizationState {
  const state = keyOf(stateOf, value);
  if (state === undefined) throw invalidField("states", "must be HELD, COMMITTED, VOIDED or IN_DOUBT.");
  return state;
}

/** Reads an amount. `field` is the path for errors. */
export function moneyFrom(message: MoneyMessage | undefined, field: string, allowZero: boolean): Money {
  if (message === undefined) throw invalidField(field, "is required.");
  return parseAmount(message.currency, message.amount, field, allowZero);
}

export function moneyMessage(money: { readonly currency: string; readonly micros: bigint }): MoneyMessage {
  return create(MoneySchema, { currency: money.currency, amount: formatMicros(money.micros) });
}

/** Microseconds since 1970 to a Timestamp, exactly. */
export function timestampMessage(micros: bigint): Timestamp {
  const seconds = micros >= 0n ? micros / 1_000_000n : -((-micros + 999_999n) / 1_000_000n);
  return create(TimestampSchema, { seconds, nanos: Number(micros - seconds * 1_000_000n) * 1000 });
}

/** Microseconds, zero or more, to a Duration, exactly. */
export function durationMessage(micros: bigint): Duration {
  return create(DurationSchema, { seconds: micros / 1_000_000n, nanos: Number(micros % 1_000_000n) * 1000 });
}

// The years 1 to 9999. JSON cannot say another instant; the binary format can.
const timestampSeconds = { min: -62_135_596_800n, max: 253_402_300_799n } as const;

/** A Timestamp in microseconds since 1970; digits below are cut. Throws INVALID_FIELD for one that is malformed. */
export function microsFrom(timestamp: Timestamp, field: string): bigint {
  const { seconds, nanos } = timestamp;
  if (seconds < timestampSeconds.min || seconds > timestampSeconds.max || nanos < 0 || nanos > 999_999_999) {
    throw invalidField(field, "must be an instant of the years 1 to 9999.");
  }
  return seconds * 1_000_000n + BigInt(Math.trunc(nanos / 1000));
}

/**
 * A positive Duration in whole milliseconds, rounded up so that nothing positive becomes nothing. Throws INVALID_FIELD
 * for nanoseconds that are no fraction of a second: the limits of the contract compare the seconds first.
 */
export function millisecondsFrom(duration: Duration, field: string): number {
  const { seconds, nanos } = duration;
  if (nanos < 0 || nanos > 999_999_999) throw invalidField(field, "must have nanoseconds from 0 to 999,999,999.");
  return Number(seconds) * 1000 + Math.ceil(nanos / 1_000_000);
}

export function authorizationMessage(authorization: domain.Authorization): AuthorizationMessage {
  const optional = {
    ...(authorization.followUntilTime === undefined
      ? {}
      : { followUntilTime: timestampMessage(authorization.followUntilTime) }),
    ...(authorization.committed === undefined ? {} : { committedAmount: moneyMessage(authorization.committed) }),
    ...(authorization.refunded === undefined ? {} : { refundedAmount: moneyMessage(authorization.refunded) }),
    ...(authorization.commitTime === undefined ? {} : { commitTime: timestampMessage(authorization.commitTime) }),
    ...(authorization.voidEvidence === undefined ? {} : { voidEvidence: evidenceOf[authorization.voidEvidence] }),
    ...(authorization.voidTime === undefined ? {} : { voidTime: timestampMessage(authorization.voidTime) }),
    ...(authorization.inDoubtTime === undefined ? {} : { inDoubtTime: timestampMessage(authorization.inDoubtTime) }),
    ...(authorization.reconciliation === undefined
      ? {}
      : { reconciliation: reconciliationMessage(authorization.reconciliation) }),
  };
  return create(AuthorizationSchema, {
    name: formatAuthorizationName(authorization),
    spend: { ...authorization.spend, amount: moneyMessage(authorization.amount) },
    heldAmount: moneyMessage({ currency: authorization.amount.currency, micros: authorization.held }),
    state: stateOf[authorization.state],
    generation: authorization.generation,
    idempotencyKey: authorization.idempotencyKey,
    vaultKey: `vaultKeys/${authorization.vaultKeyId}`,
    vendor: authorization.vendor,
    vendorAccount: authorization.vendorAccount,
    endpoint: authorization.endpoint,
    direction: directionOf[authorization.direction],
    refundOf: authorization.refundOf,
    settlement: settlementOf[authorization.settlement],
    grantTime: timestampMessage(authorization.grantTime),
    holdExpireTime: timestampMessage(authorization.holdExpireTime),
    vendorReference: authorization.vendorReference ?? "",
    vendorState: authorization.vendorState,
    voidReason: authorization.voidReason ?? "",
    traceId: authorization.traceId,
    ...optional,
  });
}

function reconciliationMessage(reconciliation: domain.Reconciliation): ReconciliationMessage {
  const { nextTime, absentSinceTime } = reconciliation;
  return create(ReconciliationSchema, {
    finding: findingOf[reconciliation.finding],
    lastTime: timestampMessage(reconciliation.lastTime),
    count: reconciliation.count,
    note: reconciliation.note,
    ...(nextTime === undefined ? {} : { nextTime: timestampMessage(nextTime) }),
    ...(absentSinceTime === undefined ? {} : { absentSinceTime: timestampMessage(absentSinceTime) }),
  });
}

export function leaseFenceFrom({ lease, billingPeriod, holderId, fencingToken }: LeaseFence): domain.LeaseFence {
  return { lease, billingPeriod, holderId, fencingToken };
}

function keyOf<Key extends string, Value>(table: Readonly<Record<Key, Value>>, value: Value): Key | undefined {
  return (Object.keys(table) as Key[]).find((key) => table[key] === value);
}

import { toMicros } from "../domain/money.ts";
import type {
  Authorization,
  AuthorizationState,
  Direction,
  Finding,
  Reconciliation,
  Settlement,
  VoidEvidence,
} from "../domain/spend.ts";

/** A row of `authorizationColumns`. int8 arrives as bigint, times as microseconds since 1970. */
export interface AuthorizationRow {
  readonly spend_key: string | null;
  readonly generation: number;
  readonly customer_id: string;
  readonly billing_period: string;
  readonly purpose: string;
  readonly idempotency_key: string;
  readonly vault_key_id: string;
  readonly vendor: string;
  readonly vendor_account: string;
  readonly endpoint: string;
  readonly currency: string;
  readonly amount_micros: bigint;
  readonly held_micros: bigint;
  readonly direction: string;
  readonly refund_of: string;
  readonly settlement: string;
  readonly state: string;
  readonly grant_time: bigint;
  readonly hold_expire_time: bigint;
  readonly vendor_reference: string | null;
  readonly vendor_state: string;
  readonly follow_until_time: bigint | null;
  readonly committed_micros: bigint | null;
  readonly committed_currency: string | null;
  readonly refunded_micros: bigint;
  readonly commit_time: bigint | null;
  readonly void_evidence: string | null;
  readonly void_reason: string | null;
  readonly void_time: bigint | null;
  readonly in_doubt_time: bigint | null;
  readonly reconciliation_finding: string | null;
  readonly reconciliation_count: number;
  readonly reconciliation_note: string;
  readonly reconciliation_time: bigint | null;
  readonly reconciliation_next_time: bigint | null;
  readonly absent_since_time: bigint | null;
  readonly trace_id: string;
}

const plain = [
  "spend_key",
  "generation",
  "customer_id",
  "billing_period",
  "purpose",
  "idempotency_key",
  "vault_key_id",
  "vendor",
  "vendor_account",
  "endpoint",
  "currency",
  "direction",
  "refund_of",
  "settlement",
  "state",
  "vendor_reference",
  "vendor_state",
  "committed_currency",
  "void_evidence",
  "void_reason",
  "reconciliation_finding",
  "reconciliation_count",
  "reconciliation_note",
  "trace_id",
] as const;
const amounts = ["amount_micros", "held_micros", "committed_micros", "refunded_micros"] as const;
const times = [
  "grant_time",
  "hold_expire_time",
  "follow_until_time",
  "commit_time",
  "void_time",
  "in_doubt_time",
  "reconciliation_time",
  "reconciliation_next_time",
  "absent_since_time",
] as const;

/** The select list of an authorization; `row` is a table alias or a composite in parentheses. */
export function authorizationColumns(row: string): string {
  return [
    ...[...plain, ...amounts].map((column) => `${row}.${column}`),
    ...times.map((column) => `${epochMicros(`${row}.${column}`)} as ${column}`),
  ].join(", ");
}

/** The same in one column of JSON: less to send and to read where most rows of an answer have none. */
export function authorizationJson(row: string): string {
  const columns = [
    ...plain.map((column) => `${row}.${column}`),
    ...amounts.map((column) => `${row}.${column}::text`),
    ...times.map((column) => `${epochMicros(`${row}.${column}`)}::text as ${column}`),
  ];
  return `(select to_json(one)::text from (select ${columns.join(", ")}) as one)`;
}

/** Reads what `authorizationJson` gives. */
export function readAuthorizationJson(json: string): Authorization | undefined {
  const row = JSON.parse(json) as Record<string, unknown>;
  for (const column of [...amounts, ...times]) {
    const value = row[column];
    if (typeof value === "string") row[column] = BigInt(value);
  }
  return readAuthorization(row as unknown as AuthorizationRow);
}

/**
 * A timestamptz as microseconds since 1970: exact, where a JavaScript Date would lose three digits. Of the difference,
 * since to Postgres only that is immutable, and a sharded database has RETURNING answer nothing else.
 */
export function epochMicros(expression: string): string {
  return `(extract(epoch from ${expression} - timestamptz 'epoch') * 1000000)::bigint`;
}

/** The way back, of a parameter. */
export function timeOf(parameter: string): string {
  return `timestamptz 'epoch' + ${parameter}::bigint * interval '1 microsecond'`;
}

/** An interval, of whole milliseconds. */
export function milliseconds(ms: number): string {
  return `${ms} milliseconds`;
}

/** Reads a row; undefined for the null row of an outer join. */
export function readAuthorization(row: AuthorizationRow): Authorization | undefined {
  if (row.spend_key === null) return undefined;
  return {
    spendKey: row.spend_key,
    generation: row.generation,
    spend: { customerId: row.customer_id, billingPeriod: row.billing_period, purpose: row.purpose },
    amount: { currency: row.currency, micros: toMicros(row.amount_micros) },
    held: toMicros(row.held_micros),
    idempotencyKey: row.idempotency_key,
    vaultKeyId: row.vault_key_id,
    vendor: row.vendor,
    vendorAccount: row.vendor_account,
    endpoint: row.endpoint,
    direction: row.direction as Direction,
    refundOf: row.refund_of,
    settlement: row.settlement as Settlement,
    state: row.state as AuthorizationState,
    grantTime: row.grant_time,
    holdExpireTime: row.hold_expire_time,
    vendorReference: row.vendor_reference ?? undefined,
    vendorState: row.vendor_state,
    followUntilTime: row.follow_until_time ?? undefined,
    committed:
      row.committed_micros === null || row.committed_currency === null
        ? undefined
        : { currency: row.committed_currency, micros: toMicros(row.committed_micros) },
    refunded:
      row.committed_currency === null
        ? undefined
        : { currency: row.committed_currency, micros: toMicros(row.refunded_micros) },
    commitTime: row.commit_time ?? undefined,
    voidEvidence: (row.void_evidence as VoidEvidence | null) ?? undefined,
    voidReason: row.void_reason ?? undefined,
    voidTime: row.void_time ?? undefined,
    inDoubtTime: row.in_doubt_time ?? undefined,
    reconciliation: readReconciliation(row),
    traceId: row.trace_id,
  };
}

function readReconciliation(row: AuthorizationRow): Reconciliation | undefined {
  if (row.reconciliation_finding === null || row.reconciliation_time === null) return undefined;
  const isSettled = row.state === "COMMITTED" || row.state === "VOIDED";
  return {
    finding: row.reconciliation_finding as Finding,
    lastTime: row.reconciliation_time,
    count: row.reconciliation_count,
    nextTime: isSettled ? undefined : (row.reconciliation_next_time ?? undefined),
    absentSinceTime: row.absent_since_time ?? undefined,
    note: row.reconciliation_note,
  };
}

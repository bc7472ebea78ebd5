import { type Generation, idempotencyKey } from "../property/model-world.ts";

export const noCap = {
  cap_id: null,
  window_label: null,
  window_start: null,
  window_end: null,
  cap_limit: 0n,
  cap_committed: 0n,
  cap_held: 0n,
  cap_currency: "",
} as const;

const micros = (ms: number): bigint => BigInt(Math.round(ms)) * 1000n;
const microsOrNull = (ms: number | null | undefined): bigint | null =>
  ms === null || ms === undefined ? null : micros(ms);

/** A generation as the columns of an authorization. */
export function authorizationRow(one: Generation, spendKey: string): Record<string, unknown> {
  const { asked } = one;
  return {
    spend_key: spendKey,
    generation: one.generation,
    customer_id: one.customer,
    billing_period: one.period,
    purpose: one.purpose,
    idempotency_key: idempotencyKey(one, one.generation),
    vault_key_id: one.key,
    vendor: one.vendor,
    vendor_account: one.vendorAccount,
    endpoint: one.endpoint,
    currency: one.currency,
    amount_micros: one.amount,
    held_micros: one.held,
    direction: one.direction,
    refund_of: one.refundOf,
    settlement: one.settlement,
    state: one.state,
    grant_time: micros(one.grantTime),
    hold_expire_time: micros(one.holdExpireTime),
    vendor_reference: one.reference,
    vendor_state: one.vendorState,
    follow_until_time: microsOrNull(one.followUntil),
    committed_micros: one.committed,
    committed_currency: one.committed === null ? null : one.currency,
    refunded_micros: one.refunded,
    commit_time: null,
    void_evidence: one.evidence,
    void_reason: null,
    void_time: null,
    in_doubt_time: microsOrNull(one.inDoubtSince),
    reconciliation_finding: asked?.finding ?? null,
    reconciliation_count: asked?.count ?? 0,
    reconciliation_note: "",
    reconciliation_time: microsOrNull(asked?.lastTime),
    reconciliation_next_time: null,
    absent_since_time: microsOrNull(asked?.absentSince),
    trace_id: "",
  };
}

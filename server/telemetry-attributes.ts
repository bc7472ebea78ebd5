/**
 * The name of every `holdfast.*` attribute, so that a dashboard and a span never disagree. Values are ids, counts
 * and words of the contract. Tokens, secrets and vendor credentials have no attribute and get none.
 */
export const attribute = {
  workspace: "holdfast.workspace",
  vaultKey: "holdfast.vault_key",
  role: "holdfast.role",
  errorReason: "holdfast.error_reason",
  /** "authorize" or "commit". */
  batch: "holdfast.batch.name",
  batchSize: "holdfast.batch.size",
  poolMistake: "holdfast.pool.mistake",
  vendor: "holdfast.vendor",
  vendorEndpoint: "holdfast.vendor_endpoint",
  outcome: "holdfast.outcome",
  disposition: "holdfast.disposition",
  denialRule: "holdfast.denial_rule",
  cap: "holdfast.cap",
  /** Lower-case; empty for a cap that counts spends. */
  currency: "holdfast.currency",
  leaseState: "holdfast.lease.state",
  /** "2xx" to "5xx". */
  statusClass: "holdfast.status_class",
  /** "traces" or "metrics". */
  signal: "holdfast.signal",
  /** Why a request of the proxy was refused, as the audit has it; why telemetry was dropped, why a cap is not shown. */
  reason: "holdfast.reason",
  requestId: "holdfast.request_id",
} as const;

/**
 * The name of every `holdfast.*` attribute, so that a dashboard and a span never disagree. Values are ids, counts
 * and words of the contract. Tokens, secrets and vendor credentials have no attribute and get none.
 */
export const attribute = {
  workspace: "holdfast.workspace",
  vaultKey: "holdfast.vault_key",
  role: "holdfast.role",
  errorReason: "holdfast.error_reason",
  batchSize: "holdfast.batch.size",
  poolMistake: "holdfast.pool.mistake",
  vendor: "holdfast.vendor",
  vendorEndpoint: "holdfast.vendor_endpoint",
  outcome: "holdfast.outcome",
  disposition: "holdfast.disposition",
  /** Why a request of the proxy was refused, as the audit has it. */
  reason: "holdfast.reason",
  requestId: "holdfast.request_id",
} as const;

/** The name of every metric. */
export const metric = {
  inDoubt: "holdfast.in_doubt.count",
  inDoubtOldestAge: "holdfast.in_doubt.oldest_age",
  openContradictions: "holdfast.contradictions.open",
  reconcileLag: "holdfast.reconcile.lag",
  reconcilerReads: "holdfast.reconciler.reads",
  reconcilerSettlements: "holdfast.reconciler.settlements",
  overCommits: "holdfast.over_commits",
} as const;

/**
 * The name of every `holdfast.*` attribute, so that a dashboard and a span never disagree. Values are ids, counts
 * and words of the contract. Tokens, secrets and vendor credentials have no attribute and get none.
 */
export const attribute = {
  workspace: "holdfast.workspace",
  vaultKey: "holdfast.vault_key",
  role: "holdfast.role",
  authorization: "holdfast.authorization",
  generation: "holdfast.generation",
  attemptId: "holdfast.attempt_id",
  customerId: "holdfast.customer_id",
  billingPeriod: "holdfast.billing_period",
  purpose: "holdfast.purpose",
  vendor: "holdfast.vendor",
  endpoint: "holdfast.endpoint",
  amount: "holdfast.amount",
  currency: "holdfast.currency",
  disposition: "holdfast.disposition",
  denialRule: "holdfast.denial_rule",
  errorReason: "holdfast.error_reason",
  cap: "holdfast.cap",
  lease: "holdfast.lease",
  fencingToken: "holdfast.fencing_token",
  batchSize: "holdfast.batch.size",
  batchAgeMs: "holdfast.batch.age_ms",
} as const;

export type AttributeName = (typeof attribute)[keyof typeof attribute];

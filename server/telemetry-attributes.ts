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
} as const;

/**
 * What a failed statement means for the caller.
 * - `unavailable`: nothing was changed; the same request may be sent again later.
 * - `outcome_unknown`: the statement may have been committed; only reading it back tells.
 * - `retryable`: rolled back because of other transactions; run the transaction again now.
 * - `request`: the data of this one request were refused; its neighbours in a batch are not to blame.
 * - `bug`: anything else.
 */
export type DatabaseErrorClass = "unavailable" | "outcome_unknown" | "retryable" | "request" | "bug";

/** No statement was sent, or the transaction it belonged to was never asked to commit. */
export class DatabaseUnavailableError extends Error {
  override readonly name = "DatabaseUnavailableError";
}

/** The connection, or the promise of durability, was lost after a statement had been sent. */
export class DatabaseOutcomeUnknownError extends Error {
  override readonly name = "DatabaseOutcomeUnknownError";
}

const bySqlState: ReadonlyMap<string, DatabaseErrorClass> = new Map([
  ["40001", "retryable"],
  ["40P01", "retryable"],
  ["40003", "outcome_unknown"],
  // The server refused or never made the connection, so no statement ran.
  ["08001", "unavailable"],
  ["08004", "unavailable"],
  ["57P03", "unavailable"],
  ["3D000", "unavailable"],
  // A cancelled statement is rolled back. (A cancelled wait for a standby is no error but a warning; the pool
  // turns that one into DatabaseOutcomeUnknownError.)
  ["57014", "unavailable"],
  ["55P03", "unavailable"],
  ["25006", "unavailable"],
  ["25P03", "unavailable"],
  ["25P04", "unavailable"],
  ["58030", "unavailable"],
]);

// PgBouncer reports a server connection that died under a statement as 08P01, like a true protocol error.
const bySqlStateClass: ReadonlyMap<string, DatabaseErrorClass> = new Map([
  ["08", "outcome_unknown"],
  ["57", "outcome_unknown"],
  ["53", "unavailable"],
  ["28", "unavailable"],
  ["22", "request"],
  ["23", "request"],
]);

const lostSockets = new Set(["ECONNRESET", "EPIPE", "ETIMEDOUT", "ECONNABORTED"]);
const unreachable = new Set([
  "ECONNREFUSED",
  "ENOENT",
  "EACCES",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
]);

/** The SQLSTATE of an error that the database itself reported. */
export function sqlStateOf(error: unknown): string | undefined {
  const candidate = error as { readonly code?: unknown; readonly severity?: unknown } | null | undefined;
  const { code, severity } = candidate ?? {};
  return typeof code === "string" && code.length === 5 && typeof severity === "string" ? code : undefined;
}

/** Raised by `holdfast.where_granting` in a database that has to be recovered first. */
export function requiresRecovery(error: unknown): boolean {
  return sqlStateOf(error) === "HF001";
}

/** Raised by `holdfast.actor_in_force` for an operator who was revoked after the call was let in. */
export function isRevokedActor(error: unknown): boolean {
  return sqlStateOf(error) === "HF002";
}

/** No room on the disk for what a statement would have written; the server goes on answering what writes nothing. */
export function isStorageFull(error: unknown): boolean {
  return sqlStateOf(error) === "53100";
}

/** Somebody else kept a lock for longer than a statement may wait. */
export function isLockTimeout(error: unknown): boolean {
  return sqlStateOf(error) === "55P03";
}

/** The database closes the connection right after this error. Not by severity: that one is in its language. */
export function endsConnection(error: unknown): boolean {
  return /^(57P0[1-5]|25P0[34]|08)/.test(sqlStateOf(error) ?? "");
}

/** The meaning of an error that a pool of `createPool` threw, from its class, SQLSTATE or socket error. */
export function classifyDatabaseError(error: unknown): DatabaseErrorClass {
  if (error instanceof DatabaseUnavailableError) return "unavailable";
  if (error instanceof DatabaseOutcomeUnknownError) return "outcome_unknown";
  const state = sqlStateOf(error);
  if (state !== undefined) return bySqlState.get(state) ?? bySqlStateClass.get(state.slice(0, 2)) ?? "bug";
  if (!(error instanceof Error)) return "bug";
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (code === undefined) return "bug";
  if (unreachable.has(code)) return "unavailable";
  if (lostSockets.has(code)) return syscall === "connect" ? "unavailable" : "outcome_unknown";
  return "bug";
}

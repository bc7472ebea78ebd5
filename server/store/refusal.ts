import { HoldfastError } from "../domain/errors.ts";
import type { Database } from "./database.ts";
import {
  classifyDatabaseError,
  isLockTimeout,
  isRevokedActor,
  isStorageFull,
  requiresRecovery,
} from "./database-errors.ts";

/** What a failed statement means for a caller: a refusal that says whether it may repeat, else the error itself. */
export function refusalFor(error: unknown): unknown {
  if (requiresRecovery(error)) {
    return new HoldfastError(
      "RECOVERY_REQUIRED",
      "The database was restored, promoted or replaced, and earlier grants may be missing; nothing was done. " +
        'Nothing is granted until an operator has run "holdfast recover".',
      { cause: error },
    );
  }
  if (isRevokedActor(error)) {
    return new HoldfastError("INVALID_TOKEN", "The operator is revoked; nothing was done.", { cause: error });
  }
  if (isStorageFull(error)) {
    return new HoldfastError(
      "STORAGE_FULL",
      "The disk of the database is full; nothing was done. Free some space, and repeat the request.",
      { cause: error, retryAfterMs: 5000 },
    );
  }
  switch (classifyDatabaseError(error)) {
    case "unavailable":
    case "retryable":
      return new HoldfastError(
        "DATABASE_UNAVAILABLE",
        "The database cannot be reached or is busy; nothing was done. Repeat the request.",
        { cause: error, retryAfterMs: 500 },
      );
    case "outcome_unknown":
      return new HoldfastError(
        "OUTCOME_UNKNOWN",
        "The database did not confirm the request; it may have been carried out. Repeat it unchanged to learn the truth.",
        { cause: error, retryAfterMs: 500 },
      );
    default:
      return error;
  }
}

/**
 * What a failed batch is worth: repeated, taken apart to spare the neighbours of one bad command or of one that waits
 * for a lock, or given up.
 */
export function batchRemedy(error: unknown): "retry" | "split" | "isolate" | "fail" {
  if (requiresRecovery(error)) return "fail";
  if (isLockTimeout(error)) return "isolate";
  switch (classifyDatabaseError(error)) {
    case "retryable":
      return "retry";
    case "request":
    case "bug":
      return "split";
    default:
      return "fail";
  }
}

/** A database whose failures are refusals. */
export function refusing(database: Database): Database {
  return {
    async query(query) {
      try {
        return await database.query(query);
      } catch (error) {
        throw refusalFor(error);
      }
    },
  };
}

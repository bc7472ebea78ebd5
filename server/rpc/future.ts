import { invalidField } from "../domain/errors.ts";
import { hasPassed } from "../store/clock.ts";
import type { Database } from "../store/database.ts";

/**
 * Throws INVALID_FIELD for the end of a vault key, in microseconds since 1970, that the database clock has reached: such
 * a key would be made in vain, and is nearly always a mistyped year.
 */
export async function requireKeyEnd(database: Database, end: bigint | undefined, field: string): Promise<void> {
  if (end === undefined || !(await hasPassed(database, end))) return;
  throw invalidField(
    field,
    "has passed, so the key would grant nothing; name a later instant, or leave it out for a key without an end. SuspendVaultKey and RevokeVaultKey stop a key at once.",
  );
}

/** The same for the end of a FIXED cap, which would count nothing and deny nothing. */
export async function requireCapEnd(database: Database, end: bigint | undefined, field: string): Promise<void> {
  if (end === undefined || !(await hasPassed(database, end))) return;
  throw invalidField(field, "has passed, so the cap would count and deny nothing; name a later instant.");
}

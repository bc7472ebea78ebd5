import type pg from "pg";
import type { Config } from "../config.ts";
import { StartupError } from "../startup-error.ts";
import { compareMigrations, readMigrations, refusalOf } from "./migrate.ts";

export interface DatabaseCheckOptions {
  readonly alteredClock: Config["alteredClock"];
  /** Only for tests: a crash of such a database loses grants that callers have already acted on. */
  readonly fsyncOff?: "refused" | "allowed";
  readonly migrationsFolder?: string;
}

/**
 * Refuses a server that could lose or misjudge a grant, whatever schema it has. Call it before `migrate`.
 *
 * @throws StartupError: 69 unreachable, 84 older than Postgres 15, 80 replica or read-only, 78 unsafe setting.
 */
export async function checkServer(pool: pg.Pool, options: Pick<DatabaseCheckOptions, "fsyncOff"> = {}): Promise<void> {
  // The settings of the session itself are checked by the pool, on this and on every later connection.
  const { rows } = await pool
    .query<{ version: number; version_name: string; fsync: string }>(
      `/* check_server */ select current_setting('server_version_num')::int4 as version,
        current_setting('server_version') as version_name, current_setting('fsync') as fsync`,
    )
    .catch((error: unknown) => {
      throw refusalOf(error);
    });
  const [row] = rows;
  if (row === undefined) throw new Error("The settings of the database could not be read.");
  refuseOldVersion(row.version, row.version_name);
  if (row.fsync !== "on" && options.fsyncOff !== "allowed") {
    throw new StartupError("config", "fsync is off, so a power failure loses grants; set fsync to on in Postgres.");
  }
}

/** `version` is `server_version_num`, for example 150004. */
export function refuseOldVersion(version: number, name: string): void {
  if (version >= 150_000) return;
  throw new StartupError("oldPostgres", `Postgres ${name} is too old; use version 15 or newer.`);
}

/**
 * Refuses a database on which this program must not grant: all that `checkServer` refuses, a schema that is not
 * exactly the one of this program, and a replaced clock.
 *
 * @throws StartupError: as `checkServer`, and 81 unknown schema, 82 changed migration, 83 altered clock.
 */
export async function checkDatabase(pool: pg.Pool, options: DatabaseCheckOptions): Promise<void> {
  await checkServer(pool, options);
  await checkSchema(pool, options.migrationsFolder);
  if (options.alteredClock === "refused") await checkClock(pool);
}

async function checkSchema(pool: pg.Pool, folder: string | undefined): Promise<void> {
  const migrations = await readMigrations(folder);
  const { rows } = await pool.query<{ found: boolean }>(
    "/* check_schema */ select to_regclass('holdfast.migrations') is not null as found",
  );
  const done = rows[0]?.found === true ? await compareMigrations(pool, migrations) : 0;
  if (done < migrations.length) {
    throw new StartupError(
      "unknownSchema",
      `The database has ${done} of ${migrations.length} migrations; run "holdfast migrate" first.`,
    );
  }
}

/**
 * Every statement reads the time from holdfast.clock(), so replacing it moves all windows, leases and holds. What
 * the migration creates is written out here: a stored fingerprint could be replaced together with the function.
 */
async function checkClock(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query<{ original: boolean }>(
    `/* check_clock */ select
        regexp_replace(btrim(lower(p.prosrc), E' \\n\\t;'), '\\s+', ' ', 'g') = 'select clock_timestamp()'
        and l.lanname = 'sql' and p.provolatile = 'v' and p.proconfig is null
        and p.prorettype = 'timestamptz'::regtype and p.pronargs = 0 as original
      from pg_proc p join pg_language l on l.oid = p.prolang
      where p.pronamespace = to_regnamespace('holdfast') and p.proname = 'clock'`,
  );
  if (rows.length === 1 && rows[0]?.original === true) return;
  throw new StartupError(
    "alteredClock",
    "holdfast.clock() was replaced, so time in this database is not real; restore it, " +
      "or set HOLDFAST_ALTERED_CLOCK=allowed for a test or demo database.",
  );
}

import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { StartupError } from "../startup-error.ts";
import { classifyDatabaseError, sqlStateOf } from "./database-errors.ts";
import { createPool, inTransaction } from "./postgres.ts";

export interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sha256: string;
  readonly sql: string;
}

export interface MigrateOptions {
  readonly folder?: string;
  /** How long one statement of a migration may wait for a lock; readers and writers queue behind it meanwhile. */
  readonly lockTimeoutMs?: number;
  /** How often a migration is tried again after it waited too long. */
  readonly lockRetries?: number;
  /** How long to wait for another migrator. */
  readonly migratorTimeoutMs?: number;
  readonly log?: (message: string) => void;
}

const ownFolder = join(import.meta.dirname, "migrations");
const fileName = /^(\d{4})_[a-z0-9_]+\.sql$/;

/** The migrations of this program, in order. Throws when the numbers are not 1, 2, 3 …: that is a packaging fault. */
export async function readMigrations(folder: string = ownFolder): Promise<readonly Migration[]> {
  const names = (await readdir(folder)).filter((name) => name.endsWith(".sql")).toSorted();
  return Promise.all(
    names.map(async (name, index) => {
      const version = Number(fileName.exec(name)?.[1]);
      if (version !== index + 1) throw new Error(`${name} should have the number ${index + 1}.`);
      const sql = await readFile(join(folder, name), "utf8");
      return { version, name, sha256: createHash("sha256").update(sql).digest("hex"), sql };
    }),
  );
}

/**
 * Brings the schema to the version of this program and returns the names of the files that it applied. Forward only;
 * each file is one transaction. Safe when several servers start at once: they take turns.
 *
 * @throws StartupError: 81 when the database knows a migration that this program does not, 82 when an applied file
 * has changed, 75 when a lock was not to be had, 69 when the database cannot be reached.
 */
export async function migrate(connection: pg.ClientConfig, options: MigrateOptions = {}): Promise<readonly string[]> {
  const migrations = await readMigrations(options.folder);
  // Limits are set per transaction, so that this also works through PgBouncer.
  const pool = createPool({
    connection,
    max: 1,
    preparedStatements: false,
    answerTimeoutMs: 0,
    applicationName: "holdfast-migrate",
  });
  const applied: string[] = [];
  try {
    for (;;) {
      const name = await applyNextPatiently(pool, migrations, options);
      if (name === undefined) return applied;
      options.log?.(`Applied migration ${name}.`);
      applied.push(name);
    }
  } catch (error) {
    throw refusalOf(error);
  } finally {
    await pool.end();
  }
}

/** The StartupError inside an error of the pool, or one that says that the database cannot be reached. */
export function refusalOf(error: unknown): unknown {
  if (error instanceof Error && error.cause instanceof StartupError) return error.cause;
  if (classifyDatabaseError(error) !== "unavailable") return error;
  return new StartupError(
    "databaseUnreachable",
    "The database cannot be reached or does not answer; check DATABASE_URL and that Postgres is running.",
    error,
  );
}

async function applyNextPatiently(
  pool: pg.Pool,
  migrations: readonly Migration[],
  options: MigrateOptions,
): Promise<string | undefined> {
  const retries = options.lockRetries ?? 20;
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await applyNext(pool, migrations, options);
    } catch (error) {
      const state = sqlStateOf(error instanceof MigrationFailed ? error.cause : error);
      if (state !== "55P03" && state !== "40P01") throw error;
      if (attempt >= retries) {
        throw new StartupError(
          "tryAgain",
          "A migration waited too long for a lock; end the transaction that blocks it, then start again.",
          error,
        );
      }
      // Between two tries the statements that queued behind the migration get their turn.
      await delay(Math.min(100 * 2 ** attempt, 2000));
    }
  }
}

class MigrationFailed extends Error {
  override readonly name = "MigrationFailed";
}

/** Applies the first migration that is missing; answers undefined when none is. */
function applyNext(
  pool: pg.Pool,
  migrations: readonly Migration[],
  options: MigrateOptions,
): Promise<string | undefined> {
  return inTransaction(pool, async (client) => {
    await client.query(
      `set local statement_timeout = 0; set local lock_timeout = ${options.migratorTimeoutMs ?? 60_000}`,
    );
    // Held to the end of the transaction, so that it cannot be stranded in a pool of connections.
    await client.query("/* migrate_take_turn */ select pg_advisory_xact_lock(1752132708, 1717662580)");
    await client.query(`set local lock_timeout = ${options.lockTimeoutMs ?? 2000}`);
    await createMigrationsTable(client);
    const done = await compareMigrations(client, migrations);
    const next = migrations[done];
    if (next === undefined) return undefined;
    await client.query(
      "/* migrate_insert */ insert into holdfast.migrations (version, name, sha256) values ($1::int4, $2::text, $3::text)",
      [next.version, next.name, next.sha256],
    );
    try {
      await client.query(next.sql);
    } catch (cause) {
      throw new MigrationFailed(`Migration ${next.name} failed and was rolled back.`, { cause });
    }
    return next.name;
  });
}

/** `if not exists` alone would demand the right to create from a role that never needs it. */
async function createMigrationsTable(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ schema: boolean; migrations: boolean }>(
    `/* migrate_find */ select to_regnamespace('holdfast') is not null as schema,
      to_regclass('holdfast.migrations') is not null as migrations`,
  );
  if (rows[0]?.schema !== true) await client.query("create schema holdfast");
  if (rows[0]?.migrations === true) return;
  await client.query(
    `create table holdfast.migrations (
      version int4 not null,
      name text not null,
      sha256 text not null,
      apply_time timestamptz not null default clock_timestamp(),
      constraint migrations_pkey primary key (version),
      constraint migrations_version_check check (version > 0),
      constraint migrations_name_check check (length(name) between 1 and 200),
      constraint migrations_sha256_check check (sha256 ~ '^[0-9a-f]{64}$')
    )`,
  );
}

/**
 * How many of this program's migrations the database has; they are always the first ones.
 *
 * @throws StartupError when the database has one that this program does not know, or an edited one.
 */
export async function compareMigrations(
  client: pg.ClientBase | pg.Pool,
  migrations: readonly Migration[],
): Promise<number> {
  const { rows } = await client.query<{ version: number; name: string; sha256: string }>(
    "/* migrations_list */ select version, name, sha256 from holdfast.migrations order by version",
  );
  for (const [index, row] of rows.entries()) {
    const known = migrations[index];
    if (known === undefined || known.version !== row.version) {
      throw new StartupError(
        "unknownSchema",
        `The database has migration ${row.name}, which this program does not know; start the version that applied it, or a newer one.`,
      );
    }
    if (known.sha256 !== row.sha256 || known.name !== row.name) {
      throw new StartupError(
        "changedMigration",
        `Migration ${known.name} differs from the one that was applied as ${row.name}; restore the file, and put changes into a new one.`,
      );
    }
  }
  return rows.length;
}

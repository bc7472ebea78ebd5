import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import pg from "pg";
import { inject } from "vitest";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";
import { createPool, type PoolOptions } from "../../server/store/postgres.ts";
import { templateDatabase } from "./global-setup.ts";

export interface TestDatabase {
  readonly pool: pg.Pool;
  readonly connection: EmbeddedConnection;
  /** Ends the pool and drops the database, also when other connections are still open. */
  close(): Promise<void>;
}

export interface TestDatabaseOptions {
  /** False gives a database without any schema. */
  readonly migrated?: boolean;
  readonly pool?: Omit<PoolOptions, "connection">;
}

// A stalled test holds its locks and its transactions longer than a server may.
const patient = {
  connectTimeoutMs: 60_000,
  statementTimeoutMs: 60_000,
  lockTimeoutMs: 60_000,
  idleInTransactionTimeoutMs: 60_000,
  answerTimeoutMs: 120_000,
} satisfies Omit<PoolOptions, "connection">;

async function sharedCluster(): Promise<EmbeddedConnection> {
  const answer = JSON.parse(await text(connect(inject("postgresStarter")))) as
    | EmbeddedConnection
    | { readonly problem: string };
  if ("problem" in answer) throw new Error(`The shared Postgres did not start: ${answer.problem}`);
  return answer;
}

async function administer(connection: EmbeddedConnection, statement: string): Promise<void> {
  const client = new pg.Client(connection);
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}

/** A database of its own in the shared cluster, migrated unless asked otherwise. One per test file is meant. */
export async function createTestDatabase(options: TestDatabaseOptions = {}): Promise<TestDatabase> {
  const cluster = await sharedCluster();
  const database = `test_${randomBytes(8).toString("hex")}`;
  const template = options.migrated === false ? "template0" : templateDatabase;
  await administer(cluster, `create database ${database} template ${template} strategy wal_log`);
  const connection = { ...cluster, database };
  const pool = createPool({ connection, ...patient, ...options.pool });
  // A clone is another database than its template; what a server does at its first start.
  if (options.migrated !== false) await pool.query("select holdfast.register_instance()");
  return {
    pool,
    connection,
    close: async () => {
      await pool.end();
      await administer(cluster, `drop database ${database} with (force)`);
    },
  };
}

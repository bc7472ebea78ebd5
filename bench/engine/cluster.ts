import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { type Child, startChild } from "../child.ts";
import { processCpuMs } from "./processor-time.ts";

/** A durable Postgres on this machine, and what it has done so far. */
export interface Cluster {
  /** On the disk that the database writes to; removed when the cluster is closed. */
  readonly folder: string;
  /** Makes an empty database. */
  createDatabase(name: string): Promise<pg.ClientConfig>;
  /** What all databases together have cost up to now. Waits until no session of the given one is left uncounted. */
  spent(ended: pg.ClientConfig): Promise<Spent>;
  /** Runs a statement in a database and gives its rows. */
  query<Row>(connection: pg.ClientConfig, text: string, values?: readonly unknown[]): Promise<Row[]>;
  close(): Promise<void>;
}

/** Counts since the start. */
export interface Spent {
  readonly walBytes: number;
  /** How often a session had the log written to disk for good; before Postgres 18 its background processes count too. */
  readonly walSyncs: number;
  /** Undefined where there is no /proc. */
  readonly cpuMs: number | undefined;
}

/** Where the number of log syncs stands depends on the version. */
function spentText(version: number): string {
  const syncs =
    version >= 180_000
      ? "(select sum(fsyncs) from pg_stat_io where object = 'wal' and backend_type = 'client backend')"
      : "(select wal_sync from pg_stat_wal)";
  return `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 as wal, ${syncs}::float8 as syncs`;
}

/** `settings` are more settings of Postgres. It is as durable as the product's own in any case. */
export async function startCluster(settings: Readonly<Record<string, string>> = {}): Promise<Cluster> {
  const child = await startChild(new URL("./cluster-process.ts", import.meta.url), {
    settings: JSON.stringify(settings),
  });
  try {
    return await openCluster(child);
  } catch (error) {
    await child.close();
    throw error;
  }
}

async function openCluster(child: Child): Promise<Cluster> {
  const { folder = "", connection = "{}", pid = "" } = child.ready;
  const home = JSON.parse(connection) as pg.ClientConfig;
  const admin = new pg.Client(home);
  await admin.connect();
  await refuseUnsafe(admin);
  const { rows } = await admin.query<{ version: number }>(
    "select current_setting('server_version_num')::int as version",
  );
  const text = spentText(rows[0]?.version ?? 0);
  return {
    folder,
    async createDatabase(name) {
      await admin.query(`create database ${pg.escapeIdentifier(name)}`);
      return { ...home, database: name };
    },
    async spent({ database }) {
      // A session tells of what it did last when it ends.
      const left = "select from pg_stat_activity where datname = $1";
      while ((await admin.query(left, [database])).rowCount !== 0) await delay(5);
      const [row] = (await admin.query<{ wal: number; syncs: number }>(text)).rows;
      return { walBytes: row?.wal ?? 0, walSyncs: row?.syncs ?? 0, cpuMs: processCpuMs(Number(pid)) };
    },
    async query<Row>(at: pg.ClientConfig, statement: string, values: readonly unknown[] = []) {
      const client = new pg.Client(at);
      await client.connect();
      try {
        return (await client.query(statement, [...values])).rows as Row[];
      } finally {
        await client.end();
      }
    },
    async close() {
      await admin.end();
      await child.close();
    },
  };
}

/** A figure that is had by forgetting grants in a crash is no figure. */
async function refuseUnsafe(admin: pg.Client): Promise<void> {
  for (const name of ["fsync", "synchronous_commit", "full_page_writes"]) {
    const { rows } = await admin.query<{ value: string }>("select current_setting($1) as value", [name]);
    if (rows[0]?.value !== "on") throw new Error(`${name} is ${rows[0]?.value}, and a bench needs it on`);
  }
}

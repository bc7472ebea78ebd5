import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { type EmbeddedPostgres, startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { migrate } from "../../server/store/migrate.ts";

declare module "vitest" {
  export interface ProvidedContext {
    /** The socket that answers with the connection of the shared cluster, or with `{ problem }`. */
    postgresStarter: string;
  }
}

/** The database that every test database is a clone of. */
export const templateDatabase = "holdfast_template";

/**
 * One Postgres for the whole run, started when the first test file asks for it: a run of pure tests pays nothing.
 * Its files are not synced to disk; tests about durability start one of their own.
 */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-test-"));
  let cluster: Promise<EmbeddedPostgres> | undefined;
  const server = createServer((socket) => {
    socket.on("error", () => {});
    cluster ??= startSharedCluster(folder);
    cluster.then(
      ({ connection }) => socket.end(JSON.stringify(connection)),
      (error: unknown) => socket.end(JSON.stringify({ problem: error instanceof Error ? error.stack : String(error) })),
    );
  });
  const path = join(folder, "starter");
  await new Promise<void>((resolve) => server.listen(path, resolve));
  project.provide("postgresStarter", path);
  return async () => {
    await new Promise((resolve) => server.close(resolve));
    await cluster?.then((postgres) => postgres.close()).catch(() => {});
    await rm(folder, { recursive: true, force: true });
  };
}

async function startSharedCluster(folder: string): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({
    dataFolder: join(folder, "data"),
    fsync: false,
    settings: { max_connections: "300", autovacuum: "off" },
  });
  try {
    await makeTemplate(postgres);
  } catch (error) {
    await postgres.close();
    throw error;
  }
  return postgres;
}

async function makeTemplate({ connection }: EmbeddedPostgres): Promise<void> {
  const client = new pg.Client(connection);
  await client.connect();
  try {
    await client.query(`create database ${templateDatabase}`);
    await migrate({ ...connection, database: templateDatabase });
    // A clone fails while anybody is connected to its template.
    await client.query(`alter database ${templateDatabase} allow_connections false`);
  } finally {
    await client.end();
  }
}

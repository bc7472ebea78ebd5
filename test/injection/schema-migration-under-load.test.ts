import { cp, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { migrate, readMigrations } from "../../server/store/migrate.ts";
import { createPolicy } from "../crash/policy.ts";
import { type Front, startFront } from "../support/front.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { startSdkLoad } from "./sdk-load.ts";
import { operatorToken } from "./server-process.ts";

// The old server is this program; the new one is this program with one migration more, which adds to what the hot
// statements of the old one use.

let folder: string;
let database: TestDatabase;
let front: Front;
const apps: App[] = [];
let turn = 0;

const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "holdfast-migrations-"));
  await cp(join(import.meta.dirname, "../../server/store/migrations"), folder, { recursive: true });
  const next = `${(await readMigrations()).length + 1}`.padStart(4, "0");
  await writeFile(
    join(folder, `${next}_note.sql`),
    `alter table holdfast.authorizations add column note text;
     alter table holdfast.authorizations add constraint authorizations_note_check check (length(note) < 100) not valid;
     alter table holdfast.counters add column note text;
     create table holdfast.notes (workspace_id text not null, note text not null, primary key (workspace_id, note));`,
  );
  database = await createTestDatabase();
  apps.push(await startApp(config, { connection: database.connection, fsyncOff: "allowed" }));
  front = await startFront(() => {
    turn += 1;
    return (apps[turn % apps.length] as App).port;
  });
});
afterAll(async () => {
  await front?.close();
  for (const app of apps) await app.close();
  await database?.close();
  await rm(folder, { recursive: true, force: true });
});

test("an old and a new server and a migration behind a long reader, under the SDK's load: no caller sees an error", async () => {
  const [old] = apps as [App];
  const policy = await createPolicy(old.url, operatorToken, "1000000");
  const baseUrl = `http://127.0.0.1:${front.port}`;
  const load = startSdkLoad({ baseUrl, vaultKey: policy.vaultKey, callers: 8, name: "migrated" });
  await load.more(20);

  // A report that reads for long keeps the migration from its lock.
  const reader = new pg.Client(database.connection);
  await reader.connect();
  await reader.query("begin isolation level repeatable read");
  await reader.query("select count(*) from holdfast.authorizations");
  const migrators = [1, 2].map(() => migrate(database.connection, { folder }));
  const waits = async () => {
    const { rowCount } = await database.pool.query(
      "select from pg_stat_activity where application_name = 'holdfast-migrate' and wait_event = 'relation'",
    );
    return (rowCount ?? 0) > 0;
  };
  await expect.poll(waits).toBe(true);
  // It gives up, so that those who queue behind it get their turn, and comes again.
  await expect.poll(waits).toBe(false);
  await load.more(1);
  await reader.query("commit");
  await reader.end();
  const applied = (await Promise.all(migrators)).flat();
  expect(applied).toHaveLength(1);
  await load.more(20);

  const options = { connection: database.connection, fsyncOff: "allowed", migrationsFolder: folder } as const;
  apps.push(await startApp(config, options));
  await load.more(40);
  expect(await load.stop()).toEqual([]);
  const { usage } = await policy.admin.getCap({ name: "caps/everything" });
  expect(usage).toMatchObject({ committed: { amount: `${load.spent()}` }, held: { amount: "0" } });
  // The old program still runs, but it does not start on what it does not know.
  await expect(startApp(config, { connection: database.connection, fsyncOff: "allowed" })).rejects.toMatchObject({
    exitCode: 81,
  });
});

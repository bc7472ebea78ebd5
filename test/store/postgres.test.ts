import { mkdtemp, rm } from "node:fs/promises";
import { connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Attributes, createNoopMeter, metrics } from "@opentelemetry/api";
import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { readTimestamp } from "../../server/store/column-values.ts";
import { sqlStateOf } from "../../server/store/database-errors.ts";
import { classifyDatabaseError, createPool, inTransaction, type PoolOptions } from "../../server/store/postgres.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
const pools = new Set<pg.Pool>();

beforeAll(async () => {
  database = await createTestDatabase({ migrated: false });
  await database.pool.query("create table notes (note text not null unique)");
});

afterEach(async () => {
  const ending = [...pools].map((pool) => pool.end());
  pools.clear();
  await Promise.all(ending);
});

afterAll(() => database.close());

function open(options: Partial<PoolOptions> = {}): pg.Pool {
  const pool = createPool({ connection: database.connection, max: 1, ...options });
  pools.add(pool);
  return pool;
}

async function one(queryable: pg.Pool | pg.PoolClient, text: string): Promise<unknown> {
  const { rows } = await queryable.query({ text, rowMode: "array" });
  return (rows[0] as unknown as unknown[] | undefined)?.[0];
}

async function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => {
      throw new Error("it succeeded");
    },
    (error: unknown) => error,
  );
}

async function notes(like: string): Promise<number> {
  const { rows } = await database.pool.query<{ n: number }>(
    "select count(*)::int4 as n from notes where note like $1",
    [like],
  );
  return rows[0]?.n ?? -1;
}

describe("values", () => {
  test("int8 arrives as bigint, int8[] as bigints and nulls, timestamptz with its microseconds", async () => {
    const { rows } = await open().query(
      `select 9007199254740993::int8 as a, array[1::int8, null, -5] as b, '{}'::int8[] as c,
        '2026-11-30 23:59:59.000001+05:30'::timestamptz as d`,
    );
    expect(rows).toEqual([{ a: 9007199254740993n, b: [1n, null, -5n], c: [], d: "2026-11-30T18:29:59.000001Z" }]);
  });

  test.each([
    ["2026-01-01 00:00:00+00", "2026-01-01T00:00:00.000000Z"],
    ["2026-01-01 00:00:00.5+14", "2025-12-31T10:00:00.500000Z"],
    ["2025-12-31 19:00:00.123456-05", "2026-01-01T00:00:00.123456Z"],
    ["1890-01-01 00:00:00+00:19:32", "1889-12-31T23:40:28.000000Z"],
    ["infinity", "infinity"],
  ])("%s reads as %s", (text, expected) => {
    expect(readTimestamp(text)).toBe(expected);
  });

  test("the parsers belong to the pool and not to every user of pg", async () => {
    const { default: plain } = await import("pg");
    expect(plain.types.getTypeParser(20, "text")("1")).toBe("1");
  });
});

describe("a connection that breaks", () => {
  test("while checked out does not end the process, and the pool replaces it", async () => {
    const errors: Error[] = [];
    const pool = open({ onConnectionError: (error) => errors.push(error) });
    const client = await pool.connect();
    const ended = new Promise<void>((resolve) => client.once("end", resolve));
    await database.pool.query("select pg_terminate_backend($1::int4)", [await one(client, "select pg_backend_pid()")]);
    await ended;
    expect(errors.length).toBeGreaterThan(0);
    expect(classifyDatabaseError(await failure(client.query("select 1")))).toBe("outcome_unknown");
    client.release();
    expect(await one(pool, "select 1")).toBe(1);
  });

  test("while idle is replaced", async () => {
    const pool = open();
    const pid = await one(pool, "select pg_backend_pid()");
    const removed = new Promise((resolve) => pool.once("remove", resolve));
    await database.pool.query("select pg_terminate_backend($1::int4)", [pid]);
    await removed;
    expect(await one(pool, "select pg_backend_pid()")).not.toBe(pid);
  });

  test("inside a transaction, before its commit, means that nothing changed", async () => {
    const error = await failure(
      inTransaction(open(), async (client) => {
        await client.query("insert into notes values ('cut before commit')");
        await database.pool.query("select pg_terminate_backend($1::int4)", [
          await one(client, "select pg_backend_pid()"),
        ]);
        await client.query("select 1");
      }),
    );
    expect(classifyDatabaseError(error)).toBe("unavailable");
    expect(await notes("cut before commit")).toBe(0);
  });

  test("an answer that does not come in time is an unknown outcome, and its connection is not used again", async () => {
    const pool = open({ answerTimeoutMs: 3_000 });
    const pid = await one(pool, "select pg_backend_pid()");
    const error = await failure(pool.query("select pg_sleep(60)"));
    expect(classifyDatabaseError(error)).toBe("outcome_unknown");
    expect((error as Error).message).toContain("no answer within 3000 ms");
    expect(await one(pool, "select pg_backend_pid()")).not.toBe(pid);
  });

  test("a database that does not exist is unavailable", async () => {
    const pool = open({ connection: { ...database.connection, database: "nowhere" } });
    expect(classifyDatabaseError(await failure(pool.query("select 1")))).toBe("unavailable");
  });

  test("a pool without a free connection answers unavailable after the time to connect", async () => {
    const pool = open({ connectTimeoutMs: 3_000 });
    const client = await pool.connect();
    expect(classifyDatabaseError(await failure(pool.query("select 1")))).toBe("unavailable");
    client.release();
  });
});

describe("a lost acknowledgement of COMMIT", () => {
  let folder: string;
  let server: Server;
  const sockets = new Set<Socket>();

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "holdfast-proxy-"));
    // Passes everything on, but loses what the database answers to a commit.
    server = createServer((inner) => {
      const outer = connect(join(database.connection.host, ".s.PGSQL.5432"));
      let committing = false;
      inner.on("data", (data) => {
        committing ||= data.includes("commit\0");
        outer.write(data);
      });
      outer.on("data", (data) => (committing ? inner.destroy() : inner.write(data)));
      for (const socket of [inner, outer]) {
        sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => (socket === inner ? outer : inner).destroy());
      }
    });
    await new Promise<void>((resolve) => server.listen(join(folder, ".s.PGSQL.5432"), resolve));
  });

  afterAll(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
    await rm(folder, { recursive: true, force: true });
  });

  test("is an unknown outcome, not a failure: the row is there", async () => {
    const pool = open({ connection: { ...database.connection, host: folder } });
    const error = await failure(
      inTransaction(pool, (client) => client.query("insert into notes values ('acknowledgement lost')")),
    );
    expect(classifyDatabaseError(error)).toBe("outcome_unknown");
    expect(await notes("acknowledgement lost")).toBe(1);
  });
});

describe("a transaction", () => {
  const counted: unknown[][] = [];
  beforeAll(() => {
    const createCounter = (name: string) => ({
      add: (value: number, attributes?: Attributes) => void counted.push([name, value, attributes]),
    });
    metrics.setGlobalMeterProvider({ getMeter: () => ({ ...createNoopMeter(), createCounter }) });
  });
  beforeEach(() => void counted.splice(0));
  afterAll(() => metrics.disable());

  test("returns the value of its work and commits", async () => {
    const value = await inTransaction(open(), async (client) => {
      await client.query("insert into notes values ('committed')");
      return 7;
    });
    expect(value).toBe(7);
    expect(await notes("committed")).toBe(1);
  });

  test("rolls back when its work throws, and throws the same error", async () => {
    const pool = open();
    const thrown = new Error("no");
    const error = await failure(
      inTransaction(pool, async (client) => {
        await client.query("insert into notes values ('rolled back')");
        throw thrown;
      }),
    );
    expect(error).toBe(thrown);
    expect(await notes("rolled back")).toBe(0);
    expect(pool.idleCount).toBe(1);
  });

  test("whose work swallowed an error does not pass for committed", async () => {
    const error = await failure(
      inTransaction(open(), async (client) => {
        await client.query("insert into notes values ('swallowed')");
        await client.query("select 1 / 0").catch(() => {});
      }),
    );
    expect((error as Error).message).toContain("answered with ROLLBACK");
    expect(classifyDatabaseError(error)).toBe("bug");
    expect(await notes("swallowed")).toBe(0);
  });

  test("left open by its user does not go back into the pool", async () => {
    const pool = open();
    const client = await pool.connect();
    const pid = await one(client, "select pg_backend_pid()");
    await client.query("begin");
    await client.query("insert into notes values ('left open')");
    client.release();
    expect(await one(pool, "select pg_backend_pid()")).not.toBe(pid);
    expect(await notes("left open")).toBe(0);
    expect(counted).toEqual([["holdfast.pool.destroyed", 1, { "holdfast.pool.mistake": "open_transaction" }]]);
  });

  test("a statement still unanswered at release does not go back into the pool", async () => {
    const pool = open();
    const client = await pool.connect();
    const pid = await one(client, "select pg_backend_pid()");
    const slow = failure(client.query("select pg_sleep(3)"));
    client.release();
    await slow;
    expect(await one(pool, "select pg_backend_pid()")).not.toBe(pid);
    expect(counted).toEqual([["holdfast.pool.destroyed", 1, { "holdfast.pool.mistake": "unanswered_statement" }]]);
  });
});

describe.each([true, false])("with preparedStatements %s", (preparedStatements) => {
  test("a transaction gives up on a lock, and the caller may try again later", async () => {
    const holder = await database.pool.connect();
    await holder.query("begin");
    await holder.query("lock table notes");
    const pool = open({ preparedStatements, lockTimeoutMs: 50 });
    const error = await failure(inTransaction(pool, (client) => client.query("select * from notes")));
    await holder.query("rollback");
    holder.release();
    expect(sqlStateOf(error)).toBe("55P03");
    expect(classifyDatabaseError(error)).toBe("unavailable");
    expect(await one(pool, "show lock_timeout")).toBe(preparedStatements ? "50ms" : "0");
  });

  test("a named statement is kept on the server only when that is wanted", async () => {
    const pool = open({ preparedStatements });
    await pool.query({ name: "three", text: "select 3" });
    expect(await one(pool, "select count(*)::int4 from pg_prepared_statements")).toBe(preparedStatements ? 1 : 0);
  });
});

test("an error of one statement does not cost its connection", async () => {
  const pool = open();
  const pid = await one(pool, "select pg_backend_pid()");
  await failure(pool.query("select 1 / 0"));
  expect(await one(pool, "select pg_backend_pid()")).toBe(pid);
});

describe("the meaning of an error", () => {
  const raised = (state: string) =>
    failure(database.pool.query(`do $$ begin raise exception 'x' using errcode = '${state}'; end $$`));

  test.each([
    ["40001", "retryable"],
    ["40P01", "retryable"],
    ["40003", "outcome_unknown"],
    ["55P03", "unavailable"],
    ["53100", "unavailable"],
    ["53300", "unavailable"],
    ["57014", "unavailable"],
    ["57P01", "outcome_unknown"],
    ["57P02", "outcome_unknown"],
    ["57P03", "unavailable"],
    ["08006", "outcome_unknown"],
    ["08P01", "outcome_unknown"],
    ["08001", "unavailable"],
    ["25006", "unavailable"],
    ["22003", "request"],
    ["23505", "request"],
    ["42P01", "bug"],
    ["P0001", "bug"],
    ["XX000", "bug"],
  ])("SQLSTATE %s is %s", async (state, meaning) => {
    const error = await raised(state);
    expect(sqlStateOf(error)).toBe(state);
    expect(classifyDatabaseError(error)).toBe(meaning);
  });

  const socketError = (code: string, syscall: string) => Object.assign(new Error(code), { code, syscall });
  test.each([
    [socketError("ECONNRESET", "read"), "outcome_unknown"],
    [socketError("EPIPE", "write"), "outcome_unknown"],
    [socketError("ETIMEDOUT", "connect"), "unavailable"],
    [socketError("ECONNREFUSED", "connect"), "unavailable"],
    [new TypeError("x is not a function"), "bug"],
    ["text", "bug"],
    [undefined, "bug"],
  ])("%s is %s", (error, meaning) => {
    expect(classifyDatabaseError(error)).toBe(meaning);
  });
});

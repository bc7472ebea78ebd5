import { afterAll, beforeAll, expect, test } from "vitest";
import { readSnapshotFigures } from "../../server/store/snapshot-figures.ts";
import { createPool, inTransaction } from "../../server/store/postgres.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let others: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
  others = await createTestDatabase();
});
afterAll(async () => {
  await database.close();
  await others.close();
});

async function write(transactions: number): Promise<void> {
  for (let n = 0; n < transactions; n += 1) await database.pool.query("select pg_current_xact_id()");
}

test("a reader that stays open is told by its age and by how far it lags, and not any more once it has ended", async () => {
  const reader = await database.pool.connect();
  try {
    await reader.query("begin isolation level repeatable read; select 1");
    await write(50);
    const first = await readSnapshotFigures(database.pool);
    expect(first.hidden).toBe(0);
    expect(first.lag).toBeGreaterThanOrEqual(50);
    expect(first.oldestAge).toBeGreaterThan(0);
    await write(50);
    const second = await readSnapshotFigures(database.pool);
    expect(second.lag).toBeGreaterThanOrEqual(first.lag + 50);
    expect(second.oldestAge).toBeGreaterThan(first.oldestAge);
    await reader.query("rollback");
    expect(await readSnapshotFigures(database.pool)).toMatchObject({ lag: 0, oldestAge: 0 });
  } finally {
    reader.release();
  }
});

test("a transaction that has only written holds back too, and one of another database does not", async () => {
  const writer = await database.pool.connect();
  const elsewhere = await others.pool.connect();
  try {
    await elsewhere.query("begin isolation level repeatable read; select pg_current_xact_id()");
    await write(50);
    expect(await readSnapshotFigures(database.pool)).toMatchObject({ lag: 0, oldestAge: 0 });
    await writer.query("begin; select pg_current_xact_id()");
    await write(50);
    expect((await readSnapshotFigures(database.pool)).lag).toBeGreaterThanOrEqual(50);
    await writer.query("rollback");
    await elsewhere.query("rollback");
  } finally {
    writer.release();
    elsewhere.release();
  }
});

test("the servers' own sessions are ended when they leave a transaction open", async () => {
  for (const preparedStatements of [true, false]) {
    const own = await createTestDatabase({
      pool: { preparedStatements, idleInTransactionTimeoutMs: 5000 },
    });
    try {
      // What goes through a pooler of transactions has no settings of its session, so each transaction has its own.
      const outside = await own.pool.query("select current_setting('idle_in_transaction_session_timeout') as value");
      expect(outside.rows).toEqual([{ value: preparedStatements ? "5s" : "0" }]);
      const inside = await inTransaction(own.pool, (client) =>
        client.query("select current_setting('idle_in_transaction_session_timeout') as value"),
      );
      expect(inside.rows).toEqual([{ value: "5s" }]);
    } finally {
      await own.close();
    }
  }
});

test("which gives up what it has locked", async () => {
  const own = await createTestDatabase();
  const impatient = createPool({ connection: own.connection, idleInTransactionTimeoutMs: 50 });
  try {
    const client = await impatient.connect();
    const ended = new Promise<void>((resolve) => client.once("end", resolve));
    await client.query("begin; lock table holdfast.workspaces in access exclusive mode");
    await ended;
    client.release();
    expect(await own.pool.query("select from holdfast.workspaces")).toBeDefined();
  } finally {
    await impatient.end();
    await own.close();
  }
});

import { afterAll, beforeAll, expect, test } from "vitest";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { commitBatch, sweepExpired } from "../../server/store/spend.ts";
import { type Asked, asks, commitCommand, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase({
    pool: { max: 66, connectTimeoutMs: 30_000, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 },
  });
});
afterAll(() => database.close());

async function deadlocks(): Promise<bigint> {
  await database.pool.query("select pg_stat_force_next_flush()");
  const { rows } = await database.pool.query<{ deadlocks: bigint }>(
    "select d.deadlocks from pg_stat_database d where d.datname = current_database()",
  );
  return rows[0]?.deadlocks ?? 0n;
}

test("batches of the same spends and caps in opposite orders never deadlock", async () => {
  const granting = await openGranting(database.pool);
  const purposes = Array.from({ length: 20 }, (_, n) => `p${n}`);
  for (const purpose of purposes) await granting.cap(purpose, usd(1_000_000), { scope: { purpose } });
  await granting.cap("each", usd(1_000_000), { perCustomer: true });
  const rounds = 5;
  for (let round = 0; round < rounds; round += 1) {
    const requests: Asked[] = Array.from({ length: 200 }, (_, n) => ({
      customerId: `c${round}-${n}`,
      purpose: purposes[n % purposes.length] as string,
      holdForMs: 5000,
    }));
    const batch = (order: readonly Asked[]) => authorizeBatch(database.pool, granting.workspace, order.map(asks));
    const [forward, backward] = await Promise.all([
      batch(requests),
      batch(requests.toReversed()),
      sweepExpired(database.pool, granting.workspace, 200),
    ]);
    const granted = [...forward, ...backward].filter(({ disposition }) => disposition === "GRANTED");
    expect(granted).toHaveLength(200);
    expect(new Set(granted.map(({ authorization }) => authorization?.spendKey)).size).toBe(200);
    const commits = granted.map(({ authorization }) =>
      commitCommand(authorization as NonNullable<typeof authorization>),
    );
    const settled = await Promise.all([
      commitBatch(database.pool, granting.workspace, commits),
      commitBatch(database.pool, granting.workspace, commits.toReversed()),
      batch(requests),
    ]);
    expect(
      settled
        .slice(0, 2)
        .flat()
        .filter((one) => "errorReason" in one && one.errorReason !== undefined),
    ).toEqual([]);
  }
  expect(await deadlocks()).toBe(0n);
  await granting.expectCountersToAddUp();
});

test("of 64 first authorizations at once on a new window and customer exactly the headroom is granted", async () => {
  for (let round = 0; round < 2; round += 1) {
    const granting = await openGranting(database.pool);
    await granting.cap("daily", usd(205), { window: "DAY", perCustomer: true });
    const decisions = await Promise.all(
      Array.from({ length: 64 }, (_, n) => granting.authorize(asks({ purpose: `p${n}` }))),
    );
    const granted = decisions.flat().filter(({ disposition }) => disposition === "GRANTED");
    expect(granted).toHaveLength(20);
    expect(decisions.flat().filter(({ rule }) => rule === "CAP_HEADROOM")).toHaveLength(44);
    await granting.expectCountersToAddUp();
  }
  expect(await deadlocks()).toBe(0n);
});

test("of 64 attempts at one spend at once exactly one is granted", async () => {
  const granting = await openGranting(database.pool);
  await granting.cap("one", usd(10));
  const decisions = await Promise.all(Array.from({ length: 64 }, () => granting.authorize(asks())));
  const count = (disposition: string) => decisions.flat().filter((one) => one.disposition === disposition).length;
  expect([count("GRANTED"), count("IN_PROGRESS")]).toEqual([1, 63]);
  await granting.expectCountersToAddUp();
});

test("retries and first tries of new spends in mixed batches never deadlock", async () => {
  const granting = await openGranting(database.pool);
  await granting.cap("all", usd(1_000_000));
  for (let round = 0; round < 10; round += 1) {
    const names = Array.from({ length: 20 }, (_, n) => `m${round}-${n}`);
    // A retry of what does not exist comes first, so that the batch cannot claim the spend at its beginning.
    const mixed = (order: readonly string[]) =>
      order.flatMap((customerId) => [asks({ customerId, retryAfterGeneration: 1 }), asks({ customerId })]);
    await Promise.all([
      granting.authorize(...mixed(names)),
      granting.authorize(...mixed(names.toReversed())),
      granting.authorize(...names.map((customerId) => asks({ customerId }))),
    ]);
  }
  expect(await deadlocks()).toBe(0n);
  await granting.expectCountersToAddUp();
});

import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization } from "../../server/domain/spend.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { commitBatch } from "../../server/store/spend.ts";
import { asks, commitCommand, type Granting, openGranting, usd } from "../support/granting.ts";
import { type Chance, createChance } from "../simulate/random.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  granting = await openGranting(database.pool);
});

/** One spend of each of ten customers, whose cap has a counter for each. */
const batch = (name: string) => Array.from({ length: 10 }, (_, at) => asks({ customerId: `c${at}`, purpose: name }));

async function holding(work: (holder: pg.PoolClient) => Promise<void>): Promise<void> {
  const holder = await database.pool.connect();
  try {
    await holder.query("begin isolation level repeatable read read only");
    await holder.query("select count(*) from holdfast.counters");
    await work(holder);
  } finally {
    await holder.query("rollback");
    holder.release();
  }
}

/** How many blocks of the counters and of their indexes have been looked at by now. */
async function looks(client: pg.PoolClient): Promise<number> {
  // A session tells of it at its own pace, and else when it is asked to, once its transaction has ended.
  await client.query("select pg_stat_force_next_flush()");
  const { rows } = await client.query<{ looks: number }>(
    `select (heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::float8 as looks
     from pg_statio_user_tables where schemaname = 'holdfast' and relname = 'counters'`,
  );
  return rows[0]?.looks ?? Number.NaN;
}

describe("beside a snapshot that stays open", () => {
  test("what a batch costs does not grow with the versions of its counters that cannot go", async () => {
    await granting.cap("each", usd(1_000_000), { perCustomer: true });
    const client = await database.pool.connect();
    try {
      await holding(async () => {
        const costs: number[] = [];
        for (let round = 0; round < 300; round += 1) {
          const before = await looks(client);
          const decisions = await authorizeBatch(client, granting.workspace, batch(`${round}`));
          const settled = decisions.map(({ authorization }) => {
            if (authorization === undefined) throw new Error("not granted");
            return authorization;
          });
          for (const one of settled) {
            expect((await granting.raise(one, usd(11), { on: client })).errorReason).toBeUndefined();
          }
          await commitBatch(
            client,
            granting.workspace,
            settled.map((one) => commitCommand(one)),
          );
          // Never bound, and asked for again with another body: the next generation takes the place of the first.
          for (const body of ["a", "b"]) {
            const replaced = { purpose: `${round} again`, settlement: "TWO_STEP", holdForMs: 1 } as const;
            const asked = asks({ ...replaced, customerId: "c0", bodyFingerprint: body.repeat(64) });
            expect(await authorizeBatch(client, granting.workspace, [asked])).toMatchObject([
              { disposition: "GRANTED", authorization: { generation: body === "a" ? 1 : 2 } },
            ]);
            await delay(2);
          }
          costs.push((await looks(client)) - before);
        }
        // Of a vacuum that comes by, the looks are in a few rounds only. The first rounds make what the later ones find.
        const usual = (some: readonly number[]) => some.toSorted((one, other) => one - other)[some.length / 2] ?? 0;
        expect(usual(costs.slice(-50))).toBeLessThan(1.5 * usual(costs.slice(20, 70)));
        expect(usual(costs.slice(-50))).toBeGreaterThan(100);
      });
    } finally {
      client.release();
    }
    expect(await granting.counters()).toHaveLength(10);
    await granting.expectCountersToAddUp();
  }, 120_000);

  test("who has waited for a counter sees what it holds now, and not what its snapshot knows", async () => {
    await granting.cap("tight", usd(20));
    await granting.authorize(asks({ purpose: "made" }));
    await holding(async () => {
      const first = await database.pool.connect();
      try {
        await first.query("begin");
        await authorizeBatch(first, granting.workspace, [asks({ purpose: "fits" })]);
        const second = granting.authorize(asks({ purpose: "waits" }));
        await expect
          .poll(async () => {
            const { rowCount } = await database.pool.query(
              "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            );
            return rowCount;
          })
          .toBe(1);
        await first.query("commit");
        expect(await second).toMatchObject([{ disposition: "DENIED", rule: "CAP_HEADROOM" }]);
      } finally {
        first.release();
      }
    });
    await granting.expectCountersToAddUp();
  });
});

test("many that make the same counters at once make each once", async () => {
  await granting.cap("each", usd(1_000_000), { perCustomer: true });
  await Promise.all(Array.from({ length: 8 }, (_, at) => granting.authorize(...batch(`all ${at}`))));
  expect(await granting.counters()).toHaveLength(10);
  await granting.expectCountersToAddUp();
});

test("a counter that is lost is not made again at nothing: what has no figures denies, and nothing moves it", async () => {
  await granting.cap("lost", usd(100));
  const [granted] = await granting.authorize(asks());
  if (granted?.authorization === undefined) throw new Error("not granted");
  await database.pool.query("delete from holdfast.counters where workspace_id = $1", [granting.workspace]);
  expect(await granting.authorize(asks({ purpose: "another" }))).toMatchObject([
    { disposition: "DENIED", rule: "CAP_HEADROOM" },
  ]);
  await expect(
    commitBatch(database.pool, granting.workspace, [commitCommand(granted.authorization)]),
  ).rejects.toMatchObject({ code: "XX001", message: "1 counters were not there to be moved" });
});

test("counters can be replicated to another server, as before an upgrade", async () => {
  await granting.cap("all", usd(100));
  await database.pool.query("create publication everything for all tables");
  try {
    await granting.authorize(asks());
    expect(await granting.authorize(asks({ purpose: "again" }))).toMatchObject([{ disposition: "GRANTED" }]);
  } finally {
    await database.pool.query("drop publication everything");
  }
});

test("grants, commits, voids and raises at once, some rolled back and some cut off, wait in one order and count each once", async () => {
  const { pool } = database;
  await granting.cap("all", usd(600));
  await granting.cap("each", usd(300), { perCustomer: true, window: "DAY" });
  await granting.cap("number", 350);
  const chance = createChance(20_261_203);
  const outcomes = new Map<string, number>();
  const note = (what: string) => void outcomes.set(what, (outcomes.get(what) ?? 0) + 1);

  const work = async (worker: number, own: Chance): Promise<void> => {
    const open: Authorization[] = [];
    for (let round = 0; round < 25; round += 1) {
      const client = new pg.Client(database.connection);
      // A session that is ended says so whenever it likes.
      client.on("error", () => {});
      const fate = own.pick(["commit", "commit", "commit", "commit", "rollback", "cut", "cut at once"] as const);
      const granted: Authorization[] = [];
      try {
        await client.connect();
        const { rows } = await client.query<{ pid: number }>("select pg_backend_pid() as pid");
        const cut = () => pool.query("select pg_terminate_backend($1)", [rows[0]?.pid]);
        await client.query("begin");
        const cutting = fate === "cut at once" ? cut() : undefined;
        cutting?.catch(() => {});
        const customers = Array.from({ length: own.between(1, 5) }, () => `c${own.between(0, 5)}`);
        const asked = customers.map((customerId, at) => asks({ customerId, purpose: `${worker}-${round}-${at}` }));
        for (const one of await authorizeBatch(client, granting.workspace, asked)) {
          note(one.rule ?? one.disposition ?? "error");
          if (one.authorization !== undefined) granted.push(one.authorization);
        }
        const [first, second, ...others] = open.slice(0, own.between(0, 4));
        if (first !== undefined) await granting.refuse(first, client);
        if (second !== undefined) await granting.raise(second, usd(11), { on: client });
        const commits = others.map((one) => commitCommand(one));
        if (commits.length > 0) {
          await commitBatch(client, granting.workspace, [...commits, ...commits.slice(0, 1)]);
        }
        // Holding every lock that it has taken.
        if (fate === "cut") await cut();
        await client.query(fate === "rollback" ? "rollback" : "commit");
        note(fate);
        if (fate === "commit") {
          open.splice(0, 2 + others.length);
          open.push(...granted);
        }
      } catch (error) {
        note((error as { code?: string }).code ?? "cut");
      } finally {
        await client.end().catch(() => {});
      }
    }
  };
  await Promise.all(Array.from({ length: 6 }, (_, worker) => work(worker, chance.fork())));
  await granting.expectCountersToAddUp();
  const counters = await granting.counters();
  const most: Record<string, bigint> = { all: usd(600).micros, each: usd(300).micros, number: 350n };
  for (const { capId, committed, held } of counters) expect(committed + held).toBeLessThanOrEqual(most[capId] ?? 0n);
  // A deadlock.
  expect(outcomes.get("40P01")).toBeUndefined();
  for (const one of ["CAP_HEADROOM", "GRANTED", "commit", "rollback"]) expect(outcomes.get(one)).toBeGreaterThan(0);
  expect((outcomes.get("57P01") ?? 0) + (outcomes.get("cut") ?? 0)).toBeGreaterThan(0);
  const { rows } = await pool.query(
    `select from holdfast.counters where workspace_id = $1 group by cap_id, window_label, subject having count(*) > 1`,
    [granting.workspace],
  );
  expect(rows).toEqual([]);
}, 120_000);

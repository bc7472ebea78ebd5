import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization } from "../../server/domain/spend.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { recover } from "../../server/store/instance.ts";
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

/** With a snapshot open from before the work until after it. */
async function holding(work: () => Promise<void>): Promise<void> {
  const holder = await database.pool.connect();
  try {
    await holder.query("begin isolation level repeatable read read only");
    await holder.query("select count(*) from holdfast.counters");
    await work();
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
        const costs: Record<"grant" | "raise" | "commit" | "replace", number[]> = {
          grant: [],
          raise: [],
          commit: [],
          replace: [],
        };
        const counting = async <Result>(what: keyof typeof costs, call: () => Promise<Result>): Promise<Result> => {
          const before = await looks(client);
          const result = await call();
          costs[what].push((await looks(client)) - before);
          return result;
        };
        const authorize = (...asked: Parameters<Granting["authorize"]>) =>
          authorizeBatch(client, granting.workspace, asked);
        for (let round = 0; round < 300; round += 1) {
          const decisions = await counting("grant", () => authorize(...batch(`${round}`)));
          const settled = decisions.map(({ authorization }) => {
            if (authorization === undefined) throw new Error("not granted");
            return authorization;
          });
          const [first] = settled;
          if (first === undefined) throw new Error("nothing was granted");
          const raised = await counting("raise", () => granting.raise(first, usd(11), { on: client }));
          expect(raised.errorReason).toBeUndefined();
          const commits = settled.map((one) => commitCommand(one));
          await counting("commit", () => commitBatch(client, granting.workspace, commits));
          // Never bound, and asked for again with another body: the next generation takes the place of the first.
          const held = { purpose: `${round} again`, settlement: "TWO_STEP", holdForMs: 1, customerId: "c0" } as const;
          await authorize(asks({ ...held, bodyFingerprint: "a".repeat(64) }));
          await delay(2);
          const other = asks({ ...held, bodyFingerprint: "b".repeat(64) });
          expect(await counting("replace", () => authorize(other))).toMatchObject([
            { authorization: { generation: 2 } },
          ]);
          await delay(2);
        }
        // A vacuum that comes by is in a few rounds only. The first rounds make what the later ones find.
        const usual = (some: readonly number[]) => some.toSorted((one, other) => one - other)[some.length / 2] ?? 0;
        for (const [what, all] of Object.entries(costs)) {
          expect(usual(all.slice(-50)), what).toBeLessThan(1.5 * usual(all.slice(20, 70)));
          expect(usual(all.slice(-50)), what).toBeGreaterThan(5);
        }
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

test.each([
  ["twice", "insert into holdfast.counters select * from holdfast.counters where workspace_id = $1"],
  ["not at all", "delete from holdfast.counters where workspace_id = $1"],
  ["without its key", "delete from holdfast.counter_keys where workspace_id = $1"],
])("a database in which a counter is there %s is not taken into use", async (_how, damage) => {
  const own = await createTestDatabase();
  try {
    granting = await openGranting(own.pool);
    await granting.cap("all", usd(100));
    await granting.authorize(asks());
    expect(await recover(own.connection, { force: true })).toMatchObject({ recovered: true, held: 1n });
    await own.pool.query(damage, [granting.workspace]);
    await expect(recover(own.connection, { force: true })).rejects.toMatchObject({
      exitCode: 88,
      message: expect.stringContaining(`workspace ${granting.workspace}, cap all, window "", customer ""`),
    });
  } finally {
    await own.close();
  }
});

test("counters go on being changed where all tables are published, as before an upgrade", async () => {
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

  const cuts: Promise<unknown>[] = [];
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
        if (fate === "cut at once") cuts.push(cut());
        const customers = Array.from({ length: own.between(1, 5) }, () => `c${own.between(0, 5)}`);
        const asked = customers.map((customerId, at) => asks({ customerId, purpose: `${worker}-${round}-${at}` }));
        for (const one of await authorizeBatch(client, granting.workspace, asked)) {
          note(one.rule ?? one.disposition ?? "error");
          if (one.authorization !== undefined) granted.push(one.authorization);
        }
        const picked = open.slice(0, own.between(0, 4));
        const [first, second, ...others] = picked;
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
          open.splice(0, picked.length);
          open.push(...granted);
        }
      } catch (error) {
        const { code, message } = error as { code?: string; message: string };
        note(code ?? message);
      } finally {
        // Fails where it was cut off, which is noted already.
        await client.end().catch(() => {});
      }
    }
  };
  await Promise.all(Array.from({ length: 6 }, (_, worker) => work(worker, chance.fork())));
  await Promise.all(cuts);
  await granting.expectCountersToAddUp();
  const counters = await granting.counters();
  const most: Record<string, bigint> = { all: usd(600).micros, each: usd(300).micros, number: 350n };
  for (const { capId, committed, held } of counters) expect(committed + held).toBeLessThanOrEqual(most[capId] ?? 0n);
  for (const one of ["CAP_HEADROOM", "GRANTED", "commit", "rollback", "57P01"]) {
    expect(outcomes.get(one), one).toBeGreaterThan(0);
  }
  // And nothing else: no deadlock (40P01), no counter that was not there (XX001). A session may find its end in two ways.
  const others = [...outcomes.keys()].filter((one) => !/^(CAP_HEADROOM|GRANTED|commit|rollback|57P01)$/.test(one));
  for (const one of others) expect(one).toMatch(/^cut at once$|Connection terminated|not queryable|EPIPE|ECONNRESET/);
  const { rows } = await pool.query(
    `select from holdfast.counters where workspace_id = $1 group by cap_id, window_label, subject having count(*) > 1`,
    [granting.workspace],
  );
  expect(rows).toEqual([]);
}, 120_000);

import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { listAuditEvents, listAuditEventsOfSpend, readAuditHead, unfoldAudit } from "../../server/store/audit.ts";
import { measureAudit } from "../../server/store/audit-partitions.ts";
import { declaredStatements } from "../../server/store/database.ts";
import { inTransaction } from "../../server/store/postgres.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { everything } from "./audit-parts.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

const partitions = 20;

// One connection, which can ask for its own figures at once.
beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 1 } });
  clock = await replaceClock(database.pool);
  await clock.set("2026-11-15T12:00:00Z");
  // Twenty of ten transactions each, which are over, then the one of now.
  await inTransaction(database.pool, async (client) => {
    const { rows } = await client.query<{ table: string }>(
      "select i.inhrelid::regclass::text as table from pg_inherits i where i.inhparent = 'holdfast.audit_events'::regclass",
    );
    for (const { table } of rows) await client.query(`drop table ${table}`);
    await client.query("delete from holdfast.audit_partitions");
    await client.query(
      `select holdfast.create_audit_partition((10 * g.n)::text::xid8, (10 * g.n + 10)::text::xid8, 1000)
       from generate_series(0, $1::integer - 1) as g (n)`,
      [partitions],
    );
    await client.query(
      `select holdfast.create_audit_partition(($1::bigint * 10)::text::xid8, x.far, 1000000),
         holdfast.create_audit_partition(x.far, null, 1000000)
       from (select (pg_current_xact_id()::text::bigint + 1000000)::text::xid8 as far) x`,
      [partitions],
    );
  });
  // One event a minute.
  await database.pool.query(
    `insert into holdfast.audit_events (workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key)
     select 'default', (s.n / 100)::text::xid8, s.n % 100, timestamptz '2026-01-01T00:00:00Z' + s.n * interval '1 minute',
       'plan.event', 'server', 'test', 'key' || s.n
     from generate_series(0, $1 * 1000 - 1) s (n)`,
    [partitions],
  );
  while (await measureAudit(database.pool, 10_000));
  // So that twenty are older than what a second can hold.
  await database.pool.query(`do $$ begin
    create temp table burnt (n integer) on commit drop;
    for n in 1 .. 100000 loop
      begin insert into burnt values (n); exception when division_by_zero then null; end;
    end loop;
  end $$`);
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1_000_000));
  await database.pool.query("analyze holdfast.audit_events");
  await database.pool.query(
    "do $$ declare r record; begin for r in select inhrelid::regclass as c from pg_inherits where inhparent = 'holdfast.audit_events'::regclass loop execute 'analyze ' || r.c; end loop; end $$",
  );
});
afterAll(() => database.close());
beforeEach(() => clock.set("2026-11-15T12:00:00Z"));

const part = (n: number): string => `events_${n * 10}`;

async function scans(): Promise<Map<string, bigint>> {
  await database.pool.query("select pg_stat_force_next_flush()");
  const { rows } = await database.pool.query<{ name: string; scans: bigint }>(
    `select s.relname as name, coalesce(s.seq_scan, 0) + coalesce(s.idx_scan, 0) as scans
     from pg_stat_user_tables s where s.schemaname = 'holdfast_audit' order by s.relid`,
  );
  return new Map(rows.map(({ name, scans: count }) => [name, count]));
}

/** The partitions that an action has looked into, however often. */
async function looked(action: () => Promise<unknown>): Promise<string[]> {
  const before = await scans();
  await action();
  return [...(await scans())].filter(([name, count]) => count !== before.get(name)).map(([name]) => name);
}

/** So often that a connection ends up with the plan that it keeps. */
async function often(action: (n: number) => Promise<unknown>): Promise<void> {
  for (let n = 0; n < 8; n += 1) await action(n);
}

const micros = (text: string): bigint => BigInt(Date.parse(text)) * 1000n;

describe("what grants and settles looks into no partition", () => {
  test("a grant and a commit", async () => {
    const one = async (n: number) => {
      const row = await granting.grant({ customerId: `plan${n}` });
      await granting.commit(row, { vendorReference: `pi_${n}` });
    };
    expect(await looked(() => often(one))).toEqual([]);
  });

  test("a denial and a refusal look into the one of now, for what they fold into", async () => {
    const denied = () => granting.authorize(asks({ customerId: "denied", amount: usd(2_000_000) }));
    expect(await looked(() => often(denied))).toEqual([part(partitions)]);
    const row = await granting.grant({ customerId: "refused" });
    await granting.commit(row, { vendorReference: "pi_refused" });
    const refused = () =>
      database.pool.query("select * from holdfast.report_unknown($1, $2, $3, 'vault_key', 'main', '', $4)", [
        granting.workspace,
        row.spendKey,
        row.generation,
        "f".repeat(32),
      ]);
    expect(await looked(() => often(refused))).toEqual([part(partitions)]);
  });

  test("so does what makes events of them", async () => {
    const looks = await looked(async () => {
      for (let n = 0; n < 8; n += 1) {
        await granting.authorize(asks({ customerId: "unfolded", amount: usd(2_000_000) }));
        await granting.authorize(asks({ customerId: "unfolded", amount: usd(2_000_000) }));
        await clock.advance(5_000);
        expect(await unfoldAudit(database.pool, granting.workspace, 100)).toBeGreaterThan(0);
      }
    });
    expect(looks).toEqual([part(partitions)]);
  });
});

describe("a reader goes from one partition to the next", () => {
  const list = (query: Partial<Parameters<typeof listAuditEvents>[2]>) =>
    listAuditEvents(database.pool, "default", {
      filter: everything,
      newestFirst: false,
      after: undefined,
      limit: 50,
      ...query,
    });

  test.each([
    ["the first page", {}, [0]],
    ["a page deep in it", { after: { xid: "155", n: 3 } }, [15]],
    ["a page across an edge", { after: { xid: "159", n: 80 } }, [15, 16]],
    ["a page at the end", { after: { xid: "199", n: 80 } }, [19, 20]],
    ["newest first, deep", { after: { xid: "55", n: 70 }, newestFirst: true }, [5]],
    ["newest first, from the end", { newestFirst: true, limit: 5 }, [19, 20]],
    ["from an instant on", { filter: { ...everything, startTime: micros("2026-01-12T00:00:00Z") } }, [15]],
  ] as const)("%s", async (_what, query, expected) => {
    const looks = await looked(() => often(() => list(query)));
    // The one without an end may be asked too, where everything up to the end is.
    expect(looks.filter((name) => Number(name.slice(7)) <= partitions * 10)).toEqual(expected.map(part));
  });

  test("and so does whoever waits for news", async () => {
    const looks = await looked(() => often(() => readAuditHead(database.pool, granting.workspace)));
    expect(looks.filter((name) => Number(name.slice(7)) <= partitions * 10)).toEqual([part(partitions)]);
  });

  test("only the story of a spend, which may be of any time, asks the index of each", async () => {
    const story = (after?: { xid: string; n: number }) =>
      listAuditEventsOfSpend(database.pool, "default", { spendKey: "key7", after, limit: 50 });
    expect(await story()).toHaveLength(1);
    expect((await looked(() => often(() => story()))).length).toBeGreaterThanOrEqual(partitions);
    expect((await looked(() => story({ xid: "180", n: 0 }))).filter((name) => Number(name.slice(7)) < 180)).toEqual([]);
  });
});

interface Plan {
  readonly "Relation Name"?: string;
  readonly "Actual Rows": number;
  readonly "Rows Removed by Filter"?: number;
  readonly Plans?: readonly Plan[];
}

function readBy(plan: Plan | undefined): number {
  if (plan === undefined) return 0;
  const isOfAudit = /^events_\d+$/.test(plan["Relation Name"] ?? "");
  const own = isOfAudit ? plan["Actual Rows"] + (plan["Rows Removed by Filter"] ?? 0) : 0;
  return (plan.Plans ?? []).reduce((sum, one) => sum + readBy(one), own);
}

/** How many events a page deep in the audit reads, with the plan that a connection ends up with. */
async function eventsRead(name: string, position: string, limit: string): Promise<number> {
  const statement = declaredStatements().find((one) => one.name === name);
  const client = await database.pool.connect();
  try {
    await client.query(`prepare page as ${statement?.text}`);
    const filters = Array.from({ length: 13 }, () => "null").join(", ");
    // After five of them Postgres chooses between a plan for these parameters and one for all.
    for (let n = 0; n < 8; n += 1) await client.query(`execute page ('default', ${filters}, ${position}, ${limit})`);
    const { rows } = await client.query<{ "QUERY PLAN": readonly { Plan: Plan }[] }>(
      `explain (analyze, format json) execute page ('default', ${filters}, ${position}, ${limit})`,
    );
    await client.query("deallocate page");
    return readBy(rows[0]?.["QUERY PLAN"][0]?.Plan);
  } finally {
    client.release();
  }
}

test.each([
  ["list_audit_events", "'195', 0"],
  ["list_audit_events_newest_first", "'5', 0"],
])("a page deep in %s reads no more events than it shows", async (name, position) => {
  expect(await eventsRead(name, position, "50")).toBe(50);
});

test("so does the look at the end of the audit", async () => {
  const statement = declaredStatements().find((one) => one.name === "read_audit_head");
  const { rows } = await database.pool.query<{ "QUERY PLAN": readonly { Plan: Plan }[] }>(
    `explain (analyze, format json) ${statement?.text.replaceAll("$1::text", "'default'")}`,
  );
  expect(readBy(rows[0]?.["QUERY PLAN"][0]?.Plan)).toBe(1);
});

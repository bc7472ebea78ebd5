import { afterAll, beforeAll, expect, test } from "vitest";
import { declaredStatements } from "../../server/store/database.ts";
import { countOpenContradictions } from "../../server/store/contradiction.ts";
import { listInDoubt, listUnsettled } from "../../server/store/reconcile.ts";
import { type Granting, openGranting } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;

const settled = 5000;
const open = 20;

/** Many settled authorizations and few open ones: as a database looks after its first month. */
beforeAll(async () => {
  database = await createTestDatabase();
  granting = await openGranting(database.pool);
  await database.pool.query(
    `insert into holdfast.authorizations (
       workspace_id, spend_key, generation, customer_id, billing_period, purpose, idempotency_key, vault_key_id, vendor,
       vendor_account, endpoint, currency, amount_micros, held_micros, direction, settlement, state, attempt_id,
       told_may_have_been_sent, body_fingerprint, grant_time, hold_expire_time, latest_hold_expire_time, in_doubt_time,
       vendor_state, follow_until_time, vendor_reference, commit_time, committed_micros, committed_currency
     )
     select $1, '05e0' || md5(n::text), 1, 'c' || n, '2026-11', 'p', md5(n::text), 'main', 'stripe', '', 'POST /v1/charges', 'usd', 1, 1,
       'SPEND', 'SEND_ONCE', s.state, md5(n::text), false, '', t.grant_time, t.grant_time, t.grant_time,
       case when s.state = 'IN_DOUBT' then t.grant_time end,
       case when s.state = 'HELD' and n % 2 = 0 then 'processing' else '' end,
       case when s.state = 'HELD' and n % 2 = 0 then t.grant_time end,
       case when s.state = 'COMMITTED' or n % 2 = 0 then 'ch_' || n end,
       case when s.state = 'COMMITTED' then t.grant_time end, case when s.state = 'COMMITTED' then 1 end,
       case when s.state = 'COMMITTED' then 'usd' end
     from generate_series(1, $2::integer + $3::integer * 3) as n
     cross join lateral (select holdfast.clock() - interval '1 day' + n * interval '1 second' as grant_time) t
     cross join lateral (
       select case when n > $2::integer then (array['IN_DOUBT', 'HELD', 'HELD'])[1 + n % 3] else 'COMMITTED' end as state
     ) s`,
    [granting.workspace, settled, open],
  );
  await database.pool.query("analyze holdfast.authorizations");
});
afterAll(() => database.close());

interface Plan {
  readonly "Node Type": string;
  readonly "Index Name"?: string;
  readonly "Relation Name"?: string;
  readonly "Actual Rows"?: number;
  readonly "Rows Removed by Filter"?: number;
  readonly Plans?: readonly Plan[];
}

const nodes = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodes)];

/** How a statement reads authorizations, with the plan that serves for all values, as it is prepared. */
async function readsOf(name: string, values: readonly string[]): Promise<Plan[]> {
  const text = declaredStatements().find((one) => one.name === name)?.text ?? "";
  const client = await database.pool.connect();
  try {
    await client.query("begin; set local plan_cache_mode = force_generic_plan");
    await client.query(`prepare looked_at as ${text}`);
    const { rows } = await client.query<{ "QUERY PLAN": [{ Plan: Plan }] }>(
      `explain (analyze, costs off, timing off, summary off, buffers off, format json) execute looked_at (${values.join()})`,
    );
    await client.query("rollback; deallocate all");
    const plan = rows[0]?.["QUERY PLAN"][0].Plan as Plan;
    return nodes(plan).filter((node) => node["Relation Name"] === "authorizations");
  } finally {
    client.release();
  }
}

const workspace = (): string => `'${granting.workspace}'`;

test("the list of what is not settled reads no settled row", async () => {
  const all = { vaultKeyId: "main", includeNotDue: false, after: undefined, limit: 100 };
  expect(await listUnsettled(database.pool, granting.workspace, all)).toHaveLength(3 * open);
  const reads = await readsOf("list_unsettled_authorizations", [
    workspace(),
    "'main'",
    "false",
    "null",
    "null",
    "null",
    "100",
  ]);
  expect(reads.map((node) => node["Node Type"]).filter((type) => type === "Seq Scan")).toEqual([]);
  for (const node of reads) {
    expect((node["Actual Rows"] ?? 0) + (node["Rows Removed by Filter"] ?? 0)).toBeLessThanOrEqual(3 * open);
  }
});

test("the list of what is in doubt reads no settled row", async () => {
  const found = await listInDoubt(database.pool, granting.workspace, { after: undefined, limit: 100 });
  expect(found.totalCount).toBe(BigInt(3 * open));
  const reads = await readsOf("list_in_doubt_authorizations", [workspace(), "null", "null", "null", "100"]);
  expect(reads.map((node) => node["Node Type"]).filter((type) => type === "Seq Scan")).toEqual([]);
  for (const node of reads) {
    expect((node["Actual Rows"] ?? 0) + (node["Rows Removed by Filter"] ?? 0)).toBeLessThanOrEqual(3 * open);
  }
});

test("open contradictions are counted without reading the closed ones", async () => {
  await database.pool.query(
    `insert into holdfast.contradictions (
       workspace_id, spend_key, generation, vendor, vendor_account, vendor_reference, kind, amount_micros, currency,
       counted_micros, attempt_id, create_time, contradiction_id, close_time, close_reason
     )
     select $1, md5(n::text), 1, 'stripe', '', 'ch_' || n, 'OTHER_REFERENCE', 1, 'usd', 1, '', holdfast.clock(), md5(n::text),
       case when n > 10 then holdfast.clock() end, case when n > 10 then 'refunded' end
     from generate_series(1, 3000) as n`,
    [granting.workspace],
  );
  await database.pool.query("analyze holdfast.contradictions");
  expect(await countOpenContradictions(database.pool, granting.workspace)).toBe(10n);
  const text = declaredStatements().find(({ name }) => name === "count_open_contradictions")?.text ?? "";
  const { rows } = await database.pool.query<{ "QUERY PLAN": string }>(
    `explain ${text.replaceAll("$1::text", workspace())}`,
  );
  expect(rows.map((row) => row["QUERY PLAN"]).join("\n")).toContain("contradictions_open_idx");
});

import { afterAll, beforeAll, expect, test } from "vitest";
import "../../server/store/audit.ts";
import { declaredStatements } from "../../server/store/database.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
  await database.pool.query(
    `insert into holdfast.audit_events (workspace_id, xid, n, event_time, kind, actor_kind, actor_id)
     select 'default', (1 + s.n / 100)::text::xid8, s.n % 100, clock_timestamp(), 'plan.event', 'server', 'test'
     from generate_series(0, 19999) s (n)`,
  );
  await database.pool.query("analyze holdfast.audit_events");
});
afterAll(() => database.close());

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

interface Plan {
  readonly "Relation Name"?: string;
  readonly "Actual Rows": number;
  readonly "Rows Removed by Filter"?: number;
  readonly Plans?: readonly Plan[];
}

function readBy(plan: Plan | undefined): number {
  if (plan === undefined) return 0;
  const own =
    plan["Relation Name"] === "audit_events" ? plan["Actual Rows"] + (plan["Rows Removed by Filter"] ?? 0) : 0;
  return (plan.Plans ?? []).reduce((sum, one) => sum + readBy(one), own);
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

import { readdir } from "node:fs/promises";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { stableKey } from "../../server/domain/spend.ts";
import { declaredStatements } from "../../server/store/database.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

const storeFolder = new URL("../../server/store/", import.meta.url);

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
  for (const file of await readdir(storeFolder)) {
    if (file.endsWith(".ts")) await import(new URL(file, storeFolder).href);
  }
});
afterAll(() => database.close());

async function column(text: string, values: unknown[] = []): Promise<unknown[]> {
  const result = await database.pool.query<Record<string, unknown>>(text, values);
  return result.rows.map((row) => Object.values(row)[0]);
}

describe("the statements of the store", () => {
  test("each prepares against a migrated database and carries its name", async () => {
    expect(declaredStatements().length).toBeGreaterThan(25);
    const client = await database.pool.connect();
    try {
      for (const { name, text } of declaredStatements()) {
        expect(text.startsWith(`/* ${name} */ `)).toBe(true);
        await expect(client.query(`prepare s_${name} as ${text}`), name).resolves.toBeDefined();
      }
    } finally {
      client.release();
    }
  });

  test("each parameter is cast, so that its type never depends on the plan", () => {
    for (const { name, text } of declaredStatements()) {
      expect(text.match(/\$\d+(?!\d|::)/g) ?? [], name).toEqual([]);
    }
  });
});

describe("the schema can be distributed by workspace", () => {
  test("every table has its workspace in front of its primary key, but those of the whole database", async () => {
    const others = await column(
      `select r.relname from pg_class r
       where r.relnamespace = 'holdfast'::regnamespace and r.relkind in ('r', 'p')
         and not exists (
           select from pg_index i
           join pg_attribute a on a.attrelid = r.oid and a.attnum = i.indkey[0]
           where i.indrelid = r.oid and i.indisprimary and a.attname = 'workspace_id' and a.attnotnull
             and a.atttypid = 'text'::regtype and a.attcollation = 'default'::regcollation
         )
       order by 1`,
    );
    // An account of a vendor belongs to one workspace, so its key holds across all. Counters have theirs in counter_keys.
    expect(others).toEqual(["audit_partitions", "counters", "instance", "migrations", "vendor_accounts"]);
  });

  test("every primary key and unique index begins with workspace_id, which is never null", async () => {
    const indexes = await column(
      `select c.relname || ': ' || a.attname || case when a.attnotnull then '' else ' null' end
       from pg_index i
       join pg_class c on c.oid = i.indexrelid
       join pg_class r on r.oid = i.indrelid
       join pg_namespace n on n.oid = r.relnamespace
       join pg_attribute a on a.attrelid = r.oid and a.attnum = i.indkey[0]
       where n.nspname = 'holdfast' and i.indisunique and r.relname not in ('migrations', 'instance', 'audit_partitions', 'vendor_accounts')
       order by 1`,
    );
    expect(indexes.length).toBeGreaterThan(10);
    for (const one of indexes) expect(one).toMatch(/: workspace_id$/);
  });

  test("every table of a workspace has a primary key, but the counters, whose keys are a table of their own", async () => {
    const without = await column(
      `select r.relname from pg_class r join pg_namespace n on n.oid = r.relnamespace
       where n.nspname = 'holdfast' and r.relkind in ('r', 'p')
         and not exists (select from pg_index i where i.indrelid = r.oid and i.indisprimary)`,
    );
    expect(without).toEqual(["counters"]);
  });

  test("every foreign key begins with workspace_id on both sides", async () => {
    const keys = await column(
      `select k.conname from pg_constraint k
       join pg_namespace n on n.oid = k.connamespace
       join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
       join pg_attribute b on b.attrelid = k.confrelid and b.attnum = k.confkey[1]
       where n.nspname = 'holdfast' and k.contype = 'f' and (a.attname <> 'workspace_id' or b.attname <> 'workspace_id')`,
    );
    expect(keys).toEqual([]);
  });

  test.each([
    [
      "triggers but the one that keeps the audit as it is",
      "select t.tgname from pg_trigger t join pg_class r on r.oid = t.tgrelid join pg_namespace n on n.oid = r.relnamespace where n.nspname = 'holdfast' and not t.tgisinternal and t.tgname <> 'audit_events_append_only'",
    ],
    [
      "sequences",
      "select r.relname from pg_class r join pg_namespace n on n.oid = r.relnamespace where n.nspname = 'holdfast' and r.relkind = 'S'",
    ],
    [
      "identity or generated columns",
      "select r.relname || '.' || a.attname from pg_attribute a join pg_class r on r.oid = a.attrelid join pg_namespace n on n.oid = r.relnamespace where n.nspname = 'holdfast' and (a.attidentity <> '' or a.attgenerated <> '')",
    ],
    [
      "exclusion constraints, and foreign keys that change rows by themselves",
      "select k.conname from pg_constraint k join pg_namespace n on n.oid = k.connamespace where n.nspname = 'holdfast' and (k.contype = 'x' or (k.contype = 'f' and (k.confdeltype <> 'a' or k.confupdtype <> 'a')))",
    ],
    [
      "views, rules or inherited tables",
      "select r.relname from pg_class r join pg_namespace n on n.oid = r.relnamespace where n.nspname = 'holdfast' and (r.relkind in ('v', 'm') or r.relhasrules or exists (select from pg_inherits i where i.inhrelid = r.oid))",
    ],
    [
      "enum types",
      "select t.typname from pg_type t join pg_namespace n on n.oid = t.typnamespace where n.nspname = 'holdfast' and t.typtype = 'e'",
    ],
    [
      "constraints that nobody named",
      "select k.conname from pg_constraint k join pg_namespace n on n.oid = k.connamespace where n.nspname = 'holdfast' and k.contype = 'c' and k.conname !~ '_check$'",
    ],
    [
      "advisory locks",
      "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'holdfast' and p.prosrc ~ 'pg_(try_)?advisory'",
    ],
    // "into a[i]" is read as "into a", which replaces the array.
    [
      "array elements as targets of into",
      "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'holdfast' and p.prosrc ~* '\\minto\\s+\\w+\\['",
    ],
    [
      "readings of a clock but holdfast.clock()",
      "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'holdfast' and p.proname <> 'clock' and p.prosrc ~* '(clock_timestamp|statement_timestamp|transaction_timestamp|\\mnow)\\s*\\(|current_(timestamp|date|time)\\M'",
    ],
  ])("there are no %s", async (_what, text) => {
    expect(await column(text)).toEqual([]);
  });

  test("two functions have their owner's rights: they take numbers alone, and no path leads them elsewhere", async () => {
    const owned = await column(
      `select p.proname || ': ' || array_to_string(p.proconfig, ', ') from pg_proc p
       join pg_namespace n on n.oid = p.pronamespace where n.nspname like 'holdfast%' and p.prosecdef order by p.proname`,
    );
    expect(owned).toEqual([
      "extend_audit: search_path=pg_catalog, pg_temp, lock_timeout=100ms",
      "measure_audit: search_path=pg_catalog, pg_temp",
    ]);
  });

  test("what is partitioned keeps its rules in every partition", async () => {
    const bare = await column(
      `select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where n.nspname = 'holdfast_audit' and c.relkind = 'r' and (
         not exists (
           select from pg_trigger t
           where t.tgrelid = c.oid and t.tgname = 'audit_events_append_only' and t.tgenabled = 'A'
         ) or c.relacl is not null or not exists (select from pg_inherits i where i.inhrelid = c.oid))`,
    );
    expect(bare).toEqual([]);
    // Readers open none but those that they need; nothing would be left of that with one for all the rest.
    expect(await column("select d.partdefid from pg_partitioned_table d where d.partdefid <> 0")).toEqual([]);
  });
});

describe("holdfast.idempotency_key", () => {
  const key = async (...values: [string, string, string, number]) =>
    (await column("select holdfast.idempotency_key($1, $2, $3, $4::integer)", values))[0];

  test("has the value that callers in other languages compute", async () => {
    expect(await key("cust_123", "2026-11", "ratpack-billing", 1)).toBe("8ee6c974a09685f4291fef983a1129f5");
  });

  test("is the same as in TypeScript for every identity and generation", async () => {
    const part = fc.string({ unit: "grapheme", minLength: 1, maxLength: 40 }).filter((text) => !text.includes("\0"));
    await fc.assert(
      fc.asyncProperty(
        part,
        part,
        part,
        fc.integer({ min: 1, max: 9_999_999 }),
        async (customerId, billingPeriod, purpose, n) => {
          expect(await key(customerId, billingPeriod, purpose, n)).toBe(
            stableKey({ customerId, billingPeriod, purpose }, n),
          );
        },
      ),
      { numRuns: 200 },
    );
  });

  test("of generation 2 is not the one of a purpose that ends like it", async () => {
    expect(await key("c", "p", "x", 2)).not.toBe(await key("c", "p", "x:g2", 1));
    expect(await key("c", "p", "x", 2)).not.toBe(await key("c", "p", "xg2", 1));
  });
});

describe("holdfast.endpoint_allowed", () => {
  test.each([
    ["POST /v1/charges", "POST /v1/charges", true],
    ["POST /v1/charges", "GET /v1/charges", false],
    ["POST /v1/charges", "POST /v1/charges/ch_1", false],
    ["POST /v1/charges/ch_1", "POST /v1/charges", false],
    ["POST /v1/charges", "POST /v1/chargesx", false],
    ["POST /v1/charges", "POST /v1/Charges", false],
    ["GET /v1/charges/:id", "GET /v1/charges/ch_1", true],
    ["GET /v1/charges/:id", "GET /v1/charges/:id", true],
    ["GET /v1/charges/:id", "GET /v1/charges/", false],
    ["GET /v1/charges/:id", "GET /v1/charges", false],
    ["GET /v1/charges/:id", "GET /v1/charges/ch_1/refunds", false],
    ["GET /v1/charges/:id", "POST /v1/charges/ch_1", false],
    ["GET /v1/charges/ch_1", "GET /v1/charges/:id", false],
    ["POST /v1/:kind/:id/capture", "POST /v1/charges/ch_1/capture", true],
    ["POST /v1/:kind/:id/capture", "POST /v1/charges/ch_1/cancel", false],
    ["POST /v1/:kind", "POST /v2/charges", false],
    ["POST /v1/x:y", "POST /v1/x1", false],
    ["POST /v1/a_b", "POST /v1/aXb", false],
    ["POST /v1/%", "POST /v1/charges", false],
    ["POST /:a", "POST /", false],
  ])("%s allows %s: %s", async (template, endpoint, allowed) => {
    expect(await column("select holdfast.endpoint_allowed(array[$1], $2)", [template, endpoint])).toEqual([allowed]);
  });

  test("an empty list allows nothing, and any one template of several is enough", async () => {
    const allowed = (templates: string[]) =>
      column("select holdfast.endpoint_allowed($1::text[], 'POST /v1/charges')", [templates]);
    expect(await allowed([])).toEqual([false]);
    expect(await allowed(["POST /v1/refunds", "POST /v1/:any"])).toEqual([true]);
  });
});

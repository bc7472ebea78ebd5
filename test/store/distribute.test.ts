import { readdir, readFile } from "node:fs/promises";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { declaredStatements } from "../../server/store/database.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

const storeFolder = new URL("../../server/store/", import.meta.url);

let database: TestDatabase;
/** Where the schema of the server is no default. */
let client: pg.Client;
let script: string;

beforeAll(async () => {
  database = await createTestDatabase();
  client = new pg.Client(database.connection);
  await client.connect();
  await client.query("set search_path = public");
  for (const file of await readdir(storeFolder)) {
    if (file.endsWith(".ts")) await import(new URL(file, storeFolder).href);
  }
  script = await readFile(new URL("../../deploy/citus/distribute.sql", import.meta.url), "utf8");
  await client.query(await readFile(new URL("citus-stub.sql", import.meta.url), "utf8"));
});
afterAll(async () => {
  await client.end();
  await database.close();
});

async function column(text: string, values: unknown[] = []): Promise<string[]> {
  const { rows } = await client.query<Record<string, string>>(text, values);
  return rows.map((row) => Object.values(row)[0] ?? "");
}

/** The lists of the script: names of tables, and functions as they stand there. */
function listed(): { readonly tables: string[]; readonly functions: string[] } {
  const names = [...script.matchAll(/array array\[([^]*?)\n\s*\] loop/g)].flatMap(([, list = ""]) =>
    [...list.matchAll(/'([^']+)'/g)].map(([, name = ""]) => name),
  );
  return {
    tables: names.filter((name) => !name.includes("(")),
    functions: names.filter((name) => name.includes("(")),
  };
}

/** The script without what psql and Citus alone understand. */
function withoutCitus(): string {
  return script.replace(/^\\set .*$/m, "").replace("create extension if not exists citus;", "");
}

/** What only the coordinator can do, or nobody needs any more. */
const staysThere = [
  "audit_partition_name",
  "create_audit_partition",
  "current_timeline",
  "detach_audit",
  "extend_audit",
  "instance_problem",
  "measure_audit",
  "recover",
  "refuse_audit_change",
  "register_instance",
  "where_granting",
];

describe("deploy/citus/distribute.sql", () => {
  test("names every table once, and none that does not exist", async () => {
    const tables = await column(
      "select c.relname from pg_class c where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')",
    );
    expect(listed().tables.toSorted()).toEqual(tables.toSorted());
  });

  test("names every function once, and none that does not exist", async () => {
    const functions = await column("select f::regprocedure::text from unnest($1::text[]) as f", [listed().functions]);
    const there = await column(
      `select p.oid::regprocedure::text from pg_proc p
       where p.pronamespace = 'holdfast'::regnamespace and p.proname <> all ($1::text[])`,
      [staysThere],
    );
    expect(functions.toSorted()).toEqual(there.toSorted());
  });

  test("names every function whose first argument is the workspace once", async () => {
    const ofWorkspace = await column(
      "select p.proname from pg_proc p where p.pronamespace = 'holdfast'::regnamespace and p.proargnames[1] = 'p_workspace'",
    );
    expect(ofWorkspace.length).toBeGreaterThan(30);
    const names = listed().functions.map((name) => /^holdfast\.(\w+)/.exec(name)?.[1]);
    for (const one of ofWorkspace)
      expect(
        names.filter((name) => name === one),
        one,
      ).toHaveLength(1);
  });

  test("resets every setting under which Citus cannot plan, and none that is not there", async () => {
    const set = await column(
      `select p.oid::regprocedure::text from pg_proc p, unnest(p.proconfig) as c (setting)
       where p.pronamespace = 'holdfast'::regnamespace and c.setting like 'plan_cache_mode=%'`,
    );
    const reset = [...script.matchAll(/alter function ([^;]+) reset plan_cache_mode;/g)].map(([, name]) => name);
    expect(set.length).toBeGreaterThan(0);
    expect(await column("select f::regprocedure::text from unnest($1::text[]) as f order by 1", [reset])).toEqual(
      set.toSorted(),
    );
  });

  test("drops every trigger of the schema", async () => {
    const triggers = await column(
      `select t.tgname || ' on ' || t.tgrelid::regclass::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
       where c.relnamespace = 'holdfast'::regnamespace and not t.tgisinternal`,
    );
    expect(triggers).toEqual(["audit_events_append_only on holdfast.audit_events"]);
    await client.query("begin");
    await client.query(withoutCitus().replaceAll(/^(?:begin|commit);$/gm, ""));
    expect(
      await column(
        `select t.tgrelid::regclass::text from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace::regnamespace::text like 'holdfast%' and not t.tgisinternal`,
      ),
    ).toEqual([]);
    // Nothing is known of partitions any more, so nobody makes or detaches one.
    expect(await column("select coalesce(holdfast.extend_audit(), 'nothing')")).toEqual(["nothing"]);
    expect(await column("select from_xid::text from holdfast.audit_partitions")).toEqual([]);
    await client.query("rollback");
  });

  test("runs twice on a database that keeps the rules of Citus, in its order", async () => {
    await client.query(withoutCitus());
    await client.query(withoutCitus());
    const whole = await column(
      "select logicalrelid::text from pg_dist_partition where distribution is null order by 1",
    );
    expect(whole).toEqual([
      "holdfast.audit_partitions",
      "holdfast.instance",
      "holdfast.migrations",
      "holdfast.vendor_accounts",
    ]);
    // What the servers call of one workspace is sent to its node; what those call is there, and is sent nowhere.
    const sent = await column(
      "select p.proname from pg_dist_function f join pg_proc p on p.oid = f.function where f.argument = 'p_workspace'",
    );
    const asked = declaredStatements().flatMap(({ text }) =>
      [...text.matchAll(/(?:\bfrom|\*\/ select) holdfast\.(\w+)\(\s*(?:holdfast\.where_granting\()?\$1::text/g)].map(
        ([, name = ""]) => name,
      ),
    );
    expect(sent.toSorted()).toEqual([...new Set(asked)].filter((name) => name !== "sweep_expired").toSorted());
  });

  test("says which table of a newer schema it does not know, and does nothing", async () => {
    await client.query("create table holdfast.news (workspace_id text primary key)");
    await expect(client.query(withoutCitus())).rejects.toThrow("not distributed: holdfast.news");
    await client.query("rollback");
    await client.query("drop table holdfast.news");
  });
});

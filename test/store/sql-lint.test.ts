import { readdir, readFile } from "node:fs/promises";
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { declaredStatements } from "../../server/store/database.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import {
  foreignCalls,
  readStoredFunctions,
  type StoredFunction,
  sessionWords,
  statementsOf,
  unboundTables,
  unstableChangesOf,
} from "./sql-lint.ts";
import { type Functions, parseStatement, readFunctions, unstableChanges } from "./sql-tree.ts";

const storeFolder = new URL("../../server/store/", import.meta.url);

/** Statements about all workspaces. On Citus each asks every shard, and none of them is on the path of a grant. */
const ofEveryWorkspace: Readonly<Record<string, string>> = {
  list_workspaces: "what a server sweeps and reconciles in turn",
  read_reconciliation_figures: "a metric of every workspace",
  read_headroom_figures: "a metric of every workspace",
  count_caps_per_customer: "a metric of all of them",
  read_lease_figures: "a metric of every workspace",
  list_audit_partitions: "partitions have events of all of them; an operator asks",
};

/** Functions about all workspaces, which run on the coordinator. */
const functionsOfEveryWorkspace: Readonly<Record<string, string>> = {
  detach_audit: "tells each workspace; it binds all but the list of them",
  recover: "takes a whole database into use; it binds all but the list of workspaces",
  register_instance: "asks whether anything was ever granted",
};

let database: TestDatabase;
let client: pg.PoolClient;
let functions: Functions;
let stored: readonly StoredFunction[];
let distributed: ReadonlySet<string>;
let ofWorkspace: ReadonlySet<string>;

beforeAll(async () => {
  database = await createTestDatabase();
  for (const file of await readdir(storeFolder)) {
    if (file.endsWith(".ts")) await import(new URL(file, storeFolder).href);
  }
  client = await database.pool.connect();
  functions = await readFunctions(client);
  stored = await readStoredFunctions(client);
  ofWorkspace = new Set(stored.filter((one) => one.parameters[0]?.name === "p_workspace").map(({ name }) => name));
  const { rows } = await client.query<{ name: string }>(
    `select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'workspace_id'
     where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p') and c.relname <> 'vendor_accounts'`,
  );
  distributed = new Set(rows.map(({ name }) => name));
});
afterAll(async () => {
  client.release();
  await database.close();
});

const ours = ["$1::text"];
const variables = ["p_workspace", "p_row.workspace_id", "w.workspace_id"];

describe("one statement is about one workspace", () => {
  test("every statement of the store binds each distributed table to its first parameter, but those of all workspaces", () => {
    const unbound = declaredStatements()
      .filter(
        ({ text }) => [...unboundTables(text, distributed, ours), ...foreignCalls(text, ofWorkspace, ours)].length > 0,
      )
      .map(({ name }) => name);
    expect(unbound.toSorted()).toEqual(Object.keys(ofEveryWorkspace).toSorted());
  });

  test("every statement of a function binds each distributed table to the workspace of its arguments", () => {
    const unbound = stored
      .filter(({ source }) =>
        statementsOf(source).some(
          (text) =>
            [...unboundTables(text, distributed, variables), ...foreignCalls(text, ofWorkspace, variables)].length > 0,
        ),
      )
      .map(({ name }) => name);
    expect(unbound).toEqual(Object.keys(functionsOfEveryWorkspace));
  });

  test.each([
    ["reads another workspace too", "select c.cap_id from holdfast.caps c where c.cap_id = $2::text"],
    ["binds the wrong parameter", "select c.cap_id from holdfast.caps c where c.workspace_id = $2::text"],
    [
      "binds one of two",
      "select c.cap_id from holdfast.caps c join holdfast.counters n on n.cap_id = c.cap_id where c.workspace_id = $1::text",
    ],
    [
      "binds one of two of a name",
      "select c.cap_id from holdfast.caps c where c.workspace_id = $1::text and exists (select from holdfast.caps c)",
    ],
    ["binds it to nothing", "select a.x from holdfast.caps a, holdfast.holds b where a.workspace_id = b.workspace_id"],
    ["changes all", "update holdfast.caps c set version = c.version + 1"],
    ["names it in a comment", "delete from holdfast.holds h -- where h.workspace_id = $1::text"],
    ["inserts it elsewhere", "insert into holdfast.holds (spend_key, workspace_id) values ($1::text, $1::text)"],
    ["inserts another", "insert into holdfast.holds (workspace_id, spend_key) select $2::text, $1::text"],
  ])("a statement that %s is found", (_what, text) => {
    expect(unboundTables(text, distributed, ours)).not.toEqual([]);
  });

  test.each([
    "select c.cap_id from holdfast.caps as c where c.workspace_id = $1::text",
    "select from holdfast.caps c join holdfast.counters n on n.workspace_id = c.workspace_id where c.workspace_id = $1::text",
    "insert into holdfast.holds as h (workspace_id, spend_key) select distinct $1::text, x.key from unnest($2::text[]) x",
    "select extract(epoch from holdfast.window_end(c, $2::text)) from holdfast.caps c where c.workspace_id = $1::text",
  ])("nothing is found in: %s", (text) => {
    expect(unboundTables(text, distributed, ours)).toEqual([]);
  });

  test("a function that is called for another workspace is found", () => {
    expect(foreignCalls("select holdfast.sweep_expired($2::text, 5)", ofWorkspace, ours)).toEqual(["sweep_expired"]);
    expect(foreignCalls("perform holdfast.share_policy(v_other)", ofWorkspace, variables)).toEqual(["share_policy"]);
    expect(foreignCalls("select holdfast.sweep_expired($1::text, 5)", ofWorkspace, ours)).toEqual([]);
  });
});

/** Functions that Citus refuses. Each has to change before the first run on it: deploy/citus/README.md. */
const refused: Readonly<Record<string, readonly string[]>> = {
  bind_vendor_reference: ["set: timestamptz_pl_interval in case"],
};
const refusedInSql = ["doubt_authorization", "engaged_kill_switch", "open_proxied_request", "proxy_key_state"];

describe("a change comes to the same on every node", () => {
  async function changesOf(text: string): Promise<string[]> {
    await client.query(`prepare linted as ${text}`);
    const { rows } = await client.query<{ types: string[] }>(
      "select parameter_types::text[] as types from pg_prepared_statements where name = 'linted'",
    );
    await client.query("deallocate linted");
    const parameters = (rows[0]?.types ?? []).map((type) => ({ type }));
    return unstableChanges(await parseStatement(client, text, parameters), functions);
  }

  test("no statement of the store calls what may differ between nodes", async () => {
    for (const { name, text } of declaredStatements()) expect(await changesOf(text), name).toEqual([]);
  });

  test("no function does, but those that are known", async () => {
    for (const one of stored) {
      expect(await unstableChangesOf(client, one, functions), one.name).toEqual(refused[one.name] ?? []);
    }
  });

  test.each([
    [
      "insert into holdfast.policy_gates as g (workspace_id, waiting, closed_until_time) values ($1::text, 1, $2::timestamptz) on conflict (workspace_id) do update set closed_until_time = holdfast.clock()",
      "do update: holdfast.clock",
    ],
    [
      "insert into holdfast.policy_gates as g (workspace_id, waiting, closed_until_time) values ($1::text, 1, $2::timestamptz) on conflict (workspace_id) do update set waiting = case when g.closed_until_time > excluded.closed_until_time - interval '1 day' then 2 else 1 end",
      "do update: timestamptz_mi_interval",
    ],
    [
      "insert into holdfast.policy_gates as g (workspace_id, waiting, closed_until_time) values ($1::text, 1, $2::timestamptz) on conflict (workspace_id) do update set waiting = 2 where g.closed_until_time < now()",
      "do update where: now",
    ],
    [
      "update holdfast.policy_gates g set waiting = 0 where g.workspace_id = $1::text returning extract(epoch from g.closed_until_time)",
      "returning: extract",
    ],
    [
      "update holdfast.policy_gates g set closed_until_time = clock_timestamp() where g.workspace_id = $1::text",
      "set: clock_timestamp",
    ],
    [
      "delete from holdfast.policy_gates g where g.workspace_id = $1::text and g.closed_until_time < clock_timestamp()",
      "where: clock_timestamp",
    ],
    [
      "update holdfast.policy_gates g set waiting = 0 where g.workspace_id = $1::text and g.closed_until_time + interval '1 day' < $2::timestamptz",
      "where: timestamptz_pl_interval of a column",
    ],
    [
      "update holdfast.policy_gates g set closed_until_time = coalesce(g.closed_until_time, $2::timestamptz + interval '1 day') where g.workspace_id = $1::text",
      "set: timestamptz_pl_interval in coal",
    ],
  ])("is found in: %s", async (text, problem) => {
    expect(await changesOf(text)).toEqual([problem]);
  });

  test("is found in a function too, and one that does not parse is no good one", async () => {
    const planted = (source: string): StoredFunction => ({
      name: "planted",
      language: "plpgsql",
      parameters: [{ name: "p_workspace", type: "text" }],
      source,
    });
    const bad = planted(
      "declare r record; begin if true then update holdfast.policy_gates g set closed_until_time = holdfast.clock() where g.workspace_id = p_workspace and g.waiting = r.waiting; end if; end",
    );
    expect(await unstableChangesOf(client, bad, functions)).toEqual(["set: holdfast.clock"]);
    await expect(
      unstableChangesOf(
        client,
        planted("begin delete from holdfast.policy_gates g where g.nothing = 1; end"),
        functions,
      ),
    ).rejects.toThrow("nothing");
  });
});

describe("what Citus cannot plan", () => {
  const touches = (text: string) =>
    [...text.matchAll(/holdfast\.(\w+)/g)].some(([, name = ""]) => distributed.has(name));

  test("functions in SQL, which take parameters and touch a distributed table: those that are known", () => {
    const found = stored.filter(({ language, parameters, source }) => {
      return language === "sql" && parameters.length > 0 && touches(source);
    });
    expect(found.map(({ name }) => name)).toEqual(refusedInSql);
    expect(touches("select from holdfast.caps c")).toBe(true);
  });

  test("functions that are called with a volatile argument stay on the coordinator: those that are known", () => {
    const volatile = new Set(
      [...functions.values()].filter(({ volatility }) => volatility === "v").map(({ name }) => name),
    );
    const inside = (text: string) => {
      const call = /(?:\bfrom|\*\/ select) holdfast\.(\w+)\(([^]*)/.exec(text);
      return [...(call?.[2] ?? "").matchAll(/holdfast\.\w+(?=\()/g)].some(([name]) => volatile.has(name));
    };
    const found = declaredStatements().filter(
      ({ text }) => ofWorkspace.has(/holdfast\.(\w+)\(/.exec(text)?.[1] ?? "") && inside(text),
    );
    expect(found.map(({ name }) => name).toSorted()).toEqual([
      "acquire_billing_lease",
      "append_audit",
      "authorize_batch",
      "bind_vendor_reference",
      "close_contradiction",
      "increase_hold",
      "note_vendor_account",
      "renew_billing_lease",
      "reopen_billing_lease",
      "resolve_void",
      "void_spend",
    ]);
    expect(inside("/* x */ select holdfast.sweep_expired($1::text, 5)")).toBe(false);
    expect(inside("/* x */ select holdfast.sweep_expired(holdfast.where_granting($1::text), 5)")).toBe(true);
  });
});

test("what is known to be refused is what the page for operators says", async () => {
  const page = await readFile(new URL("../../deploy/citus/README.md", import.meta.url), "utf8");
  for (const name of [...refusedInSql, ...Object.keys(refused), "where_granting", "actor_in_force"]) {
    expect(page).toContain(`\`${name}`);
  }
});

describe("nothing belongs to one session or one node", () => {
  test("no statement and no function listens, notifies, counts in a sequence or takes an advisory lock", () => {
    for (const { name, text } of declaredStatements()) expect(sessionWords(text), name).toEqual([]);
    for (const { name, source } of stored) expect(sessionWords(source), name).toEqual([]);
  });

  test("nor does any file of the store but the migrator, which takes turns", async () => {
    const files = (await readdir(storeFolder)).filter((file) => file.endsWith(".ts"));
    const found: string[] = [];
    for (const file of files) {
      const text = await readFile(new URL(file, storeFolder), "utf8");
      if (/pg_(?:try_)?advisory|pg_notify|\blisten holdfast|\bnextval\(/i.test(text)) found.push(file);
    }
    expect(found).toEqual(["migrate.ts"]);
  });

  test.each([
    "listen policy",
    "select pg_notify('a', 'b')",
    "select pg_try_advisory_xact_lock(1)",
    "select nextval('s')",
  ])("is found in: %s", (text) => {
    expect(sessionWords(text)).not.toEqual([]);
  });
});

import type pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
  granting = await openGranting(database.pool);
});
afterAll(() => database.close());

async function manyCaps(prefix: string, columns: string, values: string): Promise<void> {
  await database.pool.query(
    `insert into holdfast.caps (workspace_id, cap_id, currency, limit_micros, cap_window, time_zone, per_customer,
       direction, refunds_restore_headroom, create_time, update_time, ${columns})
     select $1, $2 || i, 'usd', 1000000, 'DAY', 'UTC', false, 'SPEND', false, now(), now(), ${values}
     from generate_series(1, 3000) i`,
    [granting.workspace, prefix],
  );
}

test("a grant reads the caps that may match it, however many others there are", async () => {
  await granting.cap("wide", usd(1000), { window: "DAY" });
  await granting.cap("shared", usd(1000), { attachedOnly: true });
  await granting.vaultKey("attached", { attachedCaps: ["shared"] });
  await manyCaps("key", "scope_vault_key_id", "'k' || i");
  await manyCaps("customer", "scope_customer_id", "'c' || i");
  await manyCaps("attached", "attached_only", "true");
  await manyCaps("archived", "archive_time", "now()");
  await database.pool.query("analyze holdfast.caps");
  const client = await database.pool.connect();
  try {
    await client.query("begin");
    const before = await capsRead(client);
    const [decision] = await authorizeBatch(client, granting.workspace, [asks({ vaultKeyId: "attached" })]);
    expect(decision?.disposition).toBe("GRANTED");
    expect((await capsRead(client)) - before).toBeLessThan(40);
  } finally {
    await client.query("rollback");
    client.release();
  }
  expect((await granting.authorize(asks({ vaultKeyId: "attached" })))[0]?.disposition).toBe("GRANTED");
  expect((await granting.counters()).map(({ capId }) => capId).toSorted()).toEqual(["shared", "wide"]);
});

/** How many rows of caps the transaction has read so far, those too that it had no use for. */
async function capsRead(client: pg.PoolClient): Promise<number> {
  const { rows } = await client.query<{ rows: number }>(
    `select (pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))::integer as rows
     from pg_class c where c.oid = 'holdfast.caps'::regclass`,
  );
  return rows[0]?.rows ?? Number.NaN;
}

const sound = {
  currency: "'usd'",
  limit_micros: "1",
  limit_count: "null",
  max_per_spend_micros: "null",
  enforcement: "'ENFORCE'",
  cap_window: "'DAY'",
  time_zone: "'UTC'",
  start_hour: "0",
  anchor_day: "1",
  start_time: "null::timestamptz",
  end_time: "null::timestamptz",
  direction: "'SPEND'",
  refunds_restore_headroom: "false",
  archive_time: "null::timestamptz",
  archive_reason: "''",
};

// The second wall: what the server refuses, the table refuses too.
test.each([
  ["nothing to count", { currency: "null", limit_micros: "null" }, "caps_limit_check"],
  ["two limits", { limit_count: "1" }, "caps_limit_check"],
  ["a limit below zero", { limit_micros: "-1" }, "caps_limit_check"],
  ["a count with a currency", { limit_micros: "null", limit_count: "1" }, "caps_limit_check"],
  [
    "a count with an amount per spend",
    { currency: "null", limit_micros: "null", limit_count: "1", max_per_spend_micros: "1" },
    "caps_max_check",
  ],
  ["another enforcement", { enforcement: "'LATER'" }, "caps_enforcement_check"],
  ["another window", { cap_window: "'HOUR'" }, "caps_window_check"],
  ["a fixed window without times", { cap_window: "'FIXED'" }, "caps_window_check"],
  ["a day with times", { start_time: "now()", end_time: "now() + interval '1 day'" }, "caps_window_check"],
  [
    "a fixed window that ends first",
    { cap_window: "'FIXED'", start_time: "now()", end_time: "now()" },
    "caps_window_check",
  ],
  ["an hour that is none", { start_hour: "24" }, "caps_anchor_check"],
  ["a day that is none", { anchor_day: "32" }, "caps_anchor_check"],
  ["refunds that restore refunds", { direction: "'REFUND'", refunds_restore_headroom: "true" }, "caps_direction_check"],
  ["a reason without an end", { archive_reason: "'over'" }, "caps_archive_check"],
])("the table refuses a cap with %s", async (_what, change, constraint) => {
  const row: Record<string, string> = { ...sound, ...change };
  const insert = database.pool.query(
    `insert into holdfast.caps (workspace_id, cap_id, per_customer, create_time, update_time, ${Object.keys(row).join()})
     values ($1, 'refused', false, now(), now(), ${Object.values(row).join()})`,
    [granting.workspace],
  );
  await expect(insert).rejects.toMatchObject({ code: "23514", constraint });
});

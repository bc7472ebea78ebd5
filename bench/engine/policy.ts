import type pg from "pg";
import { type Load, limitMicros, manyCaps, smallRoom, threeCaps, amountMicros } from "./contender.ts";

/** The vault key of every workspace of the bench. */
export const vaultKeyId = "bench";
export const endpoint = "POST /v1/payment_intents";

const loads: readonly Load[] = ["hot", "many", "three", "small"];

/**
 * One workspace per load, named like it, each with a vault key and its caps; `many` has one cap per customer.
 * Written as rows: what is timed is granting and not administration, and the other checkout's has to be the same.
 */
export async function writePolicy(client: pg.ClientBase | pg.Pool): Promise<void> {
  for (const load of loads) {
    await client.query(
      "insert into holdfast.workspaces (workspace_id, create_time) values ($1, holdfast.clock()) on conflict do nothing",
      [load],
    );
    await client.query(
      `insert into holdfast.vault_keys
         (workspace_id, vault_key_id, secret_sha256, vendor, allowed_endpoints, create_time, update_time)
       values ($1, $2, sha256('bench'::bytea), 'stripe', array[$3], holdfast.clock(), holdfast.clock())`,
      [load, vaultKeyId, endpoint],
    );
    const caps = load === "many" ? manyCaps : load === "three" ? threeCaps : 1;
    await client.query(
      `insert into holdfast.caps (workspace_id, cap_id, currency, limit_micros, cap_window, time_zone, scope_customer_id,
         per_customer, direction, refunds_restore_headroom, create_time, update_time)
       select $1, $1::text || '-' || n, 'usd', $3::bigint, 'LIFETIME', 'UTC', case when $1 = 'many' then 'cust' || n end,
         false, 'SPEND', false, holdfast.clock(), holdfast.clock()
       from generate_series(0, $2::int - 1) as n`,
      [load, caps, load === "small" ? smallRoom * amountMicros : limitMicros],
    );
  }
  // As autovacuum does within a minute.
  await client.query("analyze holdfast.caps");
}

/**
 * How many grants a workspace's caps show. Rejects unless as many authorizations are held, as many events say so, and
 * every spend draws on as many caps as the load says.
 */
export async function countedIn(client: pg.ClientBase | pg.Pool, load: Load): Promise<number> {
  const { rows } = await client.query<Record<"taken" | "holds" | "held" | "events", string>>(
    `select
       (select coalesce(sum(held_micros), 0) / $2 from holdfast.counters where workspace_id = $1)::float8::text as taken,
       (select count(*) from holdfast.holds where workspace_id = $1)::text as holds,
       (select count(*) from holdfast.authorizations where workspace_id = $1 and state = 'HELD')::text as held,
       (select coalesce(sum(count), 0) from holdfast.audit_events
         where workspace_id = $1 and kind = 'spend.granted')::text as events`,
    [load, amountMicros],
  );
  const figures = Object.fromEntries(Object.entries(rows[0] ?? {}).map(([name, value]) => [name, Number(value)]));
  const { taken = Number.NaN, holds, held, events } = figures;
  const grants = taken / (load === "three" ? threeCaps : 1);
  if (holds !== taken || held !== grants || events !== grants) {
    throw new Error(`the rows of ${load} do not agree: ${JSON.stringify(figures)}`);
  }
  return grants;
}

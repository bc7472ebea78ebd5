import pg from "pg";
import { amountMicros, limitMicros } from "./contender.ts";

/** Six years of months. */
const closedPeriods = Array.from(
  { length: 70 },
  (_, n) => `${2021 + Math.floor(n / 12)}-${String(1 + (n % 12)).padStart(2, "0")}`,
);

const tables = ["authorizations", "holds", "audit_events"] as const;

interface Part {
  readonly of: string;
  readonly name: string;
  readonly kind: "check" | "foreign" | "primary" | "index";
  readonly definition: string;
}

/** What is dropped while rows are written and made again afterwards, the foreign keys of other tables included. */
const partsText = `
  select c.conrelid::regclass::text as of, quote_ident(c.conname) as name,
    case c.contype when 'c' then 'check' when 'f' then 'foreign' else 'primary' end as kind,
    pg_get_constraintdef(c.oid) as definition
  from pg_constraint c
  where c.contype in ('c', 'f', 'p') and (c.conrelid = any ($1::regclass[]) or c.confrelid = any ($1::regclass[]))
  union all
  select i.indrelid::regclass::text, i.indexrelid::regclass::text, 'index', pg_get_indexdef(i.indexrelid)
  from pg_index i
  where i.indrelid = any ($1::regclass[]) and not exists (select from pg_constraint c where c.conindid = i.indexrelid)`;

/**
 * Nineteen in twenty are of closed periods: committed, or refused by the vendor and void. The rest is of this period,
 * committed too, but for a thousand that are held.
 */
const authorizationsText = `
  insert into holdfast.authorizations (workspace_id, spend_key, generation, customer_id, billing_period, purpose,
    idempotency_key, vault_key_id, vendor, vendor_account, endpoint, currency, amount_micros, held_micros, direction,
    settlement, state, attempt_id, told_may_have_been_sent, body_fingerprint, grant_time, hold_expire_time,
    latest_hold_expire_time, vendor_reference, bind_time, committed_micros, committed_currency, commit_time,
    void_evidence, void_reason, void_time)
  select 'hot', left(encode(sha256(convert_to(x.period, 'UTF8')), 'hex'), 4) || k.key, 1, x.customer, x.period, x.purpose,
    k.key, 'bench', 'stripe', '', 'POST /v1/payment_intents', 'usd',
    ${amountMicros}, ${amountMicros}, 'SPEND', 'TWO_STEP', x.state, k.key, false, repeat('0', 64), x.at,
    x.at + interval '1 day', x.at + interval '1 day',
    case when x.state <> 'HELD' then 'pi_' || left(k.key, 24) end, case when x.state <> 'HELD' then x.at end,
    case when x.state = 'COMMITTED' then ${amountMicros} end, case when x.state = 'COMMITTED' then 'usd' end,
    case when x.state = 'COMMITTED' then x.at + interval '2 seconds' end,
    case when x.state = 'VOIDED' then 'TOMBSTONE' end, case when x.state = 'VOIDED' then 'card_declined' end,
    case when x.state = 'VOIDED' then x.at + interval '2 seconds' end
  from (
    select 'cust' || n % 100000 as customer, 'charge-' || n as purpose,
      case when n > $1 - $1 / 20 then '2026-11' else ($2::text[])[1 + n % cardinality($2::text[])] end
        as period,
      case when n > $1 - least(1000, $1 / 20) then 'HELD' when n <= $1 - $1 / 20 and n % 33 = 0 then 'VOIDED'
        else 'COMMITTED' end as state,
      holdfast.clock() - ($1 - n) * interval '30 seconds' / greatest(1, $1 / 100000) as at
    from generate_series(1, $1::bigint) as n
  ) x, lateral (select holdfast.idempotency_key(x.customer, x.period, x.purpose, 1) as key) k`;

const holdsText = `
  insert into holdfast.holds (workspace_id, spend_key, generation, cap_id, window_label, subject, amount_micros)
  select t.workspace_id, t.spend_key, 1, 'hot-0', $1, '', t.amount_micros from holdfast.authorizations t`;

const eventsText = `
  insert into holdfast.audit_events (workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation,
    customer_id, billing_period, purpose, attempt_id, currency, amount_micros, disposition, trace_id, detail, vault_key_id)
  select 'hot', pg_current_xact_id(), row_number() over (), t.grant_time, 'spend.granted', 'vault_key', 'bench',
    t.spend_key, 1, t.customer_id, t.billing_period, t.purpose, t.attempt_id, 'usd', t.amount_micros, 'GRANTED', '',
    $1::jsonb, 'bench'
  from holdfast.authorizations t`;

/** What every event of a grant says of its cap. */
function eventDetail(label: string): string {
  const micros = { limit_micros: limitMicros, committed_micros: limitMicros / 2, held_micros: limitMicros / 4 };
  return JSON.stringify({ caps: [{ cap: "hot-0", window: label, ...micros }] });
}

const countersText = `
  with key as (
    insert into holdfast.counter_keys (workspace_id, cap_id, window_label, subject) values ('hot', 'hot-0', $1, '')
  )
  insert into holdfast.counters (workspace_id, cap_id, window_label, subject, committed_micros, held_micros)
  select 'hot', 'hot-0', $1, '', coalesce(sum(t.committed_micros), 0),
    coalesce(sum(t.held_micros) filter (where t.state = 'HELD'), 0)
  from holdfast.authorizations t`;

/**
 * Fills the empty, migrated database of a contender with the authorizations of past years, each with its hold and the
 * event of its grant. Written without its checks and indexes, which are made again afterwards: the checks then hold for
 * what comes later, as before. A log that is minimal knows nothing of it.
 */
export async function writeRows(connection: pg.ClientConfig, rows: number): Promise<void> {
  const client = new pg.Client(connection);
  await client.connect();
  try {
    await client.query("set maintenance_work_mem = '256MB'; set work_mem = '64MB'");
    await client.query("begin");
    const relations = tables.map((table) => `holdfast.${table}`);
    const { rows: parts } = await client.query<Part>(partsText, [relations]);
    const of = (...kinds: Part["kind"][]): Part[] => parts.filter(({ kind }) => kinds.includes(kind));
    for (const kind of ["foreign", "primary", "check"] as const) {
      for (const { of: table, name } of of(kind)) await client.query(`alter table ${table} drop constraint ${name}`);
    }
    for (const { name } of of("index")) await client.query(`drop index ${name}`);
    const { rows: guarded } = await client.query<{ table: string }>(
      "select t.tgrelid::regclass::text as table from pg_trigger t where t.tgname = 'audit_events_append_only'",
    );
    for (const { table } of guarded) await client.query(`alter table ${table} disable trigger all`);
    await client.query(`truncate ${relations.join(", ")}`);
    const { rows: labels } = await client.query<{ label: string }>(
      "select holdfast.window_label(c, '', holdfast.clock()) as label from holdfast.caps c where c.workspace_id = 'hot'",
    );
    const label = labels[0]?.label ?? "";
    await client.query(authorizationsText, [rows, closedPeriods]);
    await client.query(holdsText, [label]);
    await client.query(eventsText, [eventDetail(label)]);
    await client.query(countersText, [label]);
    for (const { table } of guarded) {
      await client.query(`alter table ${table} enable always trigger audit_events_append_only`);
    }
    for (const { of: table, name, definition } of of("primary")) {
      await client.query(`alter table ${table} add constraint ${name} ${definition}`);
    }
    // Of a partitioned table the definition is of itself alone.
    for (const { definition } of of("index")) await client.query(definition.replace(" ON ONLY ", " ON "));
    for (const { of: table, name, definition } of of("check", "foreign")) {
      await client.query(`alter table ${table} add constraint ${name} ${definition} not valid`);
    }
    await client.query("commit");
    await client.query(`analyze ${relations.join(", ")}`);
  } finally {
    await client.end();
  }
}

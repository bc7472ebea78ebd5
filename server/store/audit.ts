import type { AuditDetachment, AuditEvent, AuditFilter, AuditPosition } from "../domain/audit.ts";
import { toMicros } from "../domain/money.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

/** What has been detached from the beginning of the audit; nulls where nothing has. */
const detached = `select max(d.to_xid)::text as to_xid, ${epochMicros("max(d.last_time)")} as until_time
   from holdfast.audit_partitions d where d.detach_time is not null and d.last_time is not null`;

const detachmentStatement = statement("read_audit_detachment", detached);

const matching = `e.workspace_id = $1::text
   and ($2::bigint is null or e.event_time >= timestamptz 'epoch' + $2::bigint * interval '1 microsecond')
   and e.xid >= h.since
   and ($3::bigint is null or e.event_time < timestamptz 'epoch' + $3::bigint * interval '1 microsecond')
   and ($4::text is null or e.kind = $4::text or starts_with(e.kind, $4::text || '.'))
   and ($5::text is null or (e.actor_kind = $5::text and e.actor_id = $6::text))
   and ($7::text is null or (e.spend_key = $7::text and e.generation = $8::integer))
   and ($9::text is null or e.customer_id = $9::text)
   and ($10::text is null or e.disposition = $10::text)
   and ($11::text is null or e.trace_id = $11::text)
   and ($12::text is null or e.billing_period = $12::text)
   and ($13::text is null or e.purpose = $13::text)
   and ($14::text is null or e.vault_key_id = $14::text or (e.actor_kind = 'vault_key' and e.actor_id = $14::text))`;

// Everything below the oldest transaction that still runs is there for good: no event can appear before it any more.
// Partitions are left out by \`xid\` alone, so it stands beside every comparison of whole positions.
const horizon = `with h as materialized (
     select pg_snapshot_xmin(pg_current_snapshot()) as horizon,
       holdfast.audit_since(timestamptz 'epoch' + $2::bigint * interval '1 microsecond') as since,
       d.to_xid, d.until_time
     from (${detached}) d
   )
   select h.horizon::text as horizon, h.to_xid, h.until_time, p.* from h left join lateral`;

const columns = `e.xid::text as xid, e.n, ${epochMicros("e.event_time")} as event_time, e.kind, e.actor_kind, e.actor_id,
     e.spend_key, e.generation, e.customer_id, e.billing_period, e.purpose, e.attempt_id, e.currency, e.amount_micros,
     e.disposition, e.reason, e.trace_id, e.detail::text as detail, e.vault_key_id, e.count`;

const oldestFirstStatement = statement(
  "list_audit_events",
  `${horizon} (
     select ${columns} from holdfast.audit_events e
     where ${matching} and e.xid < h.horizon and e.xid >= coalesce($15::text::xid8, '0')
       and (e.xid, e.n) > (coalesce($15::text::xid8, '0'), coalesce($16::integer, -1))
     order by e.xid, e.n limit $17::integer
   ) p on true order by p.xid::xid8, p.n`,
);

const newestFirstStatement = statement(
  "list_audit_events_newest_first",
  `${horizon} (
     select ${columns} from holdfast.audit_events e
     where ${matching} and e.xid <= coalesce($15::text::xid8, '18446744073709551615')
       and (e.xid, e.n) < (coalesce($15::text::xid8, '18446744073709551615'), coalesce($16::integer, 2147483647))
     order by e.xid desc, e.n desc limit $17::integer
   ) p on true order by p.xid::xid8 desc, p.n desc`,
);

const ofSpendStatement = statement(
  "list_audit_events_of_spend",
  `select ${columns} from holdfast.audit_events e
   where e.workspace_id = $1::text and e.spend_key = $2::text
     and e.xid >= coalesce($3::text::xid8, '0')
     and (e.xid, e.n) > (coalesce($3::text::xid8, '0'), coalesce($4::integer, -1))
   order by e.xid, e.n limit $5::integer`,
);

// Two looks into one index, whoever watches and whatever for.
const headStatement = statement(
  "read_audit_head",
  `with h as materialized (select pg_snapshot_xmin(pg_current_snapshot()) as horizon)
   select h.horizon::text as horizon, p.xid::text as xid, p.n from h left join lateral (
     select e.xid, e.n from holdfast.audit_events e
     where e.workspace_id = $1::text and e.xid < h.horizon
     order by e.xid desc, e.n desc limit 1
   ) p on true`,
);

const unfoldStatement = statement("unfold_audit", "select holdfast.unfold_audit($1::text, $2::integer) as rows");

interface DetachmentRow {
  readonly to_xid: string | null;
  readonly until_time: bigint | null;
}

interface EventRow extends DetachmentRow {
  readonly horizon: string;
  /** Null where nothing matches. */
  readonly xid: string | null;
  readonly n: number;
  readonly event_time: bigint;
  readonly kind: string;
  readonly actor_kind: AuditEvent["actorKind"];
  readonly actor_id: string;
  readonly spend_key: string | null;
  readonly generation: number | null;
  readonly customer_id: string | null;
  readonly billing_period: string | null;
  readonly purpose: string | null;
  readonly attempt_id: string | null;
  readonly currency: string | null;
  readonly amount_micros: bigint | null;
  readonly disposition: string | null;
  readonly reason: string | null;
  readonly trace_id: string;
  readonly detail: string;
  readonly vault_key_id: string | null;
  readonly count: bigint;
}

export interface AuditQuery {
  readonly filter: AuditFilter;
  readonly newestFirst: boolean;
  /** The last event of the page before. */
  readonly after: AuditPosition | undefined;
  readonly limit: number;
}

export interface AuditRead {
  readonly events: readonly AuditEvent[];
  /** The last position that no event can be added at or before any more. */
  readonly seen: AuditPosition;
  readonly detachment: AuditDetachment | undefined;
}

/**
 * Events in the order of their positions. Oldest first, none that a running transaction may still add is passed over:
 * what comes after it is shown when it has ended. Newest first, everything is shown at once, and nobody goes on from there.
 */
export async function listAuditEvents(database: Database, workspace: string, query: AuditQuery): Promise<AuditRead> {
  const { filter, after } = query;
  const rows = await run<EventRow>(database, query.newestFirst ? newestFirstStatement : oldestFirstStatement, [
    workspace,
    filter.startTime ?? null,
    filter.endTime ?? null,
    filter.kind ?? null,
    filter.actor?.actorKind ?? null,
    filter.actor?.actorId ?? null,
    filter.authorization?.spendKey ?? null,
    filter.authorization?.generation ?? null,
    filter.customerId ?? null,
    filter.disposition ?? null,
    filter.traceId ?? null,
    filter.billingPeriod ?? null,
    filter.purpose ?? null,
    filter.vaultKeyId ?? null,
    after?.xid ?? null,
    after?.n ?? null,
    query.limit,
  ]);
  const first = rows[0];
  if (first === undefined) throw new Error("list_audit_events returned no row");
  return {
    events: rows.map(readEvent).filter((event) => event !== undefined),
    seen: endBefore(first.horizon),
    detachment: readDetachment(first),
  };
}

/** What is not part of the audit any more; undefined where all of it is. */
export async function readAuditDetachment(database: Database): Promise<AuditDetachment | undefined> {
  const [row] = await run<DetachmentRow>(database, detachmentStatement, []);
  return row === undefined ? undefined : readDetachment(row);
}

function readDetachment({ to_xid, until_time }: DetachmentRow): AuditDetachment | undefined {
  return to_xid === null || until_time === null ? undefined : { toXid: to_xid, untilTime: until_time };
}

/** The events of every generation of a spend, oldest first, also those that others may still be added before. */
export async function listAuditEventsOfSpend(
  database: Database,
  workspace: string,
  query: Pick<AuditQuery, "after" | "limit"> & { readonly spendKey: string },
): Promise<AuditEvent[]> {
  const { spendKey, after, limit } = query;
  const values = [workspace, spendKey, after?.xid ?? null, after?.n ?? null, limit];
  const rows = await run<EventRow>(database, ofSpendStatement, values);
  return rows.map(readEvent).filter((event) => event !== undefined);
}

/** The last event that stands for good, or undefined where there is none, and up to where all do. */
export async function readAuditHead(
  database: Database,
  workspace: string,
): Promise<{ readonly last: AuditPosition | undefined; readonly seen: AuditPosition }> {
  const [row] = await run<{ horizon: string; xid: string | null; n: number }>(database, headStatement, [workspace]);
  if (row === undefined) throw new Error("read_audit_head returned no row");
  return { last: row.xid === null ? undefined : { xid: row.xid, n: row.n }, seen: endBefore(row.horizon) };
}

/**
 * Makes events of up to `limit` rows of what was folded more than a second ago, and says how many rows it was. Any
 * server may, at any time: a row becomes part of exactly one event.
 */
export async function unfoldAudit(database: Database, workspace: string, limit: number): Promise<number> {
  const [row] = await run<{ rows: number }>(database, unfoldStatement, [workspace, limit]);
  return row?.rows ?? 0;
}

function endBefore(horizon: string): AuditPosition {
  return { xid: `${BigInt(horizon) - 1n}`, n: 2_147_483_647 };
}

function readEvent(row: EventRow): AuditEvent | undefined {
  if (row.xid === null) return undefined;
  return {
    xid: row.xid,
    n: row.n,
    eventTime: row.event_time,
    kind: row.kind,
    actorKind: row.actor_kind,
    actorId: row.actor_id,
    authorization:
      row.spend_key === null || row.generation === null
        ? undefined
        : { spendKey: row.spend_key, generation: row.generation },
    customerId: row.customer_id ?? "",
    billingPeriod: row.billing_period ?? "",
    purpose: row.purpose ?? "",
    attemptId: row.attempt_id ?? "",
    amount:
      row.currency === null || row.amount_micros === null
        ? undefined
        : { currency: row.currency, micros: toMicros(row.amount_micros) },
    disposition: row.disposition ?? "",
    reason: row.reason ?? "",
    traceId: row.trace_id,
    detail: row.detail,
    vaultKeyId: row.vault_key_id ?? "",
    count: row.count,
  };
}

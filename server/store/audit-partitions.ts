import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const extendStatement = statement("extend_audit", "select holdfast.extend_audit() as done");

const measureStatement = statement("measure_audit", "select holdfast.measure_audit($1::integer) as worked");

// The catalog says which are attached: no role but the owner may use the schema that they are in.
const listStatement = statement(
  "list_audit_partitions",
  `select p.from_xid::text as from_xid, p.to_xid::text as to_xid, p.measured, p.detached_by,
     p.from_xid > pg_snapshot_xmax(pg_current_snapshot()) as ahead,
     case when p.measured then p.events else greatest(c.reltuples, 0)::bigint end as events,
     coalesce(pg_total_relation_size(c.oid), 0) as bytes,
     ${epochMicros("coalesce(p.first_time, t.first_time)")} as first_time,
     ${epochMicros("coalesce(p.last_time, t.last_time)")} as last_time,
     ${epochMicros("p.detach_time")} as detach_time,
     c.oid is null as dropped, i.inhrelid is not null as attached, coalesce(i.inhdetachpending, false) as pending
   from holdfast.audit_partitions p
   left join pg_namespace s on s.nspname = 'holdfast_audit'
   left join pg_class c on c.relnamespace = s.oid and c.relname = holdfast.audit_partition_name(p.from_xid)
   left join pg_inherits i on i.inhrelid = c.oid and i.inhparent = 'holdfast.audit_events'::regclass
   -- Of what is not measured yet: the first and the last by position, a look into the index for each workspace.
   left join lateral (
     select min(f.event_time) as first_time, max(l.event_time) as last_time from holdfast.workspaces w
     cross join lateral (
       select e.event_time from holdfast.audit_events e
       where e.workspace_id = w.workspace_id and e.xid >= p.from_xid and e.xid < p.to_xid
       order by e.xid, e.n limit 1
     ) f
     cross join lateral (
       select e.event_time from holdfast.audit_events e
       where e.workspace_id = w.workspace_id and e.xid >= p.from_xid and e.xid < p.to_xid
       order by e.xid desc, e.n desc limit 1
     ) l
   ) t on not p.measured
   order by p.from_xid`,
);

/** One partition of the audit. Times are microseconds since 1970 on the database clock. */
export interface AuditPartition {
  /** The first transaction of its events. */
  readonly fromXid: string;
  /** The first one behind it; undefined for the last, which has no end. */
  readonly toXid: string | undefined;
  /** For example "holdfast_audit.events_0". */
  readonly table: string;
  /** Nobody can write to it yet. */
  readonly isAhead: boolean;
  /** Nothing can be added any more, and `events` and the times are exact. */
  readonly isMeasured: boolean;
  readonly events: bigint;
  readonly bytes: bigint;
  readonly firstTime: bigint | undefined;
  readonly lastTime: bigint | undefined;
  /** Since when it is not part of the audit; `isAttached` still, where that could not be carried out. */
  readonly detachTime: bigint | undefined;
  readonly detachedBy: string | undefined;
  readonly isAttached: boolean;
  /** Postgres has begun to detach it, and was interrupted. */
  readonly isPending: boolean;
  readonly isDropped: boolean;
}

interface PartitionRow {
  readonly from_xid: string;
  readonly to_xid: string | null;
  readonly measured: boolean;
  readonly detached_by: string | null;
  readonly ahead: boolean;
  readonly events: bigint;
  readonly bytes: bigint;
  readonly first_time: bigint | null;
  readonly last_time: bigint | null;
  readonly detach_time: bigint | null;
  readonly dropped: boolean;
  readonly attached: boolean;
  readonly pending: boolean;
}

/** Every partition that the audit has or had, the oldest first. Any role of a server may ask. */
export async function listAuditPartitions(database: Database): Promise<AuditPartition[]> {
  const rows = await run<PartitionRow>(database, listStatement, []);
  return rows.map((row) => ({
    fromXid: row.from_xid,
    toXid: row.to_xid ?? undefined,
    table: `holdfast_audit.events_${row.from_xid}`,
    isAhead: row.ahead,
    isMeasured: row.measured,
    events: row.events,
    bytes: row.bytes,
    firstTime: row.first_time ?? undefined,
    lastTime: row.last_time ?? undefined,
    detachTime: row.detach_time ?? undefined,
    detachedBy: row.detached_by ?? undefined,
    isAttached: row.attached,
    isPending: row.pending,
    isDropped: row.dropped,
  }));
}

/**
 * Reads `blocks` blocks of 8 KiB of a partition that is over, for its exact figures; false where nothing is left to read.
 * Any server may, at any time: one reads, the others find nothing to do.
 */
export async function measureAudit(database: Database, blocks: number): Promise<boolean> {
  const [row] = await run<{ worked: boolean }>(database, measureStatement, [blocks]);
  return row?.worked === true;
}

/** What came of making partitions ahead: `BUSY` is tried again, `LARGE` needs an operator. Undefined: all is there. */
export type AuditExtension = "EXTENDED" | "BUSY" | "LARGE";

/** Makes the partitions that come next. Any server may, at any time: one does it. */
export async function extendAudit(database: Database): Promise<AuditExtension | undefined> {
  const [row] = await run<{ done: AuditExtension | null }>(database, extendStatement, []);
  return row?.done ?? undefined;
}

/** How long to let writers be after the audit could not be had: each try may hold them up for a tenth of a second. */
const pauseMs = 300_000;

/** 32 MiB: far less than a statement's time, and a year's audit within a day. */
const blocksPerRound = 4096;

/**
 * Rounds of what keeps the audit in partitions: one makes those that come next, and reads a part of one that is over. A
 * round never rejects. That it fails is no harm for as long as there is half a partition ahead, and afterwards none to
 * events: the last partition has no end. `tell` learns of everything once, until it changes. `nowMs` is monotonic.
 */
export function createAuditUpkeep(
  tell: (result: AuditExtension | undefined, error?: unknown) => void,
  nowMs: () => number = () => performance.now(),
): (database: Database) => Promise<void> {
  let told = "";
  let notBeforeMs = Number.NEGATIVE_INFINITY;
  const once = (what: string, result: AuditExtension | undefined, error?: unknown): void => {
    if (what !== told && what !== "") tell(result, error);
    told = what;
  };
  return async (database) => {
    try {
      const result = nowMs() < notBeforeMs ? undefined : await extendAudit(database);
      if (result === "BUSY") notBeforeMs = nowMs() + pauseMs;
      // Each of these is news by itself.
      if (result === "EXTENDED") told = "";
      await measureAudit(database, blocksPerRound);
      once(result ?? "", result);
    } catch (error) {
      once("FAILED", undefined, error);
    }
  };
}

import { type Database, run, statement } from "./database.ts";

// Postgres' own time, not holdfast.clock(): these are about the database itself. Sessions of other databases keep nothing
// here; replicas with feedback and replication slots do, whatever they are for.
const snapshotsStatement = statement(
  "read_snapshot_figures",
  `with session as (
     select a.xact_start, a.backend_xmin, a.backend_xid, coalesce(a.query = '<insufficient privilege>', false) as hidden
     from pg_stat_activity a
     where a.pid <> pg_backend_pid() and a.backend_type is distinct from 'autovacuum worker'
       and (a.datname = current_database() or a.backend_type = 'walsender')
   ), seen as (
     select s.xact_start as since, greatest(age(s.backend_xmin), age(s.backend_xid)) as lag from session s
     union all
     select p.prepared, age(p.transaction) from pg_prepared_xacts p where p.database = current_database()
     union all
     select null, age(r.xmin) from pg_replication_slots r
   )
   select greatest(coalesce(extract(epoch from max(clock_timestamp() - s.since)), 0), 0)::double precision as oldest_age,
     coalesce(max(s.lag), 0)::double precision as lag,
     (select count(*) from session h where h.hidden)::double precision as hidden
   from seen s`,
);

/** What keeps rows that are no more from being cleaned up, in this database. */
export interface SnapshotFigures {
  /** How long the oldest transaction has been open, in seconds; 0 without any. */
  readonly oldestAge: number;
  /** How many transactions ago the oldest snapshot is from. */
  readonly lag: number;
  /** How many sessions the role may not look at; what they do is in neither of the others. */
  readonly hidden: number;
}

export async function readSnapshotFigures(database: Database): Promise<SnapshotFigures> {
  type Row = { readonly oldest_age: number; readonly lag: number; readonly hidden: number };
  const [row] = await run<Row>(database, snapshotsStatement, []);
  if (row === undefined) throw new Error("read_snapshot_figures returned no row");
  return { oldestAge: row.oldest_age, lag: row.lag, hidden: row.hidden };
}

import { type Database, run, statement } from "./database.ts";

// Open authorizations and open contradictions have small indexes of their own; nothing that is settled is read.
const figuresStatement = statement(
  "read_reconciliation_figures",
  `with doubt as (
     select t.workspace_id, t.vendor, count(x.since) as in_doubt, min(x.since) as oldest,
       min(coalesce(t.reconciliation_next_time, x.since)) filter (
         where coalesce(t.reconciliation_next_time, x.since) <= c.now
       ) as due_since
     from (select holdfast.clock() as now offset 0) as c
     cross join lateral (
       select a.* from holdfast.authorizations a
       where a.state = 'IN_DOUBT' or (a.state = 'HELD' and a.vendor_state <> '')
       union all
       select a.* from holdfast.authorizations a
       where a.state = 'HELD' and a.vendor_state = '' and a.hold_expire_time <= c.now
     ) as t
     cross join lateral (select holdfast.in_doubt_since(t, c.now) as since) as x
     where not (t.settlement = 'TWO_STEP' and t.vendor_reference is null)
     group by t.workspace_id, t.vendor
   ),
   contradiction as (
     select k.workspace_id, k.vendor, count(*) as open from holdfast.contradictions k
     where k.close_time is null group by k.workspace_id, k.vendor
   )
   select coalesce(d.workspace_id, k.workspace_id) as workspace_id, coalesce(d.vendor, k.vendor) as vendor,
     coalesce(d.in_doubt, 0) as in_doubt,
     coalesce(extract(epoch from c.now - d.oldest), 0)::double precision as oldest_age,
     coalesce(k.open, 0) as open,
     greatest(0, coalesce(extract(epoch from c.now - d.due_since), 0))::double precision as lag
   from (select holdfast.clock() as now) as c
   cross join (doubt d full join contradiction k on k.workspace_id = d.workspace_id and k.vendor = d.vendor)`,
);

/** What waits at one vendor of one workspace. Times are in seconds. */
export interface ReconciliationFigures {
  readonly workspace: string;
  readonly vendor: string;
  readonly inDoubt: number;
  /** How long the oldest one has been in doubt; 0 without any. */
  readonly oldestAge: number;
  readonly openContradictions: number;
  /** Since when the oldest due authorization waits to be asked about; 0 if none is due. */
  readonly lag: number;
}

/** Everything that waits, of all workspaces; what has nothing to show is left out. */
export async function readReconciliationFigures(database: Database): Promise<ReconciliationFigures[]> {
  const rows = await run<{
    workspace_id: string;
    vendor: string;
    in_doubt: bigint;
    oldest_age: number;
    open: bigint;
    lag: number;
  }>(database, figuresStatement, []);
  return rows.map((row) => ({
    workspace: row.workspace_id,
    vendor: row.vendor,
    inDoubt: Number(row.in_doubt),
    oldestAge: row.oldest_age,
    openContradictions: Number(row.open),
    lag: row.lag,
  }));
}

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

const headroomStatement = statement(
  "read_headroom_figures",
  `with t as materialized (select holdfast.clock() as now),
   -- Finding the label of a window is dear, and thousands of caps share a few kinds of window.
   kind as materialized (
     select k.cap_window, k.time_zone, k.start_hour, k.week_start, k.anchor_day, k.anchor_month,
       holdfast.window_label(k.cap, '', t.now) as label
     from t cross join (
       select distinct on (c.cap_window, c.time_zone, c.start_hour, c.week_start, c.anchor_day, c.anchor_month)
         c.cap_window, c.time_zone, c.start_hour, c.week_start, c.anchor_day, c.anchor_month, c as cap
       from holdfast.caps c
       where c.archive_time is null and not c.per_customer and c.cap_window <> 'BILLING_PERIOD'
     ) k
   ), used as (
     select c.workspace_id, c.cap_id, c.currency, coalesce(c.limit_micros, c.limit_count)::numeric as cap_limit,
       coalesce(case when c.currency is null then n.committed_count + n.held_count
         else n.committed_micros + n.held_micros end, 0)::numeric as used
     from t cross join holdfast.caps c
     join kind k on k.cap_window = c.cap_window and k.time_zone = c.time_zone and k.start_hour = c.start_hour
       and k.week_start = c.week_start and k.anchor_day = c.anchor_day and k.anchor_month = c.anchor_month
     left join holdfast.counters n on n.workspace_id = c.workspace_id and n.cap_id = c.cap_id
       and n.window_label = k.label and n.subject = ''
     where c.archive_time is null and not c.per_customer
       and (c.cap_window <> 'FIXED' or (c.start_time <= t.now and t.now < c.end_time))
     union all
     -- The latest period is the current one, as periods sort by their names.
     select c.workspace_id, c.cap_id, c.currency, coalesce(c.limit_micros, c.limit_count)::numeric,
       coalesce(case when c.currency is null then n.committed_count + n.held_count
         else n.committed_micros + n.held_micros end, 0)::numeric
     from holdfast.caps c
     left join lateral (
       select m.* from holdfast.counters m where m.workspace_id = c.workspace_id and m.cap_id = c.cap_id
       order by m.window_label desc limit 1
     ) n on true
     where c.archive_time is null and not c.per_customer and c.cap_window = 'BILLING_PERIOD'
   )
   select u.workspace_id, u.cap_id, u.currency, count(*) over () as caps,
     ((u.cap_limit - u.used) / case when u.currency is null then 1 else 1000000 end)::double precision as headroom,
     case when u.cap_limit = 0 then 0 else (u.cap_limit - u.used) / u.cap_limit end::double precision as ratio
   from used u order by ratio, u.workspace_id, u.cap_id limit $1::integer`,
);

const uncountedStatement = statement(
  "count_caps_per_customer",
  "select count(*) as caps from holdfast.caps c where c.archive_time is null and c.per_customer",
);

/** What one cap leaves in its current window. */
export interface HeadroomFigures {
  readonly workspace: string;
  readonly cap: string;
  /** Undefined for a cap that counts spends. */
  readonly currency: string | undefined;
  /** In major units of the currency, or in spends. */
  readonly headroom: number;
  /** Of the limit: 1 unused, 0 used up, negative where more is used; 0 for a limit of 0. */
  readonly ratio: number;
}

export interface Headroom {
  /** Those that leave least, the least first. */
  readonly shown: readonly HeadroomFigures[];
  /** How many others there are. */
  readonly hidden: number;
  /** How many count per customer: what those leave is not read, since each may have a counter for every customer. */
  readonly perCustomer: number;
}

/** What the `limit` caps leave, of all workspaces, that leave least of their limit. */
export async function readHeadroom(database: Database, limit: number): Promise<Headroom> {
  const rows = await run<{
    workspace_id: string;
    cap_id: string;
    currency: string | null;
    caps: bigint;
    headroom: number;
    ratio: number;
  }>(database, headroomStatement, [limit]);
  const [uncounted] = await run<{ caps: bigint }>(database, uncountedStatement, []);
  return {
    shown: rows.map((row) => ({
      workspace: row.workspace_id,
      cap: row.cap_id,
      currency: row.currency ?? undefined,
      headroom: row.headroom,
      ratio: row.ratio,
    })),
    hidden: Number(rows[0]?.caps ?? 0n) - rows.length,
    perCustomer: Number(uncounted?.caps ?? 0n),
  };
}

const leasesStatement = statement(
  "read_lease_figures",
  `select l.workspace_id, count(*) filter (where l.completed) as completed,
     count(*) filter (where not l.completed and l.expire_time > c.now) as held,
     count(*) filter (where not l.completed and l.expire_time <= c.now) as free
   from (select holdfast.clock() as now offset 0) as c cross join holdfast.billing_leases l
   group by l.workspace_id`,
);

export interface LeaseFigures {
  readonly workspace: string;
  readonly held: number;
  /** Given back or run out, and not completed. */
  readonly free: number;
  readonly completed: number;
}

/** How many billing leases each workspace has; none where it never had one. */
export async function readLeaseFigures(database: Database): Promise<LeaseFigures[]> {
  const rows = await run<{ workspace_id: string; held: bigint; free: bigint; completed: bigint }>(
    database,
    leasesStatement,
    [],
  );
  return rows.map((row) => ({
    workspace: row.workspace_id,
    held: Number(row.held),
    free: Number(row.free),
    completed: Number(row.completed),
  }));
}

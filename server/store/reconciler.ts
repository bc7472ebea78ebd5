import type { Authorization, AuthorizationId } from "../domain/spend.ts";
import { type AuthorizationRow, authorizationColumns, epochMicros, readAuthorization } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const claimStatement = statement(
  "claim_vendor",
  "select holdfast.claim_vendor($1::text, $2::text, $3::text, $4::interval) as silent_count",
);

const releaseStatement = statement(
  "release_vendor",
  "select holdfast.release_vendor($1::text, $2::text, $3::text, $4::boolean, $5::interval)",
);

/** Vendors of a workspace that somebody is to be asked at now: cheap where nothing is due. */
const dueStatement = statement(
  "list_due_vendors",
  `select c.vendor
   from holdfast.vendor_credentials c
   cross join (select holdfast.clock() as now offset 0) as k
   left join holdfast.reconciler_claims q on q.workspace_id = $1::text and q.vendor = c.vendor
   where c.workspace_id = $1::text
     and (q.vendor is null or (q.expire_time <= k.now and q.resume_time <= k.now))
     and (
       exists (
         select from holdfast.reconciliation_runs r
         where r.workspace_id = $1::text and r.vendor = c.vendor and r.state in ('PENDING', 'RUNNING')
       )
       or exists (
         select from holdfast.authorizations t
         where t.workspace_id = $1::text and t.vendor = c.vendor
           and (t.state = 'IN_DOUBT' or (t.state = 'HELD' and t.vendor_state <> ''))
           and (t.reconciliation_next_time is null or t.reconciliation_next_time <= k.now)
           and not (t.settlement = 'TWO_STEP' and t.vendor_reference is null)
       )
       or exists (
         select from holdfast.authorizations t
         where t.workspace_id = $1::text and t.vendor = c.vendor and t.hold_expire_time <= k.now
           and t.state = 'HELD' and t.vendor_state = ''
           and (t.reconciliation_next_time is null or t.reconciliation_next_time <= k.now)
           and not (t.settlement = 'TWO_STEP' and t.vendor_reference is null)
       )
     )
   order by c.vendor`,
);

// Each half of the union has an index of its own, so that neither settled rows nor holds that run are read.
const unsettledStatement = statement(
  "list_unsettled_of_vendor",
  `select ${authorizationColumns("u")}, ${epochMicros("u.since")} as since
   from (select holdfast.clock() as now offset 0) as c
   cross join lateral (
     select t.*, holdfast.in_doubt_since(t, c.now) as since
     from holdfast.authorizations t
     where t.workspace_id = $1::text and t.vendor = $2::text
       and (t.state = 'IN_DOUBT' or (t.state = 'HELD' and t.vendor_state <> ''))
     union all
     select t.*, holdfast.in_doubt_since(t, c.now)
     from holdfast.authorizations t
     where t.workspace_id = $1::text and t.vendor = $2::text and t.hold_expire_time <= c.now
       and t.state = 'HELD' and t.vendor_state = ''
   ) as u
   where ($3::boolean or u.reconciliation_next_time is null or u.reconciliation_next_time <= c.now)
     -- A two-step that was never bound has confirmed nothing.
     and not (u.settlement = 'TWO_STEP' and u.vendor_reference is null)
     and ($4::bigint is null
       or (u.grant_time, u.spend_key, u.generation)
         > (timestamptz 'epoch' + $4::bigint * interval '1 microsecond', $5::text, $6::integer))
     and ($7::bigint is null or u.grant_time < timestamptz 'epoch' + $7::bigint * interval '1 microsecond')
   order by u.grant_time, u.spend_key, u.generation
   limit $8::integer`,
);

const accountsStatement = statement(
  "list_vendor_accounts_used",
  `select t.vendor_account, array_agg(distinct t.endpoint) as endpoints
   from holdfast.authorizations t
   where t.workspace_id = $1::text and t.vendor = $2::text
     and t.grant_time >= timestamptz 'epoch' + $3::bigint * interval '1 microsecond' - interval '31 days'
     and t.grant_time < timestamptz 'epoch' + $4::bigint * interval '1 microsecond'
   group by t.vendor_account order by t.vendor_account`,
);

const unmatchedStatement = statement(
  "list_unmatched_authorizations",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text and t.vendor = $2::text and t.state = 'COMMITTED'
     and t.grant_time >= timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
     and t.grant_time < timestamptz 'epoch' + $4::bigint * interval '1 microsecond'
     and ($5::bigint is null
       or (t.grant_time, t.spend_key, t.generation)
         > (timestamptz 'epoch' + $5::bigint * interval '1 microsecond', $6::text, $7::integer))
     and not exists (
       select from holdfast.reconciliation_matches m
       where m.workspace_id = $1::text and m.reconciliation_run_id = $8::text and m.spend_key = t.spend_key
         and m.generation = t.generation
     )
   order by t.grant_time, t.spend_key, t.generation
   limit $9::integer`,
);

const markedStatement = statement(
  "list_authorizations_by_key",
  `select ${authorizationColumns("t")}, ${epochMicros("holdfast.in_doubt_since(t, c.now)")} as since,
     t.state = 'HELD' and t.vendor_state = '' and t.hold_expire_time > c.now as running
   from (select holdfast.clock() as now offset 0) as c
   cross join unnest($2::text[], $3::integer[]) as k (spend_key, generation)
   join holdfast.authorizations t on t.workspace_id = $1::text and t.spend_key = k.spend_key
     and t.generation = k.generation`,
);

const closedStatement = statement(
  "list_closed_contradictions",
  `select c.vendor_account, c.vendor_reference, c.spend_key, c.generation from holdfast.contradictions c
   where c.workspace_id = $1::text and c.vendor = $2::text and c.vendor_reference = any ($3::text[])
     and c.close_time is not null`,
);

type Position = (AuthorizationId & { readonly grantTime: bigint }) | undefined;

interface SinceRow extends AuthorizationRow {
  readonly since: bigint | null;
}

/** How long a replica may be silent before another one goes on in its place. */
const claimFor = "60 seconds";

/** Takes or keeps a claim. Answers how often in a row the vendor was silent; undefined where it is not to be asked now. */
export async function claimVendor(
  database: Database,
  workspace: string,
  vendor: string,
  token: string,
): Promise<number | undefined> {
  const values = [workspace, vendor, token, claimFor];
  const [row] = await run<{ silent_count: number | null }>(database, claimStatement, values);
  return row?.silent_count ?? undefined;
}

export async function releaseVendor(
  database: Database,
  workspace: string,
  vendor: string,
  release: { readonly token: string; readonly silent: boolean; readonly pauseMs: number },
): Promise<void> {
  const pause = `${Math.round(release.pauseMs)} milliseconds`;
  await run(database, releaseStatement, [workspace, vendor, release.token, release.silent, pause]);
}

/** The vendors with a credential at which something of the workspace is due, and which nobody asks now. */
export async function listDueVendors(database: Database, workspace: string): Promise<string[]> {
  return (await run<{ vendor: string }>(database, dueStatement, [workspace])).map(({ vendor }) => vendor);
}

export interface VendorUnsettledFilter {
  readonly vendor: string;
  readonly includeNotDue: boolean;
  readonly after: Position;
  /** Granted before, in microseconds; undefined for no limit. */
  readonly before?: bigint;
  readonly limit: number;
}

/** What of all vault keys may be asked about at a vendor, oldest grant first. */
export async function listUnsettledOfVendor(
  database: Database,
  workspace: string,
  { vendor, includeNotDue, after, before, limit }: VendorUnsettledFilter,
): Promise<Authorization[]> {
  const values = [workspace, vendor, includeNotDue, ...parts(after), before ?? null, limit];
  const rows = await run<SinceRow>(database, unsettledStatement, values);
  return rows.map(readSince).filter((row) => row !== undefined);
}

interface TimeSpan {
  readonly vendor: string;
  readonly startTime: bigint;
  readonly endTime: bigint;
}

/** The accounts that the workspace has used at a vendor before the end of a span, with the endpoints of each. */
export async function listAccountsUsed(
  database: Database,
  workspace: string,
  { vendor, startTime, endTime }: TimeSpan,
): Promise<{ readonly account: string; readonly endpoints: readonly string[] }[]> {
  const rows = await run<{ vendor_account: string; endpoints: string[] }>(database, accountsStatement, [
    workspace,
    vendor,
    startTime,
    endTime,
  ]);
  return rows.map(({ vendor_account: account, endpoints }) => ({ account, endpoints }));
}

/** What was granted in a span, is committed and was not matched by the run yet, oldest grant first. */
export async function listUnmatched(
  database: Database,
  workspace: string,
  filter: TimeSpan & { readonly runId: string; readonly after: Position; readonly limit: number },
): Promise<Authorization[]> {
  const { vendor, startTime, endTime, runId, after, limit } = filter;
  const values = [workspace, vendor, startTime, endTime, ...parts(after), runId, limit];
  const rows = await run<AuthorizationRow>(database, unmatchedStatement, values);
  return rows.map(readAuthorization).filter((row) => row !== undefined);
}

/** An authorization, and whether an attempt may be in the middle of its call. */
export interface MarkedAuthorization {
  readonly authorization: Authorization;
  readonly running: boolean;
}

export async function listByKey(
  database: Database,
  workspace: string,
  ids: readonly AuthorizationId[],
): Promise<MarkedAuthorization[]> {
  const rows = await run<SinceRow & { running: boolean }>(database, markedStatement, [
    workspace,
    ids.map(({ spendKey }) => spendKey),
    ids.map(({ generation }) => generation),
  ]);
  return rows.flatMap((row) => {
    const authorization = readSince(row);
    return authorization === undefined ? [] : [{ authorization, running: row.running }];
  });
}

export interface ContradictionKey extends AuthorizationId {
  readonly vendorAccount: string;
  readonly vendorReference: string;
}

/** Contradictions of these vendor references that an operator has dealt with. */
export async function listClosedContradictions(
  database: Database,
  workspace: string,
  vendor: string,
  references: readonly string[],
): Promise<ContradictionKey[]> {
  const rows = await run<{
    vendor_account: string;
    vendor_reference: string;
    spend_key: string;
    generation: number;
  }>(database, closedStatement, [workspace, vendor, references]);
  return rows.map((row) => ({
    vendorAccount: row.vendor_account,
    vendorReference: row.vendor_reference,
    spendKey: row.spend_key,
    generation: row.generation,
  }));
}

function parts(after: Position): unknown[] {
  return [after?.grantTime ?? null, after?.spendKey ?? null, after?.generation ?? null];
}

function readSince(row: SinceRow): Authorization | undefined {
  const authorization = readAuthorization(row);
  return authorization === undefined ? undefined : { ...authorization, inDoubtTime: row.since ?? undefined };
}

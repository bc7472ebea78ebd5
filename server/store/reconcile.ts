import type { Actor, Authorization, AuthorizationId, Finding, Look } from "../domain/spend.ts";
import {
  type AuthorizationRow,
  authorizationColumns,
  epochMicros,
  readAuthorization,
  timeOf,
} from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";
import { readSettled, type Settled, type SettledRow } from "./spend.ts";

// In a statement before the listing, so that it is earlier than what the listing has not seen yet.
const lookTimeStatement = statement("read_look_time", `select ${epochMicros("holdfast.clock()")} as look_time`);

// Each half of the union has an index of its own, so that neither settled rows nor holds that run are read.
const listUnsettledStatement = statement(
  "list_unsettled_authorizations",
  `select ${authorizationColumns("u")}, ${epochMicros("u.since")} as since
   from (select holdfast.clock() as now offset 0) as c
   cross join lateral (
     select t.*, holdfast.in_doubt_since(t, c.now) as since
     from holdfast.authorizations t
     where t.workspace_id = $1::text and t.vault_key_id = $2::text
       and (t.state = 'IN_DOUBT' or (t.state = 'HELD' and t.vendor_state <> ''))
     union all
     select t.*, holdfast.in_doubt_since(t, c.now)
     from holdfast.authorizations t
     where t.workspace_id = $1::text and t.vault_key_id = $2::text and t.hold_expire_time <= c.now
       and t.state = 'HELD' and t.vendor_state = ''
   ) as u
   where ($3::boolean or u.reconciliation_next_time is null or u.reconciliation_next_time <= c.now)
     -- The clock has decided that it is void.
     and not (u.state = 'HELD' and u.settlement = 'TWO_STEP' and u.vendor_reference is null)
     and ($4::bigint is null
       or (u.grant_time, u.spend_key, u.generation)
         > (timestamptz 'epoch' + $4::bigint * interval '1 microsecond', $5::text, $6::integer))
   order by u.grant_time, u.spend_key, u.generation
   limit $7::integer`,
);

const reportStatement = statement(
  "report_reconciliation",
  `select f.error_reason, ${authorizationColumns("(f.authorization_row)")}
   from holdfast.report_reconciliation($1::text, $2::text, $3::integer, $4::text, $5::text, $6::text, $7::text,
     $8::text, $9::text, $10::interval, $11::text, ${timeOf("$12")}, $13::text) as f`,
);

const listCommittedStatement = statement(
  "list_committed_authorizations",
  `select ${authorizationColumns("t")} from holdfast.authorizations t
   where t.workspace_id = $1::text and t.vault_key_id = $2::text and t.state = 'COMMITTED'
     and t.grant_time >= timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
     and ($4::bigint is null
       or (t.grant_time, t.spend_key, t.generation)
         > (timestamptz 'epoch' + $4::bigint * interval '1 microsecond', $5::text, $6::integer))
   order by t.grant_time, t.spend_key, t.generation
   limit $7::integer`,
);

/** Only some of what is in doubt, with figures about all of it. */
const listInDoubtStatement = statement(
  "list_in_doubt_authorizations",
  `with now as materialized (select holdfast.clock() as now),
   doubt as materialized (
     select t.spend_key, t.generation, holdfast.in_doubt_since(t, c.now) as since
     from now c cross join lateral (
       select t.* from holdfast.authorizations t
       where t.workspace_id = $1::text and (t.state = 'IN_DOUBT' or (t.state = 'HELD' and t.vendor_state <> ''))
       union all
       select t.* from holdfast.authorizations t
       where t.workspace_id = $1::text and t.hold_expire_time <= c.now
         and t.state = 'HELD' and t.vendor_state = ''
     ) as t
   ),
   figures as (
     select count(d.since) as total_count, min(d.since) as oldest_time from doubt d
   ),
   page as (
     select d.* from doubt d
     where d.since is not null
       and ($2::bigint is null
         or (d.since, d.spend_key, d.generation)
           > (timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3::text, $4::integer))
     order by d.since, d.spend_key, d.generation
     limit $5::integer
   )
   select f.total_count, ${epochMicros("c.now")} - ${epochMicros("f.oldest_time")} as oldest_age,
     ${epochMicros("p.since")} as since, ${authorizationColumns("t")}
   from now c cross join figures f
   left join page p on true
   left join holdfast.authorizations t
     on t.workspace_id = $1::text and t.spend_key = p.spend_key and t.generation = p.generation
   order by p.since, p.spend_key, p.generation`,
);

interface DoubtRow extends AuthorizationRow {
  /** Null where it is not in doubt. */
  readonly since: bigint | null;
}

/** When a look at the vendor may begin: now, in microseconds since 1970. Read before what is looked for is listed. */
export async function readLookTime(database: Database): Promise<bigint> {
  const [row] = await run<{ look_time: bigint }>(database, lookTimeStatement, []);
  if (row === undefined) throw new Error("read_look_time returned no row");
  return row.look_time;
}

export interface UnsettledFilter {
  readonly vaultKeyId: string;
  readonly includeNotDue: boolean;
  /** The last authorization of the page before. */
  readonly after: (AuthorizationId & { readonly grantTime: bigint }) | undefined;
  readonly limit: number;
}

/** What of a vault key's own may be asked about at the vendor, oldest grant first. Changes nothing. */
export async function listUnsettled(
  database: Database,
  workspace: string,
  filter: UnsettledFilter,
): Promise<Authorization[]> {
  const rows = await run<DoubtRow>(database, listUnsettledStatement, [
    workspace,
    filter.vaultKeyId,
    filter.includeNotDue,
    filter.after?.grantTime ?? null,
    filter.after?.spendKey ?? null,
    filter.after?.generation ?? null,
    filter.limit,
  ]);
  return rows.map(readDoubt).filter((row) => row !== undefined);
}

export interface CommittedFilter {
  readonly vaultKeyId: string;
  /** Granted from then on, in microseconds since 1970. */
  readonly startTime: bigint;
  /** The last authorization of the page before. */
  readonly after: (AuthorizationId & { readonly grantTime: bigint }) | undefined;
  readonly limit: number;
}

/** What of a vault key's own is committed, oldest grant first. */
export async function listCommitted(
  database: Database,
  workspace: string,
  { vaultKeyId, startTime, after, limit }: CommittedFilter,
): Promise<Authorization[]> {
  const position = [after?.grantTime ?? null, after?.spendKey ?? null, after?.generation ?? null];
  const values = [workspace, vaultKeyId, startTime, ...position, limit];
  const rows = await run<AuthorizationRow>(database, listCommittedStatement, values);
  return rows.map(readAuthorization).filter((row) => row !== undefined);
}

export interface ReconciliationReport {
  readonly actor: Actor;
  readonly authorization: AuthorizationId;
  readonly finding: Finding;
  /** With OPEN: the object, and its state; both empty otherwise. */
  readonly vendorReference: string;
  readonly vendorState: string;
  readonly note: string;
  readonly followForMs: number;
  readonly traceId: string;
  /** Needed with ABSENT. */
  readonly look?: Look;
}

/** Writes down what asking the vendor has found where it settles nothing. */
export async function reportReconciliation(
  database: Database,
  workspace: string,
  report: ReconciliationReport,
): Promise<Settled> {
  const [row] = await run<SettledRow>(database, reportStatement, [
    workspace,
    report.authorization.spendKey,
    report.authorization.generation,
    report.actor.kind,
    report.actor.id,
    report.finding,
    report.vendorReference,
    report.vendorState,
    report.note,
    `${report.followForMs} milliseconds`,
    report.traceId,
    report.look?.time ?? null,
    report.look?.account ?? "",
  ]);
  if (row === undefined) throw new Error("report_reconciliation returned no row");
  return readSettled(row);
}

export interface InDoubtPage {
  readonly authorizations: readonly Authorization[];
  /** In the whole workspace. */
  readonly totalCount: bigint;
  /** In microseconds. Undefined if none is in doubt. */
  readonly oldestAge: bigint | undefined;
}

export interface InDoubtFilter {
  /** The last authorization of the page before. */
  readonly after: (AuthorizationId & { readonly inDoubtTime: bigint }) | undefined;
  readonly limit: number;
}

/** What is in doubt, longest first, also where only the clock has decided it yet. */
export async function listInDoubt(database: Database, workspace: string, filter: InDoubtFilter): Promise<InDoubtPage> {
  const rows = await run<DoubtRow & { total_count: bigint; oldest_age: bigint | null }>(
    database,
    listInDoubtStatement,
    [
      workspace,
      filter.after?.inDoubtTime ?? null,
      filter.after?.spendKey ?? null,
      filter.after?.generation ?? null,
      filter.limit,
    ],
  );
  return {
    authorizations: rows.map(readDoubt).filter((row) => row !== undefined),
    totalCount: rows[0]?.total_count ?? 0n,
    oldestAge: rows[0]?.oldest_age ?? undefined,
  };
}

function readDoubt(row: DoubtRow): Authorization | undefined {
  const authorization = readAuthorization(row);
  return authorization === undefined ? undefined : { ...authorization, inDoubtTime: row.since ?? undefined };
}

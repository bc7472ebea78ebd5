import { invalidField } from "../domain/errors.ts";
import { toMicros } from "../domain/money.ts";
import type {
  ReconciliationDifference,
  ReconciliationDifferenceKind,
  ReconciliationRun,
  ReconciliationRunState,
  RunCursor,
} from "../domain/reconciliation-run.ts";
import type { CreationRequest } from "../domain/secret.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";
import { sqlStateOf } from "./database-errors.ts";

const columns = `r.reconciliation_run_id, r.vendor, r.state, ${epochMicros("r.start_time")} as start_time,
  ${epochMicros("r.end_time")} as end_time, ${epochMicros("r.create_time")} as create_time,
  ${epochMicros("r.finish_time")} as finish_time, r.message, r.cursor, r.read_count, r.authorization_count,
  r.committed_count, r.voided_count, r.movement_count, r.difference_count, r.request_sha256`;

const insertStatement = statement(
  "insert_reconciliation_run",
  `insert into holdfast.reconciliation_runs as r (
     workspace_id, reconciliation_run_id, vendor, start_time, end_time, create_time, cursor, request_id, request_sha256
   )
   select $1::text, $2::text, $3::text,
     coalesce(timestamptz 'epoch' + $4::bigint * interval '1 microsecond', least(now.t, e.t) - interval '48 hours'),
     e.t, now.t, $6::jsonb, $7::text, $8::bytea
   from (select holdfast.clock() as t) as now
   cross join lateral (
     select coalesce(timestamptz 'epoch' + $5::bigint * interval '1 microsecond', now.t) as t
   ) as e
   returning ${columns}`,
);

const findByRequestStatement = statement(
  "find_reconciliation_run_by_request",
  `select ${columns} from holdfast.reconciliation_runs r where r.workspace_id = $1::text and r.request_id = $2::text`,
);

const getStatement = statement(
  "get_reconciliation_run",
  `select ${columns} from holdfast.reconciliation_runs r
   where r.workspace_id = $1::text and r.reconciliation_run_id = $2::text`,
);

const nextStatement = statement(
  "next_reconciliation_run",
  `select ${columns} from holdfast.reconciliation_runs r
   where r.workspace_id = $1::text and r.vendor = $2::text and r.state in ('PENDING', 'RUNNING')
   order by r.create_time, r.reconciliation_run_id limit 1`,
);

const listStatement = statement(
  "list_reconciliation_runs",
  `select ${columns} from holdfast.reconciliation_runs r
   where r.workspace_id = $1::text
     and ($2::bigint is null or (r.create_time, r.reconciliation_run_id)
       < (timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3::text))
   order by r.create_time desc, r.reconciliation_run_id desc limit $4::integer`,
);

const differencesStatement = statement(
  "list_reconciliation_differences",
  `select d.n, d.kind, d.mark, d.vendor_reference, d.vendor_account, d.authorized_micros, d.authorized_currency,
     d.vendor_micros, d.vendor_currency, d.message
   from holdfast.reconciliation_differences d
   where d.workspace_id = $1::text and d.reconciliation_run_id = $2::text and d.n > $3::integer
   order by d.n limit $4::integer`,
);

const advanceStatement = statement(
  "advance_reconciliation_run",
  `select holdfast.advance_reconciliation_run($1::text, $2::text, $3::jsonb, $4::jsonb, $5::text, $6::text, $7::jsonb,
     $8::jsonb, $9::jsonb) as written`,
);

const messageStatement = statement(
  "say_about_reconciliation_run",
  `update holdfast.reconciliation_runs r set message = $3::text
   where r.workspace_id = $1::text and r.reconciliation_run_id = $2::text and r.state in ('PENDING', 'RUNNING')
     and r.message <> $3::text`,
);

interface RunRow {
  readonly reconciliation_run_id: string;
  readonly vendor: string;
  readonly state: string;
  readonly start_time: bigint;
  readonly end_time: bigint;
  readonly create_time: bigint;
  readonly finish_time: bigint | null;
  readonly message: string;
  readonly cursor: RunCursor;
  readonly read_count: bigint;
  readonly authorization_count: bigint;
  readonly committed_count: bigint;
  readonly voided_count: bigint;
  readonly movement_count: bigint;
  readonly difference_count: bigint;
  readonly request_sha256: Buffer | null;
}

export interface NewReconciliationRun {
  readonly runId: string;
  readonly vendor: string;
  /** 48 h before `endTime` where it is undefined. */
  readonly startTime: bigint | undefined;
  /** Now where it is undefined. */
  readonly endTime: bigint | undefined;
}

export async function insertReconciliationRun(
  transaction: Database,
  workspace: string,
  { runId, vendor, startTime, endTime }: NewReconciliationRun,
  request: CreationRequest | undefined,
): Promise<ReconciliationRun> {
  const cursor = { step: "SETTLE", after: null } satisfies RunCursor;
  const times = [startTime ?? null, endTime ?? null];
  const sent = [request?.requestId ?? null, request?.sha256 ?? null];
  const values = [workspace, runId, vendor, ...times, JSON.stringify(cursor), ...sent];
  try {
    const [row] = await run<RunRow>(transaction, insertStatement, values);
    if (row === undefined) throw new Error("insert_reconciliation_run returned no row");
    return readRun(row);
  } catch (error) {
    // A check: everything else about the row is made here.
    if (sqlStateOf(error) !== "23514") throw error;
    throw invalidField("start_time", "must be before end_time, which is now by default, and at most 366 days earlier.");
  }
}

export async function findRunByRequest(
  transaction: Database,
  workspace: string,
  requestId: string,
): Promise<{ readonly run: ReconciliationRun; readonly sha256: Uint8Array } | undefined> {
  const [row] = await run<RunRow>(transaction, findByRequestStatement, [workspace, requestId]);
  return row === undefined ? undefined : { run: readRun(row), sha256: row.request_sha256 ?? new Uint8Array() };
}

export async function getReconciliationRun(
  database: Database,
  workspace: string,
  runId: string,
): Promise<ReconciliationRun | undefined> {
  const [row] = await run<RunRow>(database, getStatement, [workspace, runId]);
  return row === undefined ? undefined : readRun(row);
}

/** The oldest run that is not at its end. */
export async function nextReconciliationRun(
  database: Database,
  workspace: string,
  vendor: string,
): Promise<ReconciliationRun | undefined> {
  const [row] = await run<RunRow>(database, nextStatement, [workspace, vendor]);
  return row === undefined ? undefined : readRun(row);
}

/** Newest first. */
export async function listReconciliationRuns(
  database: Database,
  workspace: string,
  after: Pick<ReconciliationRun, "createTime" | "runId"> | undefined,
  limit: number,
): Promise<ReconciliationRun[]> {
  const values = [workspace, after?.createTime ?? null, after?.runId ?? null, limit];
  return (await run<RunRow>(database, listStatement, values)).map(readRun);
}

interface DifferenceRow {
  readonly n: number;
  readonly kind: string;
  readonly mark: string;
  readonly vendor_reference: string;
  readonly vendor_account: string;
  readonly authorized_micros: bigint | null;
  readonly authorized_currency: string | null;
  readonly vendor_micros: bigint | null;
  readonly vendor_currency: string | null;
  readonly message: string;
}

/** In the order in which they were found, after the given number. */
export async function listReconciliationDifferences(
  database: Database,
  workspace: string,
  filter: { readonly runId: string; readonly after: number; readonly limit: number },
): Promise<(ReconciliationDifference & { readonly n: number })[]> {
  const values = [workspace, filter.runId, filter.after, filter.limit];
  return (await run<DifferenceRow>(database, differencesStatement, values)).map(readDifference);
}

/** What one step of a run has come to. */
export interface RunStep {
  readonly from: RunCursor;
  readonly to: RunCursor;
  readonly state: ReconciliationRunState;
  readonly message: string;
  readonly counts: {
    readonly reads?: number;
    readonly authorizations?: number;
    readonly committed?: number;
    readonly voided?: number;
    readonly movements?: number;
  };
  readonly differences?: readonly ReconciliationDifference[];
  /** Committed authorizations whose movement was seen. */
  readonly matches?: readonly { readonly spendKey: string; readonly generation: number }[];
}

/** Writes a step down, once. False if another replica has written it. */
export async function advanceReconciliationRun(
  database: Database,
  workspace: string,
  runId: string,
  step: RunStep,
): Promise<boolean> {
  const differences = (step.differences ?? []).map((one, index) => ({
    ord: index + 1,
    kind: one.kind,
    vendor_account: one.vendorAccount,
    vendor_reference: one.vendorReference,
    mark: one.mark,
    authorized_micros: one.authorized?.micros.toString() ?? null,
    authorized_currency: one.authorized?.currency ?? null,
    vendor_micros: one.charged?.micros.toString() ?? null,
    vendor_currency: one.charged?.currency ?? null,
    message: one.message.slice(0, 500),
  }));
  const matches = (step.matches ?? []).map(({ spendKey, generation }) => ({ spend_key: spendKey, generation }));
  const json = [step.counts, differences, matches].map((value) => JSON.stringify(value));
  const cursors = [step.from, step.to].map((cursor) => JSON.stringify(cursor));
  const values = [workspace, runId, ...cursors, step.state, step.message.slice(0, 500), ...json];
  const [row] = await run<{ written: boolean }>(database, advanceStatement, values);
  return row?.written === true;
}

/** Says what a run waits for. */
export async function sayAboutRun(
  database: Database,
  workspace: string,
  runId: string,
  message: string,
): Promise<void> {
  await run(database, messageStatement, [workspace, runId, message.slice(0, 500)]);
}

function readRun(row: RunRow): ReconciliationRun {
  return {
    runId: row.reconciliation_run_id,
    vendor: row.vendor,
    state: row.state as ReconciliationRunState,
    startTime: row.start_time,
    endTime: row.end_time,
    createTime: row.create_time,
    finishTime: row.finish_time ?? undefined,
    message: row.message,
    cursor: row.cursor,
    readCount: row.read_count,
    authorizationCount: row.authorization_count,
    committedCount: row.committed_count,
    voidedCount: row.voided_count,
    movementCount: row.movement_count,
    differenceCount: row.difference_count,
  };
}

function readDifference(row: DifferenceRow): ReconciliationDifference & { readonly n: number } {
  const money = (micros: bigint | null, currency: string | null) =>
    micros === null || currency === null ? undefined : { currency, micros: toMicros(micros) };
  return {
    n: row.n,
    kind: row.kind as ReconciliationDifferenceKind,
    mark: row.mark,
    vendorReference: row.vendor_reference,
    vendorAccount: row.vendor_account,
    authorized: money(row.authorized_micros, row.authorized_currency),
    charged: money(row.vendor_micros, row.vendor_currency),
    message: row.message,
  };
}

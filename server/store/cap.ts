import type { Cap, CapEnforcement, CapUsage, CapWindow, NewCap } from "../domain/cap.ts";
import { HoldfastError } from "../domain/errors.ts";
import { type Micros, toMicros } from "../domain/money.ts";
import type { CreationRequest } from "../domain/secret.ts";
import type { Direction } from "../domain/spend.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const capColumns = `c.cap_id, c.currency, c.limit_micros, c.limit_count, c.max_per_spend_micros, c.enforcement,
  c.cap_window, c.time_zone, c.start_hour, c.week_start, c.anchor_day, c.anchor_month,
  ${epochMicros("c.start_time")} as start_time, ${epochMicros("c.end_time")} as end_time,
  c.scope_vault_key_id, c.scope_vendor, c.scope_endpoint, c.scope_customer_id, c.scope_purpose, c.attached_only,
  c.per_customer, c.direction, c.refunds_restore_headroom, c.version,
  ${epochMicros("c.create_time")} as create_time, ${epochMicros("c.update_time")} as update_time,
  ${epochMicros("c.archive_time")} as archive_time, c.archive_reason`;

const insertStatement = statement(
  "insert_cap",
  `insert into holdfast.caps as c (
     workspace_id, cap_id, currency, limit_micros, limit_count, max_per_spend_micros, enforcement, cap_window, time_zone,
     start_hour, week_start, anchor_day, anchor_month, start_time, end_time, scope_vault_key_id, scope_vendor,
     scope_endpoint, scope_customer_id, scope_purpose, attached_only, per_customer, direction,
     refunds_restore_headroom, request_id, request_sha256, create_time, update_time
   )
   select $1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::text, $8::text, $9::text, $10::integer,
     $11::integer, $12::integer, $13::integer, timestamptz 'epoch' + $14::bigint * interval '1 microsecond',
     timestamptz 'epoch' + $15::bigint * interval '1 microsecond', $16::text, $17::text, $18::text, $19::text,
     $20::text, $21::boolean, $22::boolean, $23::text, $24::boolean, $25::text, $26::bytea, now.t, now.t
   from (select holdfast.clock() as t) as now
   on conflict (workspace_id, cap_id) do nothing
   returning ${capColumns}`,
);

const getStatement = statement(
  "get_cap",
  `select ${capColumns} from holdfast.caps c where c.workspace_id = $1::text and c.cap_id = $2::text`,
);

const requestStatement = statement(
  "find_cap_by_request",
  `select c.request_sha256, ${capColumns} from holdfast.caps c
   where c.workspace_id = $1::text and c.request_id = $2::text`,
);

const listStatement = statement(
  "list_caps",
  `select ${capColumns} from holdfast.caps c
   where c.workspace_id = $1::text and c.cap_id > $2::text and ($3::boolean or c.archive_time is null)
   order by c.cap_id limit $4::integer`,
);

const updateStatement = statement(
  "update_cap",
  `update holdfast.caps c set
     limit_micros = case when c.currency is null then null else coalesce($3::bigint, c.limit_micros) end,
     limit_count = case when c.currency is null then coalesce($3::bigint, c.limit_count) end,
     max_per_spend_micros = case when $4::boolean then $5::bigint else c.max_per_spend_micros end,
     refunds_restore_headroom = coalesce($6::boolean, c.refunds_restore_headroom),
     enforcement = coalesce($7::text, c.enforcement),
     version = c.version + 1, update_time = now.t
   from (select holdfast.clock() as t) as now
   where c.workspace_id = $1::text and c.cap_id = $2::text
   returning ${capColumns}`,
);

const archiveStatement = statement(
  "archive_cap",
  `update holdfast.caps c set archive_time = now.t, archive_reason = $3::text, version = c.version + 1,
     update_time = now.t
   from (select holdfast.clock() as t) as now
   where c.workspace_id = $1::text and c.cap_id = $2::text and c.archive_time is null
   returning ${capColumns}`,
);

const usageStatement = statement(
  "get_cap_usage",
  `select w.label,
     coalesce(case when c.currency is null then n.committed_count else n.committed_micros end, 0) as committed,
     coalesce(case when c.currency is null then n.held_count else n.held_micros end, 0) as held,
     ${epochMicros("holdfast.window_start(c, w.label)")} as window_start,
     ${epochMicros("holdfast.window_end(c, w.label)")} as window_end
   from holdfast.caps c
   cross join lateral (
     select coalesce(nullif($3::text, ''), holdfast.window_label(c, '', holdfast.clock())) as label
   ) as w
   left join holdfast.counters n on n.workspace_id = c.workspace_id and n.cap_id = c.cap_id
     and n.window_label = w.label and n.subject = $4::text
   where c.workspace_id = $1::text and c.cap_id = $2::text`,
);

const timeZoneStatement = statement(
  "find_time_zone",
  "select z.name from pg_catalog.pg_timezone_names z where z.name = $1::text",
);

interface CapRow {
  readonly cap_id: string;
  readonly currency: string | null;
  readonly limit_micros: bigint | null;
  readonly limit_count: bigint | null;
  readonly max_per_spend_micros: bigint | null;
  readonly enforcement: CapEnforcement;
  readonly cap_window: CapWindow;
  readonly time_zone: string;
  readonly start_hour: number;
  readonly week_start: number;
  readonly anchor_day: number;
  readonly anchor_month: number;
  readonly start_time: bigint | null;
  readonly end_time: bigint | null;
  readonly scope_vault_key_id: string | null;
  readonly scope_vendor: string | null;
  readonly scope_endpoint: string | null;
  readonly scope_customer_id: string | null;
  readonly scope_purpose: string | null;
  readonly attached_only: boolean;
  readonly per_customer: boolean;
  readonly direction: Direction;
  readonly refunds_restore_headroom: boolean;
  readonly version: bigint;
  readonly create_time: bigint;
  readonly update_time: bigint;
  readonly archive_time: bigint | null;
  readonly archive_reason: string;
}

/** Throws ALREADY_EXISTS. The workspace row must have been taken by `beginPolicyChange`. */
export async function insertCap(
  transaction: Database,
  workspace: string,
  cap: NewCap,
  request?: CreationRequest,
): Promise<Cap> {
  const { limit, scope } = cap;
  const [row] = await run<CapRow>(transaction, insertStatement, [
    workspace,
    cap.capId,
    limit.currency ?? null,
    limit.currency === undefined ? null : limit.micros,
    limit.currency === undefined ? limit.count : null,
    cap.maxPerSpend ?? null,
    cap.enforcement,
    cap.window,
    cap.timeZone,
    cap.startHour,
    cap.weekStart,
    cap.anchorDay,
    cap.anchorMonth,
    cap.startTime ?? null,
    cap.endTime ?? null,
    scope.vaultKeyId ?? null,
    scope.vendor ?? null,
    scope.endpoint ?? null,
    scope.customerId ?? null,
    scope.purpose ?? null,
    cap.attachedOnly,
    cap.perCustomer,
    cap.direction,
    cap.refundsRestoreHeadroom,
    request?.requestId ?? null,
    request?.sha256 ?? null,
  ]);
  if (row !== undefined) return readCap(row);
  throw new HoldfastError("ALREADY_EXISTS", `The cap caps/${cap.capId} exists; choose another id or update it.`, {
    metadata: { name: `caps/${cap.capId}` },
  });
}

/** The cap that a creation with this request id has made, and of what. */
export async function findCapByRequest(
  database: Database,
  workspace: string,
  requestId: string,
): Promise<{ readonly cap: Cap; readonly sha256: Uint8Array } | undefined> {
  const [row] = await run<CapRow & { request_sha256: Uint8Array }>(database, requestStatement, [workspace, requestId]);
  return row === undefined ? undefined : { cap: readCap(row), sha256: row.request_sha256 };
}

export async function getCap(database: Database, workspace: string, capId: string): Promise<Cap | undefined> {
  const [row] = await run<CapRow>(database, getStatement, [workspace, capId]);
  return row === undefined ? undefined : readCap(row);
}

export interface CapFilter {
  /** The id of the last cap of the page before, or empty. */
  readonly after: string;
  readonly includeArchived: boolean;
  readonly limit: number;
}

/** By id. */
export async function listCaps(database: Database, workspace: string, filter: CapFilter): Promise<Cap[]> {
  const values = [workspace, filter.after, filter.includeArchived, filter.limit];
  return (await run<CapRow>(database, listStatement, values)).map(readCap);
}

/** What is undefined stays as it is. */
export interface CapChange {
  /** In the unit of the cap's limit. */
  readonly limit: bigint | undefined;
  /** Null takes the limit away. */
  readonly maxPerSpend: Micros | null | undefined;
  readonly refundsRestoreHeadroom: boolean | undefined;
  readonly enforcement: CapEnforcement | undefined;
}

/** The workspace row must have been taken by `beginPolicyChange`, and the cap must exist. */
export async function updateCap(
  transaction: Database,
  workspace: string,
  capId: string,
  change: CapChange,
): Promise<Cap> {
  const [row] = await run<CapRow>(transaction, updateStatement, [
    workspace,
    capId,
    change.limit ?? null,
    change.maxPerSpend !== undefined,
    change.maxPerSpend ?? null,
    change.refundsRestoreHeadroom ?? null,
    change.enforcement ?? null,
  ]);
  if (row === undefined) throw new Error(`cap ${capId} vanished during its update`);
  return readCap(row);
}

/**
 * Undefined if nothing was changed: the cap is archived already or does not exist. The workspace row must have been
 * taken by `beginPolicyChange`.
 */
export async function archiveCap(
  transaction: Database,
  workspace: string,
  capId: string,
  reason: string,
): Promise<Cap | undefined> {
  const [row] = await run<CapRow>(transaction, archiveStatement, [workspace, capId, reason]);
  return row === undefined ? undefined : readCap(row);
}

interface UsageRow {
  readonly label: string;
  readonly committed: bigint;
  readonly held: bigint;
  readonly window_start: bigint | null;
  readonly window_end: bigint | null;
}

/** One counter. An empty `window` means the present one of a calendar, and the only one of a LIFETIME or FIXED cap. */
export async function getCapUsage(
  database: Database,
  workspace: string,
  capId: string,
  counter: { readonly window: string; readonly customerId: string },
): Promise<CapUsage | undefined> {
  const values = [workspace, capId, counter.window, counter.customerId];
  const [row] = await run<UsageRow>(database, usageStatement, values);
  if (row === undefined) return undefined;
  return {
    window: row.label,
    customerId: counter.customerId,
    committed: row.committed,
    held: row.held,
    windowStart: row.window_start ?? undefined,
    windowEnd: row.window_end ?? undefined,
  };
}

/** Whether the database knows the zone; it alone computes windows, so its list is the one that counts. */
export async function isTimeZone(database: Database, name: string): Promise<boolean> {
  return (await run(database, timeZoneStatement, [name])).length === 1;
}

function readCap(row: CapRow): Cap {
  return {
    capId: row.cap_id,
    limit:
      row.currency === null
        ? { currency: undefined, count: row.limit_count ?? 0n }
        : { currency: row.currency, micros: toMicros(row.limit_micros ?? 0n) },
    enforcement: row.enforcement,
    window: row.cap_window,
    timeZone: row.time_zone,
    startHour: row.start_hour,
    weekStart: row.week_start,
    anchorDay: row.anchor_day,
    anchorMonth: row.anchor_month,
    startTime: row.start_time ?? undefined,
    endTime: row.end_time ?? undefined,
    scope: {
      vaultKeyId: row.scope_vault_key_id ?? undefined,
      vendor: row.scope_vendor ?? undefined,
      endpoint: row.scope_endpoint ?? undefined,
      customerId: row.scope_customer_id ?? undefined,
      purpose: row.scope_purpose ?? undefined,
    },
    attachedOnly: row.attached_only,
    perCustomer: row.per_customer,
    direction: row.direction,
    refundsRestoreHeadroom: row.refunds_restore_headroom,
    maxPerSpend: row.max_per_spend_micros === null ? undefined : toMicros(row.max_per_spend_micros),
    version: row.version,
    createTime: row.create_time,
    updateTime: row.update_time,
    archiveTime: row.archive_time ?? undefined,
    archiveReason: row.archive_reason,
  };
}

import type { Cap, CapUsage, CapWindow, NewCap } from "../domain/cap.ts";
import { HoldfastError } from "../domain/errors.ts";
import { type Micros, toMicros } from "../domain/money.ts";
import type { Direction } from "../domain/spend.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const capColumns = `c.cap_id, c.currency, c.limit_micros, c.max_per_spend_micros, c.cap_window, c.time_zone,
  c.scope_vault_key_id, c.scope_vendor, c.scope_endpoint, c.scope_customer_id, c.scope_purpose, c.per_customer,
  c.direction, c.refunds_restore_headroom,
  c.version, ${epochMicros("c.create_time")} as create_time, ${epochMicros("c.update_time")} as update_time`;

const insertStatement = statement(
  "insert_cap",
  `insert into holdfast.caps as c (
     workspace_id, cap_id, currency, limit_micros, max_per_spend_micros, cap_window, time_zone, scope_vault_key_id,
     scope_vendor, scope_endpoint, scope_customer_id, scope_purpose, per_customer, direction,
     refunds_restore_headroom, create_time, update_time
   )
   select $1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::text, $7::text, $8::text, $9::text, $10::text,
     $11::text, $12::text, $13::boolean, $14::text, $15::boolean, now.t, now.t
   from (select holdfast.clock() as t) as now
   on conflict (workspace_id, cap_id) do nothing
   returning ${capColumns}`,
);

const getStatement = statement(
  "get_cap",
  `select ${capColumns} from holdfast.caps c where c.workspace_id = $1::text and c.cap_id = $2::text`,
);

const listStatement = statement(
  "list_caps",
  `select ${capColumns} from holdfast.caps c
   where c.workspace_id = $1::text and c.cap_id > $2::text
   order by c.cap_id limit $3::integer`,
);

const updateStatement = statement(
  "update_cap",
  `update holdfast.caps c set
     limit_micros = coalesce($3::bigint, c.limit_micros),
     max_per_spend_micros = case when $4::boolean then $5::bigint else c.max_per_spend_micros end,
     refunds_restore_headroom = coalesce($6::boolean, c.refunds_restore_headroom),
     version = c.version + 1, update_time = holdfast.clock()
   where c.workspace_id = $1::text and c.cap_id = $2::text
   returning ${capColumns}`,
);

const usageStatement = statement(
  "get_cap_usage",
  `select w.label, coalesce(n.committed_micros, 0) as committed_micros, coalesce(n.held_micros, 0) as held_micros,
     ${epochMicros("holdfast.window_end(c.cap_window, c.time_zone, w.label)")} as window_end
   from holdfast.caps c
   cross join lateral (
     select coalesce(nullif($3::text, ''), holdfast.window_label(c.cap_window, c.time_zone, '', holdfast.clock()))
       as label
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
  readonly currency: string;
  readonly limit_micros: bigint;
  readonly max_per_spend_micros: bigint | null;
  readonly cap_window: CapWindow;
  readonly time_zone: string;
  readonly scope_vault_key_id: string | null;
  readonly scope_vendor: string | null;
  readonly scope_endpoint: string | null;
  readonly scope_customer_id: string | null;
  readonly scope_purpose: string | null;
  readonly per_customer: boolean;
  readonly direction: Direction;
  readonly refunds_restore_headroom: boolean;
  readonly version: bigint;
  readonly create_time: bigint;
  readonly update_time: bigint;
}

/** Throws ALREADY_EXISTS. The workspace row must have been taken by `beginPolicyChange`. */
export async function insertCap(transaction: Database, workspace: string, cap: NewCap): Promise<Cap> {
  const [row] = await run<CapRow>(transaction, insertStatement, [
    workspace,
    cap.capId,
    cap.limit.currency,
    cap.limit.micros,
    cap.maxPerSpend ?? null,
    cap.window,
    cap.timeZone,
    cap.scope.vaultKeyId ?? null,
    cap.scope.vendor ?? null,
    cap.scope.endpoint ?? null,
    cap.scope.customerId ?? null,
    cap.scope.purpose ?? null,
    cap.perCustomer,
    cap.direction,
    cap.refundsRestoreHeadroom,
  ]);
  if (row !== undefined) return readCap(row);
  throw new HoldfastError("ALREADY_EXISTS", `The cap caps/${cap.capId} exists; choose another id or update it.`, {
    metadata: { name: `caps/${cap.capId}` },
  });
}

export async function getCap(database: Database, workspace: string, capId: string): Promise<Cap | undefined> {
  const [row] = await run<CapRow>(database, getStatement, [workspace, capId]);
  return row === undefined ? undefined : readCap(row);
}

/** By id, beginning after `after`. */
export async function listCaps(database: Database, workspace: string, after: string, limit: number): Promise<Cap[]> {
  return (await run<CapRow>(database, listStatement, [workspace, after, limit])).map(readCap);
}

export interface CapChange {
  readonly limit: Micros | undefined;
  /** Undefined leaves it; null takes the limit away. */
  readonly maxPerSpend: Micros | null | undefined;
  /** Undefined leaves it. */
  readonly refundsRestoreHeadroom: boolean | undefined;
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
  ]);
  if (row === undefined) throw new Error(`cap ${capId} vanished during its update`);
  return readCap(row);
}

/** One counter. An empty `window` means the present one of a LIFETIME or DAY cap. */
export async function getCapUsage(
  database: Database,
  workspace: string,
  capId: string,
  counter: { readonly window: string; readonly customerId: string },
): Promise<CapUsage | undefined> {
  const [row] = await run<{ label: string; committed_micros: bigint; held_micros: bigint; window_end: bigint | null }>(
    database,
    usageStatement,
    [workspace, capId, counter.window, counter.customerId],
  );
  if (row === undefined) return undefined;
  return {
    window: row.label,
    customerId: counter.customerId,
    committed: toMicros(row.committed_micros),
    held: toMicros(row.held_micros),
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
    limit: { currency: row.currency, micros: toMicros(row.limit_micros) },
    window: row.cap_window,
    timeZone: row.time_zone,
    scope: {
      vaultKeyId: row.scope_vault_key_id ?? undefined,
      vendor: row.scope_vendor ?? undefined,
      endpoint: row.scope_endpoint ?? undefined,
      customerId: row.scope_customer_id ?? undefined,
      purpose: row.scope_purpose ?? undefined,
    },
    perCustomer: row.per_customer,
    direction: row.direction,
    refundsRestoreHeadroom: row.refunds_restore_headroom,
    maxPerSpend: row.max_per_spend_micros === null ? undefined : toMicros(row.max_per_spend_micros),
    version: row.version,
    createTime: row.create_time,
    updateTime: row.update_time,
  };
}

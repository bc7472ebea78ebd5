import { toMicros } from "../domain/money.ts";
import type { Contradiction, ContradictionKind } from "../domain/spend.ts";
import { epochMicros } from "./authorization.ts";
import { type Database, run, statement } from "./database.ts";

const listStatement = statement(
  "list_contradictions",
  `select ${contradictionColumns("k")} from holdfast.contradictions k
   where k.workspace_id = $1::text
     and ($2::boolean or k.close_time is null)
     and ($3::bigint is null
       or (k.create_time, k.contradiction_id)
         < (timestamptz 'epoch' + $3::bigint * interval '1 microsecond', $4::text))
   order by k.create_time desc, k.contradiction_id desc
   limit $5::integer`,
);

const countStatement = statement(
  "count_open_contradictions",
  `select count(*) as open_count from holdfast.contradictions k
   where k.workspace_id = $1::text and k.close_time is null`,
);

const closeStatement = statement(
  "close_contradiction",
  `select ${contradictionColumns("k")}
   from holdfast.close_contradiction($1::text, $2::text,
     holdfast.actor_in_force($1::text, 'operator', $3::text), $4::text, $5::text) as k`,
);

export interface ContradictionRow {
  readonly contradiction_id: string;
  readonly kind: string;
  readonly spend_key: string;
  readonly generation: number;
  readonly vendor: string;
  readonly vendor_account: string;
  readonly vendor_reference: string;
  readonly amount_micros: bigint;
  readonly currency: string;
  readonly counted_micros: bigint;
  readonly attempt_id: string;
  readonly create_time: bigint;
  readonly close_time: bigint | null;
  readonly close_reason: string | null;
}

export interface ContradictionFilter {
  readonly includeClosed: boolean;
  /** The last contradiction of the page before. */
  readonly after: { readonly createTime: bigint; readonly contradictionId: string } | undefined;
  readonly limit: number;
}

/** Newest first. */
export async function listContradictions(
  database: Database,
  workspace: string,
  filter: ContradictionFilter,
): Promise<Contradiction[]> {
  const rows = await run<ContradictionRow>(database, listStatement, [
    workspace,
    filter.includeClosed,
    filter.after?.createTime ?? null,
    filter.after?.contradictionId ?? null,
    filter.limit,
  ]);
  return rows.map(readContradiction);
}

/** How many nobody has closed yet. */
export async function countOpenContradictions(database: Database, workspace: string): Promise<bigint> {
  const rows = await run<{ open_count: bigint }>(database, countStatement, [workspace]);
  return rows[0]?.open_count ?? 0n;
}

export interface CloseCommand {
  readonly contradictionId: string;
  readonly operatorId: string;
  readonly reason: string;
  readonly traceId: string;
}

/** Closes one that was dealt with; a second time changes nothing. Undefined if there is none of that id. */
export async function closeContradiction(
  database: Database,
  workspace: string,
  command: CloseCommand,
): Promise<Contradiction | undefined> {
  const { contradictionId, operatorId, reason, traceId } = command;
  const values = [workspace, contradictionId, operatorId, reason, traceId];
  const rows = await run<ContradictionRow>(database, closeStatement, values);
  return rows[0] === undefined ? undefined : readContradiction(rows[0]);
}

/** The select list of a contradiction; `row` is a table alias. */
export function contradictionColumns(row: string): string {
  const plain = [
    "contradiction_id",
    "kind",
    "spend_key",
    "generation",
    "vendor",
    "vendor_account",
    "vendor_reference",
    "amount_micros",
    "currency",
    "counted_micros",
    "attempt_id",
    "close_reason",
  ];
  const times = ["create_time", "close_time"];
  return [
    ...plain.map((column) => `${row}.${column}`),
    ...times.map((column) => `${epochMicros(`${row}.${column}`)} as ${column}`),
  ].join(", ");
}

export function readContradiction(row: ContradictionRow): Contradiction {
  return {
    contradictionId: row.contradiction_id,
    kind: row.kind as ContradictionKind,
    authorization: { spendKey: row.spend_key, generation: row.generation },
    vendor: row.vendor,
    vendorAccount: row.vendor_account,
    vendorReference: row.vendor_reference,
    amount: { currency: row.currency, micros: toMicros(row.amount_micros) },
    counted: toMicros(row.counted_micros),
    attemptId: row.attempt_id,
    createTime: row.create_time,
    closeTime: row.close_time ?? undefined,
    closeReason: row.close_reason ?? undefined,
  };
}

import { toMicros } from "../domain/money.ts";
import type { CapFigures } from "../domain/spend.ts";

/** The columns in which a judging function returns the cap that denied; all null where none did. */
export interface CapFiguresRow {
  readonly cap_id: string | null;
  readonly window_label: string | null;
  readonly window_end: bigint | null;
  readonly limit_micros: bigint;
  readonly cap_committed_micros: bigint;
  readonly cap_held_micros: bigint;
  readonly cap_currency: string;
}

export function readCapFigures(row: CapFiguresRow): CapFigures | undefined {
  if (row.cap_id === null) return undefined;
  return {
    capId: row.cap_id,
    window: row.window_label ?? "",
    windowEnd: row.window_end ?? undefined,
    currency: row.cap_currency,
    limit: toMicros(row.limit_micros),
    committed: toMicros(row.cap_committed_micros),
    held: toMicros(row.cap_held_micros),
  };
}

import type { CapDraw, CapEnforcement, CapFigures } from "../domain/cap.ts";
import type { DenialRule } from "../domain/spend.ts";
import { epochMicros } from "./authorization.ts";

/** The columns of a judging function that show the cap which denied; all null where none did. */
export const capFiguresColumns = `f.cap_id, f.window_label, ${epochMicros("f.window_start")} as window_start,
     ${epochMicros("f.window_end")} as window_end, f.cap_limit, f.cap_committed, f.cap_held, f.cap_currency`;

export interface CapFiguresRow {
  readonly cap_id: string | null;
  readonly window_label: string | null;
  readonly window_start: bigint | null;
  readonly window_end: bigint | null;
  readonly cap_limit: bigint;
  readonly cap_committed: bigint;
  readonly cap_held: bigint;
  /** Null where the cap counts spends. */
  readonly cap_currency: string | null;
}

export function readCapFigures(row: CapFiguresRow): CapFigures | undefined {
  if (row.cap_id === null) return undefined;
  return {
    capId: row.cap_id,
    window: row.window_label ?? "",
    windowStart: row.window_start ?? undefined,
    windowEnd: row.window_end ?? undefined,
    currency: row.cap_currency ?? undefined,
    limit: row.cap_limit,
    committed: row.cap_committed,
    held: row.cap_held,
  };
}

/** One draw of a rehearsal, as JSON. Numbers are decimal strings. */
export interface CapDrawJson {
  readonly cap: string;
  readonly window: string;
  readonly subject: string;
  readonly rule: DenialRule | null;
  readonly limit: string;
  readonly committed: string | null;
  readonly held: string | null;
  readonly currency: string | null;
  readonly enforcement: CapEnforcement;
  readonly max: string | null;
  readonly start: string | null;
  readonly end: string | null;
}

export function readCapDraw(draw: CapDrawJson): CapDraw {
  const figure = (text: string | null): bigint | undefined => (text === null ? undefined : BigInt(text));
  return {
    capId: draw.cap,
    window: draw.window,
    customerId: draw.subject,
    windowStart: figure(draw.start),
    windowEnd: figure(draw.end),
    currency: draw.currency ?? undefined,
    limit: BigInt(draw.limit),
    committed: figure(draw.committed) ?? 0n,
    held: figure(draw.held) ?? 0n,
    enforcement: draw.enforcement,
    maxPerSpend: figure(draw.max),
    rule: draw.rule ?? undefined,
  };
}

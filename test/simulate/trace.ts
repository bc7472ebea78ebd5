import { createHash } from "node:crypto";

/** What happened, one line per step: equal seeds have equal lines. */
export interface Trace {
  add(instant: number, line: string): void;
  /** SHA-256 over all lines, the first 16 hex digits. */
  hash(): string;
  lines(): readonly string[];
}

export function createTrace(): Trace {
  const lines: string[] = [];
  return {
    add: (instant, line) => void lines.push(`${timeOf(instant)} ${line}`),
    hash: () => createHash("sha256").update(lines.join("\n")).digest("hex").slice(0, 16),
    lines: () => lines,
  };
}

/** Days, hours, minutes, seconds and milliseconds since the beginning. */
function timeOf(instant: number): string {
  const day = Math.floor(instant / 86_400_000);
  return `${day}d ${new Date(instant % 86_400_000).toISOString().slice(11, 23)}`;
}

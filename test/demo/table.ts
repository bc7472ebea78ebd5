import type { Row } from "./verdict.ts";

interface Column {
  readonly heading: readonly [string, string];
  readonly value: (row: Row) => string;
}

const columns: readonly Column[] = [
  { heading: ["", "scenario"], value: ({ title }) => title },
  { heading: ["", "customers"], value: ({ customers }) => String(customers) },
  { heading: ["unguarded", "charges"], value: ({ unguardedCharges }) => String(unguardedCharges) },
  { heading: ["", "extra"], value: ({ unguardedDuplicates }) => String(unguardedDuplicates) },
  { heading: ["guarded", "charges"], value: ({ guardedCharges }) => String(guardedCharges) },
  { heading: ["", "extra"], value: ({ guardedDuplicates }) => String(guardedDuplicates) },
  { heading: ["over cap:", "denied"], value: ({ denied }) => String(denied) },
  { heading: ["", "in doubt"], value: ({ inDoubt }) => String(inDoubt) },
];

/** The table as text, 100 columns wide at most. */
export function tableOf(rows: readonly Row[]): string {
  const lines = [
    columns.map(({ heading }) => heading[0]),
    columns.map(({ heading }) => heading[1]),
    ...rows.map((row) => columns.map(({ value }) => value(row))),
  ];
  const widths = columns.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0)));
  const text = lines.map((line) =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join("  "),
  );
  const rule = "-".repeat(Math.max(...text.map((line) => line.length)));
  return [...text.slice(0, 2), rule, ...text.slice(2)].map((line) => line.trimEnd()).join("\n");
}

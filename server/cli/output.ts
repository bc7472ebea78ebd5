import { type DescMessage, type MessageShape, toJson } from "@bufbuild/protobuf";
import { type Duration, type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import type { Money } from "@holdfast/api/holdfast/v1/money_pb";

/** Where a command writes to. */
export interface Output {
  readonly json: boolean;
  /** Columns that fit; 80 where nobody looks. */
  readonly width: number;
  /** Writes a line as it is, but for what a terminal would take as an order. */
  line(text: string): void;
}

export interface Column<Row> {
  readonly title: string;
  readonly of: (row: Row) => string;
  /** Numbers stand right. */
  readonly right?: true;
  /** Is shortened where a line would not fit. One per table. */
  readonly shrinks?: true;
}

const gap = 2;

export function createOutput(options: {
  readonly json: boolean;
  readonly columns: number | undefined;
  readonly write: (text: string) => unknown;
}): Output {
  const { json, columns, write } = options;
  return {
    json,
    width: Math.max(40, Math.min(columns ?? 80, 160)),
    line: (text) => void write(`${json ? escaped(text) : plain(text)}\n`),
  };
}

/** A table that fits the width: one column shrinks, and what cannot fit then stands below each other. */
export function printTable<Row>(output: Output, columns: readonly Column<Row>[], rows: readonly Row[]): void {
  if (rows.length === 0) return output.line("Nothing.");
  const cells = rows.map((row) => columns.map((column) => plain(column.of(row))));
  const widths = columns.map(({ title }, at) =>
    Math.max(title.length, ...cells.map((line) => Array.from(line[at] ?? "").length)),
  );
  const shrinking = columns.findIndex(({ shrinks }) => shrinks === true);
  const total = widths.reduce((sum, width) => sum + width + gap, -gap);
  const over = total - output.width;
  if (over > 0 && shrinking >= 0) widths[shrinking] = Math.max(8, (widths[shrinking] ?? 0) - over);
  if (widths.reduce((sum, width) => sum + width + gap, -gap) > output.width) {
    for (const [at, line] of cells.entries()) {
      if (at > 0) output.line("");
      printFields(
        output,
        columns.map(({ title }, index) => [title.toLowerCase(), line[index] ?? ""] as const),
      );
    }
    return;
  }
  for (const line of [columns.map(({ title }) => title), ...cells]) {
    const padded = line.map((text, at) => pad(text, widths[at] ?? 0, columns[at]?.right === true));
    output.line(padded.join(" ".repeat(gap)).trimEnd());
  }
}

/** A sentence, in as many lines as it takes; those after the first are indented. */
export function printText(output: Output, text: string, indent = 0): void {
  for (const [at, part] of wrap(plain(text), output.width - indent).entries()) {
    output.line(`${" ".repeat(at === 0 ? 0 : indent)}${part}`);
  }
}

/** Names and values below each other. Empty values are left out. */
export function printFields(output: Output, fields: readonly (readonly [name: string, value: string])[]): void {
  const shown = fields.filter(([, value]) => value !== "");
  const width = Math.max(0, ...shown.map(([name]) => name.length));
  for (const [name, value] of shown) {
    for (const [at, part] of wrap(plain(value), output.width - width - gap).entries()) {
      output.line(`${pad(at === 0 ? name : "", width, false)}${" ".repeat(gap)}${part}`);
    }
  }
}

/** A message of the contract as JSON, with the contract's field names. */
export function printJson<Desc extends DescMessage>(output: Output, schema: Desc, message: MessageShape<Desc>): void {
  output.line(jsonOf(schema, message));
}

export function jsonOf<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>, indent = 2): string {
  return JSON.stringify(toJson(schema, message, { useProtoFieldName: true }), undefined, indent);
}

export function moneyText(money: Money | undefined): string {
  return money === undefined ? "" : `${money.amount} ${money.currency}`;
}

/** To the second, in UTC. */
export function timeText(time: Timestamp | undefined): string {
  if (time === undefined) return "";
  return `${timestampDate(time).toISOString().slice(0, 19)}Z`;
}

/** "3d 4h", "2h 5m", "14s": the two largest units. */
export function durationText(duration: Duration | undefined): string {
  if (duration === undefined) return "";
  const seconds = Number(duration.seconds);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3_600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "m"],
    [seconds % 60, "s"],
  ] as const;
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0s";
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count}${unit}`)
    .join(" ");
}

/** The word of an enum without its prefix. */
export function wordOf(values: Readonly<Record<string, number>>, value: number): string {
  return Object.entries(values).find(([, known]) => known === value)?.[0] ?? `${value}`;
}

const unsafe = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;

/** A terminal must not be told to do anything by what a caller has chosen. Line ends stay where `keep` has them. */
export function plain(text: string, keep: "" | "\n" = ""): string {
  return text.replaceAll(unsafe, (character) => (character === keep ? character : "?"));
}

/** The same for JSON, which can say every character without showing it. */
export function escaped(json: string): string {
  return json.replaceAll(unsafe, (character) => {
    if (character === "\n") return character;
    const units = Array.from({ length: character.length }, (_, at) => character.charCodeAt(at));
    return units.map((unit) => `\\u${unit.toString(16).padStart(4, "0")}`).join("");
  });
}

function pad(text: string, width: number, right: boolean): string {
  const length = Array.from(text).length;
  if (length > width)
    return `${Array.from(text)
      .slice(0, Math.max(0, width - 1))
      .join("")}…`;
  return right ? " ".repeat(width - length) + text : text + " ".repeat(width - length);
}

/** Lines of at most that many characters. A word that is longer than a line is cut. */
function wrap(text: string, width: number): readonly string[] {
  const limit = Math.max(width, 20);
  const lines: string[] = [];
  let line: string[] = [];
  for (const [at, word] of text.split(" ").entries()) {
    let rest = Array.from(word);
    if (at > 0 && line.length + 1 + rest.length <= limit) {
      line.push(" ", ...rest);
      continue;
    }
    if (at > 0) lines.push(line.join(""));
    for (; rest.length > limit; rest = rest.slice(limit)) lines.push(rest.slice(0, limit).join(""));
    line = rest;
  }
  return [...lines, line.join("")];
}

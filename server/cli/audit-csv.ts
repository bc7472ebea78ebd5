import type { JsonObject } from "@bufbuild/protobuf";
import type { AuditEvent } from "@holdfast/api/holdfast/v1/audit_pb";
import { escaped, timeText } from "./output.ts";

/** Also the wide forms, and white space that some programs skip. */
const formula = /^\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]/;

const columns: readonly (readonly [title: string, of: (event: AuditEvent) => string])[] = [
  ["name", ({ name }) => name],
  ["event_time", ({ eventTime }) => timeText(eventTime)],
  ["kind", ({ kind }) => kind],
  ["actor", ({ actor }) => actor],
  ["vault_key", ({ vaultKey }) => vaultKey],
  ["authorization", ({ authorization }) => authorization],
  ["customer_id", ({ customerId }) => customerId],
  ["billing_period", ({ billingPeriod }) => billingPeriod],
  ["purpose", ({ purpose }) => purpose],
  ["attempt_id", ({ attemptId }) => attemptId],
  ["currency", ({ amount }) => amount?.currency ?? ""],
  ["amount", ({ amount }) => amount?.amount ?? ""],
  ["disposition", ({ disposition }) => disposition],
  ["reason", ({ reason }) => reason],
  ["trace_id", ({ traceId }) => traceId],
  ["count", ({ count }) => `${count}`],
  ["detail", ({ detail }) => escaped(JSON.stringify(detail ?? ({} satisfies JsonObject)))],
];

/** The first line, with its end. */
export const csvHeader = csvLine(columns.map(([title]) => title));

/** One event as a line of RFC 4180, with its end. Safe to open in a spreadsheet. */
export function csvOf(event: AuditEvent): string {
  return csvLine(columns.map(([, of]) => of(event)));
}

/**
 * Values as one line of RFC 4180. A spreadsheet takes a value for a formula that begins with one of = + - @, or with white
 * space before it, whatever its quotes: such a value gets an apostrophe first, which the spreadsheet takes for "text".
 */
export function csvLine(values: readonly string[]): string {
  return `${values.map(csvField).join(",")}\r\n`;
}

function csvField(value: string): string {
  const text = formula.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

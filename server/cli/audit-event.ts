import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { type AuditEvent, AuditEventSchema } from "@holdfast/api/holdfast/v1/audit_pb";
import type { AuditFilterRequest } from "./audit-filter.ts";
import type { CommandContext } from "./command.ts";
import { jsonOf, moneyText, type Output, printFields, timeText } from "./output.ts";

/** One event of the audit, as every command shows it. */
export function printEvent(output: Output, event: AuditEvent): void {
  if (output.json) return output.line(jsonOf(AuditEventSchema, event, 0));
  const spend = [event.customerId, event.billingPeriod, event.purpose].filter((part) => part !== "").join(" ");
  const times = event.count > 1n ? `(${event.count} times)` : "";
  const line = [timeText(event.eventTime), event.kind, event.disposition, event.reason, times];
  output.line(line.filter((part) => part !== "").join(" "));
  printFields(output, [
    ["  by", event.actor],
    ["  key", event.vaultKey === event.actor ? "" : event.vaultKey],
    ["  spend", spend],
    ["  amount", moneyText(event.amount)],
    ["  detail", detailText(event)],
    ["  trace", event.traceId],
  ]);
}

function detailText({ detail }: AuditEvent): string {
  return Object.entries(detail ?? {})
    .filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && value.length === 0))
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join(" ");
}

/** Says beside the events that earlier ones are not among them, unless only later ones were asked for. */
export function noteDetached(
  context: CommandContext,
  { startTime }: Pick<AuditFilterRequest, "startTime">,
  until: Timestamp | undefined,
): void {
  if (until === undefined || (startTime !== undefined && (startTime.seconds ?? 0n) > until.seconds)) return;
  context.note(detachedText(until));
}

export function detachedText(until: Timestamp): string {
  return `Events up to ${timeText(until)} are not part of this audit any more: they were detached.`;
}

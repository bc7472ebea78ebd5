import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { type AuditEvent, AuditEventSchema } from "@holdfast/api/holdfast/v1/audit_pb";
import type { Command } from "commander";
import { parseCount, parseTime, resourceName } from "./arguments.ts";
import { type CommandContext, listPages } from "./command.ts";
import { jsonOf, moneyText, type Output, printFields, timeText } from "./output.ts";

interface TailFlags {
  readonly limit: number;
  readonly follow?: true;
  readonly since?: Timestamp;
  readonly until?: Timestamp;
  readonly kind?: string;
  readonly actor?: string;
  readonly authorization?: string;
  readonly customer?: string;
  readonly disposition?: string;
  readonly trace?: string;
}

const pollMs = 1_000;

export function auditCommands(program: Command, context: CommandContext): void {
  program
    .command("audit")
    .description("every decision and change")
    .command("tail")
    .description("the last events, oldest first; with --json one per line")
    .option("--limit <events>", "how many to show", parseCount, 20)
    .option("--follow", "go on with what is added")
    .option("--since <time>", "from this instant on", parseTime)
    .option("--until <time>", "before this instant", parseTime)
    .option("--kind <kind>", 'for example "spend.granted", or "spend" for all of them')
    .option("--actor <name>", 'for example "vaultKeys/nightly" or "operators/root"')
    .option("--authorization <name>", "of one authorization")
    .option("--customer <id>", "of one customer")
    .option("--disposition <word>", 'for example "DENIED"')
    .option("--trace <id>", "of one trace")
    .action((flags: TailFlags) => tail(context, flags));
}

async function tail(context: CommandContext, flags: TailFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const filter = filterOf(flags);
  // Where the listing stands now comes first: what is added while the last events are read is not lost.
  const stands = flags.follow === true ? await standsAt(context, filter) : "";
  const { rows } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listAuditEvents({ ...filter, ...page, newestFirst: true });
    return { rows: answer.auditEvents, nextPageToken: answer.nextPageToken };
  });
  const last = rows.toReversed();
  for (const event of last) printEvent(output, event);
  if (flags.follow !== true) return;
  const shown = new Set(last.map(({ name }) => name));
  for (let pageToken = stands; !context.ended(); ) {
    const answer = await admin.listAuditEvents({ ...filter, pageSize: 200, pageToken });
    for (const event of answer.auditEvents) if (!shown.delete(event.name)) printEvent(output, event);
    pageToken = answer.resumeToken;
    if (answer.nextPageToken === "") await context.wait(pollMs);
  }
}

/** The position after everything that is there: events match nothing of this kind, so one page tells it. */
async function standsAt(context: CommandContext, filter: ReturnType<typeof filterOf>): Promise<string> {
  const { admin } = context.connection();
  const answer = await admin.listAuditEvents({ ...filter, pageSize: 1, kind: "none" });
  return answer.resumeToken;
}

function filterOf(flags: TailFlags) {
  return {
    kind: flags.kind ?? "",
    actor: flags.actor ?? "",
    authorization: flags.authorization === undefined ? "" : resourceName("authorizations", flags.authorization),
    customerId: flags.customer ?? "",
    disposition: flags.disposition ?? "",
    traceId: flags.trace ?? "",
    ...(flags.since === undefined ? {} : { startTime: flags.since }),
    ...(flags.until === undefined ? {} : { endTime: flags.until }),
  };
}

function printEvent(output: Output, event: AuditEvent): void {
  if (output.json) return output.line(jsonOf(AuditEventSchema, event, 0));
  const spend = [event.customerId, event.billingPeriod, event.purpose].filter((part) => part !== "").join(" ");
  output.line(`${timeText(event.eventTime)} ${event.kind} ${[event.disposition, event.reason].join(" ")}`.trimEnd());
  printFields(output, [
    ["  by", event.actor],
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

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import type { AuditEvent } from "@holdfast/api/holdfast/v1/audit_pb";
import type { Command } from "commander";
import { parseCount } from "./arguments.ts";
import { exportCommand } from "./audit-export.ts";
import { type AuditFilterFlags, auditFilterOf, type AuditFilterRequest, withAuditFilter } from "./audit-filter.ts";
import { type CommandContext, listPages } from "./command.ts";
import { noteDetached, printEvent } from "./audit-event.ts";
import { partitionCommands } from "./audit-partitions.ts";

interface TailFlags extends AuditFilterFlags {
  readonly limit: number;
  readonly follow?: true;
}

export function auditCommands(program: Command, context: CommandContext): void {
  const audit = program.command("audit").description("every decision and change");
  withAuditFilter(
    audit
      .command("tail")
      .description("the last events, oldest first; with --json one per line")
      .option("--limit <events>", "how many to show", parseCount, 20)
      .option("--follow", "go on with what is added"),
  ).action((flags: TailFlags) => tail(context, flags));
  exportCommand(audit, context);
  partitionCommands(audit, context);
}

async function tail(context: CommandContext, flags: TailFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const filter = auditFilterOf(flags);
  // Where the audit stands now comes first: what is added while the last events are read is not lost.
  const stands = flags.follow === true ? await standsAt(context, filter) : "";
  let detachedUntil: Timestamp | undefined;
  const { rows } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listAuditEvents({ ...filter, ...page, newestFirst: true });
    detachedUntil = answer.detachedUntilTime;
    return { rows: answer.auditEvents, nextPageToken: answer.nextPageToken };
  });
  // Where there are as many as were asked for, none is missed.
  if (rows.length < flags.limit) noteDetached(context, filter, detachedUntil);
  const last = rows.toReversed();
  for (const event of last) printEvent(output, event);
  if (flags.follow !== true) return;
  const shown = new Set(last.map(({ name }) => name));
  await follow(context, { filter, resumeToken: stands }, (event) => {
    if (!shown.delete(event.name)) printEvent(output, event);
  });
}

/** The position after everything that is there: events match nothing of this kind, so one page tells it. */
async function standsAt(context: CommandContext, filter: AuditFilterRequest): Promise<string> {
  const { admin } = context.connection();
  const answer = await admin.listAuditEvents({ ...filter, pageSize: 1, kind: "none" });
  return answer.resumeToken;
}

const retryMs = 1_000;
const failuresMax = 10;

/** Watches until the command is ended. A stream that breaks or is over is begun again where it stood. */
async function follow(
  context: CommandContext,
  from: { readonly filter: AuditFilterRequest; readonly resumeToken: string },
  show: (event: AuditEvent) => void,
): Promise<void> {
  const { admin } = context.connection();
  let { resumeToken } = from;
  for (let failures = 0; !context.ended(); ) {
    try {
      const options = { timeoutMs: 0, ...(context.signal === undefined ? {} : { signal: context.signal }) };
      for await (const message of admin.watchAuditEvents({ ...from.filter, resumeToken }, options)) {
        for (const event of message.auditEvents) show(event);
        ({ resumeToken } = message);
        failures = 0;
      }
    } catch (error) {
      if (context.ended()) return;
      failures += 1;
      if (!isPassing(error) || failures > failuresMax) throw error;
      await context.wait(retryMs);
    }
  }
}

/** Another server may take it, or this one a little later. */
function isPassing(error: unknown): boolean {
  const { code } = ConnectError.from(error);
  return [Code.Unavailable, Code.ResourceExhausted, Code.Aborted, Code.Canceled].includes(code);
}

import { type FileHandle, open, readFile, rename, writeFile } from "node:fs/promises";
import { type AuditEvent, AuditEventSchema } from "@holdfast/api/holdfast/v1/audit_pb";
import type { Command } from "commander";
import { choice } from "./arguments.ts";
import { csvHeader, csvOf } from "./audit-csv.ts";
import { noteDetached } from "./audit-event.ts";
import { type AuditFilterFlags, auditFilterOf, type AuditFilterRequest, withAuditFilter } from "./audit-filter.ts";
import type { CommandContext } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { escaped, jsonOf } from "./output.ts";

type Format = "jsonl" | "csv";

interface ExportFlags extends AuditFilterFlags {
  readonly format: Format;
  readonly output: string;
  readonly resume?: true;
}

/** Where an export stands. It is kept beside the file, in `<file>.resume`, and written after what it speaks of. */
interface Standing {
  readonly format: Format;
  /** The filter, as text to compare. */
  readonly filter: string;
  readonly resume_token: string;
  /** How much of the file is whole. */
  readonly bytes: number;
  readonly events: number;
}

/** Where the lines go to. */
interface Sink {
  readonly begin: Pick<Standing, "resume_token" | "events">;
  write(text: string): Promise<void>;
  /** Everything up to here is whole. */
  stand(at: Pick<Standing, "resume_token" | "events">): Promise<void>;
  close(): Promise<void>;
}

export function exportCommand(audit: Command, context: CommandContext): void {
  withAuditFilter(
    audit
      .command("export")
      .description("every event, oldest first, into a file")
      .option("--format <format>", "jsonl, csv", choice({ jsonl: "jsonl", csv: "csv" } as const), "jsonl")
      .option("--output <file>", "a new file, or - for standard output", "-")
      .option("--resume", "go on with a file where it ended, also with what was added since"),
  ).action((flags: ExportFlags) => exportAudit(context, flags));
}

async function exportAudit(context: CommandContext, flags: ExportFlags): Promise<void> {
  const { admin } = context.connection();
  const filter = auditFilterOf(flags);
  const sink = flags.output === "-" ? await standardOutput(context, flags) : await fileSink(flags, textOf(filter));
  const beganMs = performance.now();
  let { resume_token: pageToken, events } = sink.begin;
  const before = events;
  try {
    for (;;) {
      const page = await admin.listAuditEvents({ ...filter, pageSize: 200, pageToken });
      if (page.auditEvents.length > 0)
        await sink.write(page.auditEvents.map((one) => lineOf(flags.format, one)).join(""));
      events += page.auditEvents.length;
      pageToken = page.resumeToken;
      await sink.stand({ resume_token: pageToken, events });
      context.progress(progressText(events - before, performance.now() - beganMs));
      if (page.nextPageToken !== "") continue;
      // What goes on with a file has the events before it from then.
      if (flags.resume !== true) noteDetached(context, filter, page.detachedUntilTime);
      return;
    }
  } finally {
    await sink.close();
  }
}

function lineOf(format: Format, event: AuditEvent): string {
  return format === "csv" ? csvOf(event) : `${escaped(jsonOf(AuditEventSchema, event, 0))}\n`;
}

function progressText(events: number, ms: number): string {
  return `${events} events, ${Math.round((events * 1000) / Math.max(1, ms))} per second`;
}

function textOf(filter: AuditFilterRequest): string {
  return JSON.stringify(filter, (_name, value: unknown) => (typeof value === "bigint" ? `${value}` : value));
}

async function standardOutput(context: CommandContext, flags: ExportFlags): Promise<Sink> {
  if (flags.resume === true) throw new CommandError("usage", "--resume needs the file that it goes on with: --output.");
  if (flags.format === "csv") await context.write(csvHeader);
  return {
    begin: { resume_token: "", events: 0 },
    write: (text) => context.write(text),
    stand: () => Promise.resolve(),
    close: () => Promise.resolve(),
  };
}

async function fileSink(flags: ExportFlags, filter: string): Promise<Sink> {
  const { format, output, resume } = flags;
  const standing: Standing =
    resume === true
      ? await readStanding(output, { format, filter })
      : { format, filter, resume_token: "", bytes: 0, events: 0 };
  const file = await openFile(output, resume === true);
  // What came after the last standing is half a page at most, and comes again.
  await file.truncate(standing.bytes);
  let { bytes } = standing;
  const write = async (text: string): Promise<void> => {
    const data = Buffer.from(text, "utf8");
    await writeAll(file, data, bytes);
    bytes += data.byteLength;
  };
  if (format === "csv" && bytes === 0) await write(csvHeader);
  return {
    begin: standing,
    write,
    async stand(at) {
      // In this order: a standing that speaks of lines that a power failure took would lose them.
      await file.datasync();
      const beside = `${output}.resume`;
      await writeFile(`${beside}.new`, `${JSON.stringify({ ...standing, ...at, bytes })}\n`, { mode: 0o600 });
      await rename(`${beside}.new`, beside);
    },
    close: () => file.close(),
  };
}

async function writeAll(file: FileHandle, data: Buffer, position: number): Promise<void> {
  for (let written = 0; written < data.byteLength; ) {
    const { bytesWritten } = await file.write(data, written, data.byteLength - written, position + written);
    written += bytesWritten;
  }
}

async function openFile(path: string, isThere: boolean): Promise<FileHandle> {
  try {
    return await open(path, isThere ? "r+" : "wx", 0o600);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    const why =
      code === "EEXIST"
        ? "is there already; give --resume to go on with it, or another name"
        : `cannot be ${isThere ? "opened" : "made"} (${code})`;
    throw new CommandError("usage", `${path} ${why}.`, cause);
  }
}

async function readStanding(output: string, asked: Pick<Standing, "format" | "filter">): Promise<Standing> {
  const beside = `${output}.resume`;
  let standing: Standing;
  try {
    standing = JSON.parse(await readFile(beside, "utf8")) as Standing;
  } catch (cause) {
    throw new CommandError("usage", `${beside}, which says where ${output} ended, cannot be read.`, cause);
  }
  if (standing.format !== asked.format || standing.filter !== asked.filter) {
    throw new CommandError("usage", `${output} was begun with another format or filter; give the same ones.`);
  }
  return standing;
}

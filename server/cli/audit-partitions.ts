import { type Command, InvalidArgumentError } from "commander";
import type { AuditKeeper, KeptBecause } from "../store/audit-detach.ts";
import type { AuditPartition } from "../store/audit-partitions.ts";
import type { CommandContext } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { type Output, printTable, printText } from "./output.ts";

interface DetachFlags {
  /** The first month that stays, as an instant. */
  readonly before: string;
  readonly by: string;
  readonly yes?: true;
}

/** Commands on the database itself, as the owner of the schema: no server can take a part of its own audit away. */
export function partitionCommands(audit: Command, context: CommandContext): void {
  audit
    .command("partitions")
    .description("the parts of the audit in DATABASE_URL: from when to when, and how large")
    .action(() => withKeeper(context, ({ keeper }) => list(context, keeper)));
  audit
    .command("detach")
    .description("take the oldest parts out of the audit; each stays a table of its own")
    .requiredOption("--before <month>", "the first month that stays whole, for example 2025-01, in UTC", parseMonth)
    .requiredOption("--by <name>", "who you are, for the audit", parseName)
    .option("--yes", "do it; without this it is only shown")
    .action((flags: DetachFlags) => withKeeper(context, (keeping) => detach(context, flags, keeping)));
}

interface Keeping {
  readonly keeper: AuditKeeper;
  readonly keepDays: number;
}

async function withKeeper(context: CommandContext, work: (keeping: Keeping) => Promise<void>): Promise<void> {
  // Whoever only reads the audit need not load what reaches a database.
  const { readConfig } = await import("../config.ts");
  const { openAuditKeeper } = await import("../store/audit-detach.ts");
  const { sqlStateOf } = await import("../store/database-errors.ts");
  // The token may be of another workspace than a server's first one.
  const config = readConfig({ ...context.env, HOLDFAST_OPERATOR_TOKEN: undefined }, []);
  if (config.database.kind !== "url") {
    throw new CommandError("usage", "Set DATABASE_URL, with the role that owns the schema: this asks no server.");
  }
  const keeper = openAuditKeeper({ connectionString: config.database.url });
  try {
    await work({ keeper, keepDays: config.auditRetentionDays });
  } catch (error) {
    if (sqlStateOf(error) === "42501") {
      throw new CommandError("notAllowed", "That is for the role that owns the schema, the one that migrates.", error);
    }
    throw error;
  } finally {
    await keeper.close();
  }
}

async function list(context: CommandContext, keeper: AuditKeeper): Promise<void> {
  const output = context.output();
  const parts = await keeper.list();
  if (output.json) return output.line(JSON.stringify({ partitions: parts.map(jsonOf) }, undefined, 2));
  printParts(output, parts);
}

async function detach(context: CommandContext, flags: DetachFlags, { keeper, keepDays }: Keeping): Promise<void> {
  const output = context.output();
  const { before, by } = flags;
  const parts = await keeper.list();
  const due = duePartitions(parts, before);
  if (flags.yes !== true) {
    if (due.length > 0) printParts(output, due);
    const text =
      due.length === 0
        ? `Nothing is wholly before ${before.slice(0, 7)}.`
        : "Nothing was changed. With --yes these are taken out of the audit, the oldest first.";
    return printText(output, text);
  }
  const { tables, keptBecause } = await keeper.detach({ before, keepDays, by });
  if (output.json) return output.line(JSON.stringify({ detached: tables, kept_because: keptBecause }, undefined, 2));
  for (const table of tables) {
    output.line(`detached ${table}`);
    const part = parts.find((one) => one.table === table);
    for (const text of part === undefined ? [] : keeper.afterwards(part)) output.line(`  ${text}`);
  }
  if (tables.length > 0) output.line("");
  printText(output, `What comes next stays: ${reasonOf(keptBecause, { ...flags, keepDays })}.`);
}

/** What a call of detach would take, as far as it can be seen beforehand. */
function duePartitions(parts: readonly AuditPartition[], before: string): readonly AuditPartition[] {
  const limit = BigInt(Date.parse(before)) * 1000n;
  const kept = parts.findIndex(
    ({ detachTime, isMeasured, lastTime }) =>
      detachTime === undefined && !(isMeasured && (lastTime === undefined || lastTime < limit)),
  );
  return parts.slice(0, Math.max(0, kept)).filter(({ isAttached }) => isAttached);
}

function reasonOf(why: KeptBecause, { before, keepDays }: DetachFlags & Pick<Keeping, "keepDays">): string {
  const reasons: Readonly<Record<KeptBecause, string>> = {
    OPEN: "events may still be added to it",
    UNMEASURED: "it has not been read yet",
    NOT_BEFORE: `it has events of ${before.slice(0, 7)} or later`,
    KEPT: `it is younger than ${keepDays} days (HOLDFAST_AUDIT_RETENTION_DAYS)`,
    FOLDED: "denials are counted that it has the first of; let a server sweep them",
  };
  return reasons[why];
}

function printParts(output: Output, parts: readonly AuditPartition[]): void {
  printTable(
    output,
    [
      { title: "TABLE", of: ({ table }) => table.replace("holdfast_audit.", "") },
      { title: "FROM", of: ({ firstTime }) => dayOf(firstTime) },
      { title: "TO", of: ({ lastTime }) => dayOf(lastTime) },
      { title: "EVENTS", of: ({ events, isMeasured }) => `${isMeasured ? "" : "~"}${events}`, right: true },
      { title: "MB", of: ({ bytes }) => `${(bytes + 500_000n) / 1_000_000n}`, right: true },
      { title: "STATE", of: stateOf },
    ],
    parts,
  );
}

function stateOf(part: AuditPartition): string {
  if (part.isDropped) return "dropped";
  if (part.detachTime !== undefined) return part.isAttached ? "detaching" : "detached";
  if (part.isAhead) return "ahead";
  return part.isMeasured ? "over" : "open";
}

function jsonOf(part: AuditPartition): Readonly<Record<string, unknown>> {
  return {
    table: part.table,
    from_transaction: part.fromXid,
    to_transaction: part.toXid ?? null,
    state: stateOf(part),
    first_time: timeOf(part.firstTime),
    last_time: timeOf(part.lastTime),
    events: Number(part.events),
    is_estimate: !part.isMeasured,
    bytes: Number(part.bytes),
    detach_time: timeOf(part.detachTime),
    detached_by: part.detachedBy ?? null,
  };
}

function timeOf(micros: bigint | undefined): string | null {
  return micros === undefined ? null : new Date(Number(micros / 1000n)).toISOString();
}

function dayOf(micros: bigint | undefined): string {
  return (timeOf(micros) ?? "").slice(0, 10);
}

function parseMonth(text: string): string {
  if (!/^\d{4}-(?:0[1-9]|1[0-2])$/.test(text)) throw new InvalidArgumentError('Write a month, for example "2025-01".');
  return `${text}-01T00:00:00Z`;
}

function parseName(text: string): string {
  if (text.length === 0 || text.length > 200) throw new InvalidArgumentError("Write 1 to 200 characters.");
  return text;
}

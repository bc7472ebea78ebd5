import { create } from "@bufbuild/protobuf";
import {
  type Contradiction,
  ContradictionKind,
  ContradictionSchema,
  ListContradictionsResponseSchema,
} from "@holdfast/api/holdfast/v1/contradiction_pb";
import type { Command } from "commander";
import { parseCount, resourceName } from "./arguments.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { moneyText, type Output, printFields, printJson, timeText, wordOf } from "./output.ts";

export function contradictionCommands(program: Command, context: CommandContext): void {
  const contradictions = program
    .command("contradictions")
    .description("charges that their authorization does not allow");
  contradictions
    .command("list")
    .description("newest first")
    .option("--closed", "also those that were dealt with")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags & { closed?: true }) => list(context, flags));
  contradictions
    .command("close <contradiction>")
    .description("say that one was dealt with; it goes on counting")
    .requiredOption("--reason <text>", "what was done, for the audit")
    .action(async (name: string, flags: { reason: string }) => {
      const request = { name: resourceName("contradictions", name), reason: flags.reason };
      const { contradiction } = await context.connection().admin.closeContradiction(request);
      const output = context.output();
      if (contradiction === undefined) return;
      if (output.json) return printJson(output, ContradictionSchema, contradiction);
      printContradiction(output, contradiction);
    });
}

async function list(context: CommandContext, flags: ListFlags & { closed?: true }): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  let openCount = 0n;
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listContradictions({ ...page, includeClosed: flags.closed === true });
    openCount = answer.openCount;
    return { rows: answer.contradictions, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListContradictionsResponseSchema, { contradictions: [...rows], nextPageToken, openCount });
    return printJson(output, ListContradictionsResponseSchema, all);
  }
  output.line(openCount === 0n ? "No contradiction is open." : `${openCount} open.`);
  for (const row of rows) {
    output.line("");
    printContradiction(output, row);
  }
  printMore(output, nextPageToken, flags.limit);
}

export function printContradiction(output: Output, row: Contradiction): void {
  printFields(output, [
    ["contradiction", row.name],
    ["kind", wordOf(ContradictionKind, row.kind).toLowerCase().replaceAll("_", " ")],
    ["authorization", row.authorization],
    ["charge", `${row.vendor} ${row.vendorReference}`],
    ["charged", moneyText(row.amount)],
    ["counted", moneyText(row.countedAmount)],
    ["seen", timeText(row.createTime)],
    ["closed", timeText(row.closeTime)],
    ["what was done", row.closeReason],
  ]);
}

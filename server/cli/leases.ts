import { create } from "@bufbuild/protobuf";
import { ListBillingLeasesResponseSchema } from "@holdfast/api/holdfast/v1/billing_lease_pb";
import { type BillingLease, BillingLeaseSchema } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Command } from "commander";
import { parseCount } from "./arguments.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { printFields, printJson, printTable, timeText } from "./output.ts";

export function leaseCommands(program: Command, context: CommandContext): void {
  const leases = program.command("leases").description("billing leases: which job runs where");
  leases
    .command("list")
    .description("by job and period")
    .option("--lease <job>", "only of this job")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags & { lease?: string }) => list(context, flags));
  leases
    .command("reopen <job> <period>")
    .description("open a completed job of a period again")
    .requiredOption("--reason <text>", "why, for the audit")
    .action(async (lease: string, billingPeriod: string, { reason }: { reason: string }) => {
      const answer = await context.connection().admin.reopenBillingLease({ lease, billingPeriod, reason });
      const output = context.output();
      if (answer.billingLease === undefined) return;
      if (output.json) return printJson(output, BillingLeaseSchema, answer.billingLease);
      printFields(output, [
        ["job", lease],
        ["period", billingPeriod],
        ["state", stateText(answer.billingLease)],
        ["fencing token", `${answer.billingLease.fencingToken}`],
      ]);
    });
}

async function list(context: CommandContext, flags: ListFlags & { lease?: string }): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listBillingLeases({ ...page, lease: flags.lease ?? "" });
    return { rows: answer.billingLeases, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListBillingLeasesResponseSchema, { billingLeases: [...rows], nextPageToken });
    return printJson(output, ListBillingLeasesResponseSchema, all);
  }
  printTable(
    output,
    [
      { title: "JOB", of: ({ lease }) => lease },
      { title: "PERIOD", of: ({ billingPeriod }) => billingPeriod },
      { title: "STATE", of: stateText },
      { title: "TOKEN", of: ({ fencingToken }) => `${fencingToken}`, right: true },
      { title: "UNTIL", of: ({ expireTime }) => timeText(expireTime).slice(0, 16) },
      { title: "HOLDER", of: ({ holderId }) => holderId, shrinks: true },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

/** Whether it has run out only the database's clock can tell: UNTIL says when. */
function stateText({ completed }: BillingLease): string {
  return completed ? "completed" : "open";
}

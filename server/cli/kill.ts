import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  EngageKillSwitchResponseSchema,
  type KillSwitch,
  KillSwitchSchema,
  type KillSwitchTarget,
  type KillSwitchTargetSchema,
  ListKillSwitchesResponseSchema,
} from "@holdfast/api/holdfast/v1/kill_switch_pb";
import type { Command } from "commander";
import { parseCount, resourceName } from "./arguments.ts";
import { printExposure } from "./authorizations.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { turn } from "./keys.ts";
import { type Column, type Output, printFields, printJson, printTable, timeText } from "./output.ts";

type Target = Exclude<MessageInitShape<typeof KillSwitchTargetSchema>, KillSwitchTarget>;

export function killCommands(program: Command, context: CommandContext): void {
  const kill = program.command("kill").description("stop a key, a vendor, a customer or everything, at once");
  const reasoned = (command: Command) => command.requiredOption("--reason <text>", "why, for the audit");
  reasoned(kill.command("key <key>").description("stop one vault key until it is resumed")).action(
    (key: string, { reason }: { reason: string }) => turn(context, "suspend", key, reason),
  );
  reasoned(kill.command("vendor <vendor>").description("stop every spend at a vendor")).action(
    (vendor: string, { reason }: { reason: string }) =>
      engage(context, { target: { case: "vendor", value: vendor } }, reason),
  );
  reasoned(kill.command("customer <id>").description("stop every spend of a customer")).action(
    (customer: string, { reason }: { reason: string }) =>
      engage(context, { target: { case: "customerId", value: customer } }, reason),
  );
  reasoned(kill.command("workspace").description("stop every spend")).action(({ reason }: { reason: string }) =>
    engage(context, { target: { case: "workspace", value: true } }, reason),
  );
  reasoned(kill.command("release <switch>").description("let what a kill switch stopped spend again")).action(
    async (name: string, { reason }: { reason: string }) => {
      const request = { name: resourceName("killSwitches", name), reason };
      printSwitch(context.output(), (await context.connection().admin.releaseKillSwitch(request)).killSwitch);
    },
  );
  kill
    .command("list")
    .description("what is stopped")
    .option("--released", "also what was released")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags & { released?: true }) => list(context, flags));
}

async function engage(context: CommandContext, target: Target, reason: string): Promise<void> {
  const answer = await context.connection().admin.engageKillSwitch({ target, reason });
  const output = context.output();
  if (output.json) return printJson(output, EngageKillSwitchResponseSchema, answer);
  printSwitch(output, answer.killSwitch);
  printExposure(output, answer);
}

const released: Column<KillSwitch> = {
  title: "RELEASED",
  of: ({ releaseTime }) => timeText(releaseTime).slice(0, 16),
};

async function list(context: CommandContext, flags: ListFlags & { released?: true }): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listKillSwitches({ ...page, includeReleased: flags.released === true });
    return { rows: answer.killSwitches, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListKillSwitchesResponseSchema, { killSwitches: [...rows], nextPageToken });
    return printJson(output, ListKillSwitchesResponseSchema, all);
  }
  if (rows.length === 0) return output.line("Nothing is stopped by a kill switch.");
  printTable(
    output,
    [
      { title: "STOPPED", of: targetText, shrinks: true },
      { title: "SINCE", of: ({ engageTime }) => timeText(engageTime).slice(0, 16) },
      ...(flags.released === true ? [released] : []),
      { title: "SWITCH", of: ({ name }) => name.slice("killSwitches/".length) },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

function printSwitch(output: Output, killSwitch: KillSwitch | undefined): void {
  if (killSwitch === undefined) return;
  if (output.json) return printJson(output, KillSwitchSchema, killSwitch);
  printFields(output, [
    ["switch", killSwitch.name],
    ["stops", targetText(killSwitch)],
    ["reason", killSwitch.reason],
    ["engaged", `${timeText(killSwitch.engageTime)} by ${killSwitch.engagedBy}`],
    [
      "released",
      killSwitch.releaseTime === undefined ? "" : `${timeText(killSwitch.releaseTime)} by ${killSwitch.releasedBy}`,
    ],
    ["why released", killSwitch.releaseReason],
  ]);
}

function targetText({ target }: KillSwitch): string {
  switch (target?.target.case) {
    case "vendor":
      return `vendor ${target.target.value}`;
    case "customerId":
      return `customer ${target.target.value}`;
    case "workspace":
      return "the whole workspace";
    default:
      return "";
  }
}

import { create } from "@bufbuild/protobuf";
import { AuthorizationState, type Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type GetSpendStoryResponse,
  GetSpendStoryResponseSchema,
  type ProxiedRequest,
} from "@holdfast/api/holdfast/v1/spend_story_pb";
import type { Command } from "commander";
import { resourceName } from "./arguments.ts";
import { detachedText, printEvent } from "./audit-event.ts";
import type { CommandContext } from "./command.ts";
import { printContradiction } from "./contradictions.ts";
import { CommandError } from "./exit-codes.ts";
import { moneyText, type Output, printFields, printJson, printTable, printText, timeText, wordOf } from "./output.ts";

interface StoryFlags {
  readonly customer?: string;
  readonly period?: string;
  readonly purpose?: string;
}

/** Adds the command to those about authorizations. */
export function storyCommand(authorizations: Command, context: CommandContext): void {
  authorizations
    .command("story [authorization]")
    .description("everything that is known about the spend of an authorization, or of these three:")
    .option("--customer <id>", "its customer")
    .option("--period <period>", "its billing period")
    .option("--purpose <purpose>", "its purpose")
    .action(async (name: string | undefined, flags: StoryFlags) => {
      const story = await readStory(context, lookupOf(name, flags));
      const output = context.output();
      if (output.json) printJson(output, GetSpendStoryResponseSchema, story);
      else printStory(output, story);
    });
}

function lookupOf(name: string | undefined, { customer, period, purpose }: StoryFlags) {
  if (name !== undefined && customer === undefined && period === undefined && purpose === undefined) {
    return { case: "authorization", value: resourceName("authorizations", name) } as const;
  }
  if (name !== undefined || customer === undefined || period === undefined || purpose === undefined) {
    throw new CommandError("usage", "Give either an authorization, or --customer, --period and --purpose.");
  }
  return { case: "spend", value: { customerId: customer, billingPeriod: period, purpose } } as const;
}

async function readStory(context: CommandContext, lookup: ReturnType<typeof lookupOf>): Promise<GetSpendStoryResponse> {
  const { admin } = context.connection();
  let story = create(GetSpendStoryResponseSchema);
  const events: GetSpendStoryResponse["auditEvents"] = [];
  for (let pageToken = ""; ; pageToken = story.nextPageToken) {
    story = await admin.getSpendStory({ lookup, pageSize: 200, pageToken });
    events.push(...story.auditEvents);
    if (story.nextPageToken === "") return { ...story, auditEvents: events };
  }
}

function printStory(output: Output, story: GetSpendStoryResponse): void {
  const { spend, authorizations, auditEvents, contradictions, proxiedRequests } = story;
  printFields(output, [
    ["customer", spend?.customerId ?? ""],
    ["period", spend?.billingPeriod ?? ""],
    ["purpose", spend?.purpose ?? ""],
  ]);
  output.line("");
  if (authorizations.length === 0) output.line("It was never granted.");
  for (const authorization of authorizations) printGeneration(output, authorization);
  if (proxiedRequests.length > 0) {
    output.line("Requests through the proxy:");
    printRequests(output, proxiedRequests);
    output.line("");
  }
  for (const contradiction of contradictions) {
    printContradiction(output, contradiction);
    output.line("");
  }
  if (story.detachedUntilTime !== undefined) {
    printText(output, detachedText(story.detachedUntilTime));
    output.line("");
  }
  for (const event of auditEvents) printEvent(output, event);
}

function printGeneration(output: Output, authorization: Authorization): void {
  const { spend, committedAmount, vendor, vendorReference, reconciliation } = authorization;
  printFields(output, [
    ["authorization", authorization.name],
    ["state", wordOf(AuthorizationState, authorization.state).toLowerCase().replace("_", " ")],
    ["amount", moneyText(spend?.amount)],
    ["committed", moneyText(committedAmount)],
    ["reference", vendorReference === "" ? "" : `${vendor} ${vendorReference}`],
    ["vendor key", authorization.idempotencyKey],
    ["asked", reconciliation === undefined ? "" : `${reconciliation.count} times, last: ${reconciliation.note}`],
    ["reason", authorization.voidReason],
  ]);
  output.line("");
}

function printRequests(output: Output, requests: readonly ProxiedRequest[]): void {
  printTable(
    output,
    [
      { title: "TAKEN", of: ({ createTime }) => timeText(createTime).slice(0, 19) },
      { title: "KEY", of: ({ vaultKey }) => vaultKey.replace("vaultKeys/", "") },
      { title: "ENDPOINT", of: ({ endpoint }) => endpoint, shrinks: true },
      { title: "TRIES", of: ({ generation }) => `${generation}`, right: true },
      {
        title: "ANSWER",
        of: ({ open, status, declined }) => (open ? "open" : `${status}${declined ? " declined" : ""}`),
      },
    ],
    requests,
  );
}

import { create } from "@bufbuild/protobuf";
import type { Duration } from "@bufbuild/protobuf/wkt";
import {
  ListAuthorizationsResponseSchema,
  ListInDoubtAuthorizationsResponseSchema,
} from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type Authorization,
  AuthorizationSchema,
  AuthorizationState,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import type { Command } from "commander";
import { choice, parseCount, parseMoney, resourceName } from "./arguments.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import {
  durationText,
  moneyText,
  type Output,
  printFields,
  printJson,
  printTable,
  timeText,
  wordOf,
} from "./output.ts";
import { storyCommand } from "./story.ts";

const states = {
  held: AuthorizationState.HELD,
  committed: AuthorizationState.COMMITTED,
  voided: AuthorizationState.VOIDED,
  "in-doubt": AuthorizationState.IN_DOUBT,
} as const;

interface FilterFlags extends ListFlags {
  readonly state?: AuthorizationState;
  readonly customer?: string;
  readonly period?: string;
  readonly key?: string;
}

interface ResolveFlags {
  readonly committed?: ReturnType<typeof parseMoney>;
  readonly voided?: true;
  readonly reference?: string;
  readonly reason: string;
}

export function authorizationCommands(program: Command, context: CommandContext): void {
  const authorizations = program.command("authorizations").description("what was permitted, and what became of it");
  authorizations
    .command("list")
    .description("newest first")
    .option("--state <state>", Object.keys(states).join(", "), choice(states))
    .option("--customer <id>", "only of this customer")
    .option("--period <period>", "only of this billing period")
    .option("--key <key>", "only of this vault key")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: FilterFlags) => list(context, flags));
  authorizations
    .command("show <authorization>")
    .description("one authorization")
    .action(async (name: string) => {
      const lookup = { case: "name", value: resourceName("authorizations", name) } as const;
      const answer = await context.connection().spend.getAuthorization({ lookup });
      printAuthorization(context.output(), answer.authorization);
    });
  storyCommand(authorizations, context);
  const doubt = program.command("in-doubt").description("spends whose outcome nobody knows");
  doubt
    .command("list")
    .description("longest in doubt first, with what was tried")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags) => listInDoubt(context, flags));
  doubt
    .command("resolve <authorization>")
    .description("settle one on your word: say whether the vendor charged")
    .option("--committed <money>", "it did charge this much", parseMoney)
    .option("--voided", "it did not charge, and never will")
    .option("--reference <id>", "the vendor's id of the charge, or of the object that was seen ended")
    .requiredOption("--reason <text>", "why, for the audit")
    .action((name: string, flags: ResolveFlags) => resolve(context, name, flags));
}

async function list(context: CommandContext, flags: FilterFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listAuthorizations({
      ...page,
      states: flags.state === undefined ? [] : [flags.state],
      customerId: flags.customer ?? "",
      billingPeriod: flags.period ?? "",
      vaultKey: flags.key === undefined ? "" : resourceName("vaultKeys", flags.key),
    });
    return { rows: answer.authorizations, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListAuthorizationsResponseSchema, { authorizations: [...rows], nextPageToken });
    return printJson(output, ListAuthorizationsResponseSchema, all);
  }
  printAuthorizations(output, rows);
  printMore(output, nextPageToken, flags.limit);
}

async function listInDoubt(context: CommandContext, flags: ListFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  let figures: { totalCount: bigint; oldestAge?: Duration } = { totalCount: 0n };
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listInDoubtAuthorizations(page);
    const { totalCount, oldestAge } = answer;
    figures = { totalCount, ...(oldestAge === undefined ? {} : { oldestAge }) };
    return { rows: answer.authorizations, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListInDoubtAuthorizationsResponseSchema, {
      authorizations: [...rows],
      nextPageToken,
      ...figures,
    });
    return printJson(output, ListInDoubtAuthorizationsResponseSchema, all);
  }
  if (rows.length === 0) return output.line("Nothing is in doubt.");
  output.line(`${figures.totalCount} in doubt, the oldest for ${durationText(figures.oldestAge)}.`);
  for (const authorization of rows) {
    output.line("");
    printFields(output, [
      ["authorization", authorization.name],
      ...spendFields(authorization),
      ["in doubt since", timeText(authorization.inDoubtTime)],
      ["tried", triedText(authorization)],
    ]);
  }
  printMore(output, nextPageToken, flags.limit);
}

function triedText({ reconciliation }: Authorization): string {
  if (reconciliation === undefined) return "nobody has asked the vendor yet";
  const times = reconciliation.count === 1 ? "once" : `${reconciliation.count} times`;
  return `${times}, last ${timeText(reconciliation.lastTime)}: ${reconciliation.note}`;
}

async function resolve(context: CommandContext, name: string, flags: ResolveFlags): Promise<void> {
  const { committed, voided, reason } = flags;
  if ((committed === undefined) === (voided === undefined)) {
    throw new CommandError("usage", "Give either --committed with the amount, or --voided.");
  }
  const vendorReference = flags.reference ?? "";
  const answer = await context.connection().admin.resolveAuthorization({
    name: resourceName("authorizations", name),
    resolution:
      committed === undefined
        ? { case: "voided", value: { vendorReference } }
        : { case: "committed", value: { amount: committed, vendorReference } },
    reason,
  });
  printAuthorization(context.output(), answer.authorization);
}

export function printAuthorizations(output: Output, rows: readonly Authorization[]): void {
  printTable(
    output,
    [
      { title: "GRANTED", of: ({ grantTime }) => timeText(grantTime).slice(0, 16) },
      { title: "CUSTOMER", of: ({ spend }) => spend?.customerId ?? "", shrinks: true },
      { title: "PERIOD", of: ({ spend }) => spend?.billingPeriod ?? "" },
      { title: "AMOUNT", of: (row) => moneyText(row.committedAmount ?? row.spend?.amount), right: true },
      { title: "STATE", of: (row) => wordOf(AuthorizationState, row.state).toLowerCase().replace("_", "-") },
    ],
    rows,
  );
}

/** What was granted before something was stopped, and may still be charged. */
export function printExposure(
  output: Output,
  exposure: { readonly openAuthorizations: readonly Authorization[]; readonly openAuthorizationCount: bigint },
): void {
  const { openAuthorizations: open, openAuthorizationCount: count } = exposure;
  output.line("");
  if (count === 0n) return output.line("Nothing that was granted before is open.");
  output.line(`${count} granted before ${count === 1n ? "is" : "are"} open and may still be charged:`);
  printAuthorizations(output, open);
  if (BigInt(open.length) < count) output.line(`… and ${count - BigInt(open.length)} more.`);
}

function spendFields({ spend, vaultKey, vendor, endpoint, vendorReference, ...rest }: Authorization) {
  return [
    ["customer", spend?.customerId ?? ""],
    ["period", spend?.billingPeriod ?? ""],
    ["purpose", spend?.purpose ?? ""],
    ["amount", moneyText(spend?.amount)],
    ["held", moneyText(rest.heldAmount)],
    ["key", vaultKey],
    ["endpoint", `${vendor} ${endpoint}`],
    ["reference", vendorReference],
    ["vendor state", rest.vendorState],
  ] as const;
}

export function printAuthorization(output: Output, authorization: Authorization | undefined): void {
  if (authorization === undefined) return;
  if (output.json) return printJson(output, AuthorizationSchema, authorization);
  printFields(output, [
    ["authorization", authorization.name],
    ["state", wordOf(AuthorizationState, authorization.state).toLowerCase().replace("_", " ")],
    ...spendFields(authorization),
    ["committed", moneyText(authorization.committedAmount)],
    ["refunded", authorization.refundedAmount?.amount === "0" ? "" : moneyText(authorization.refundedAmount)],
    ["granted", timeText(authorization.grantTime)],
    ["hold until", timeText(authorization.holdExpireTime)],
    ["in doubt since", timeText(authorization.inDoubtTime)],
    ["asked", authorization.reconciliation === undefined ? "" : triedText(authorization)],
    ["committed at", timeText(authorization.commitTime)],
    ["voided at", timeText(authorization.voidTime)],
    ["evidence", authorization.voidTime === undefined ? "" : wordOf(VoidEvidence, authorization.voidEvidence)],
    ["reason", authorization.voidReason],
    ["vendor key", authorization.idempotencyKey],
    ["trace", authorization.traceId],
  ]);
}

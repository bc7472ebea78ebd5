import { create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import {
  type Cap,
  CapEnforcement,
  CapSchema,
  CapState,
  CapWindow,
  CreateCapResponseSchema,
  DayOfWeek,
  GetCapResponseSchema,
  ListCapsResponseSchema,
  UpdateCapResponseSchema,
} from "@holdfast/api/holdfast/v1/cap_pb";
import { Direction } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { choice, parseBigWhole, parseCount, parseMoney, parseTime, parseWhole, resourceName } from "./arguments.ts";
import { type CommandContext, listPages, type ListFlags, printMore } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { moneyText, type Output, printFields, printJson, printTable, timeText, wordOf } from "./output.ts";

const windows = {
  lifetime: CapWindow.LIFETIME,
  day: CapWindow.DAY,
  week: CapWindow.WEEK,
  month: CapWindow.MONTH,
  year: CapWindow.YEAR,
  "billing-period": CapWindow.BILLING_PERIOD,
  fixed: CapWindow.FIXED,
} as const;

const days = {
  monday: DayOfWeek.MONDAY,
  tuesday: DayOfWeek.TUESDAY,
  wednesday: DayOfWeek.WEDNESDAY,
  thursday: DayOfWeek.THURSDAY,
  friday: DayOfWeek.FRIDAY,
  saturday: DayOfWeek.SATURDAY,
  sunday: DayOfWeek.SUNDAY,
} as const;

type MoneyFlag = ReturnType<typeof parseMoney>;

export interface CapFlags {
  readonly limit?: MoneyFlag;
  readonly count?: bigint;
  readonly maxPerSpend?: MoneyFlag;
  readonly window: CapWindow;
  readonly zone?: string;
  readonly startHour?: number;
  readonly weekStart?: DayOfWeek;
  readonly anchorDay?: number;
  readonly anchorMonth?: number;
  readonly from?: Timestamp;
  readonly to?: Timestamp;
  readonly key?: string;
  readonly vendor?: string;
  readonly endpoint?: string;
  readonly customer?: string;
  readonly purpose?: string;
  readonly perCustomer?: true;
  readonly refunds?: true;
  readonly refundsRestoreHeadroom?: true;
  readonly shadow?: true;
  readonly attachedOnly?: true;
}

export function capCommands(program: Command, context: CommandContext): void {
  const caps = program.command("caps").description("limits, and what is used of them");
  caps
    .command("list")
    .description("every cap by id")
    .option("--archived", "also those that are archived")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags & { archived?: true }) => list(context, flags));
  caps
    .command("show <cap>")
    .description("one cap and the counter of a window; of the present one if none is named")
    .option("--window <label>", 'the window, for example "2026-11-30" or "2026-11"')
    .option("--customer <id>", "whose counter, of a cap with one per customer")
    .action((cap: string, flags: { window?: string; customer?: string }) => show(context, cap, flags));
  scopeFlags(windowFlags(limitFlags(caps.command("create <cap>").description("a new cap; it counts from now on"))))
    .option("--shadow", "count and report, never deny")
    .action((cap: string, flags: CapFlags) => createCap(context, cap, flags));
  limitFlags(caps.command("update <cap>").description("another limit, or another enforcement"))
    .option("--no-max-per-spend", "take the limit per spend away")
    .option("--shadow", "count and report, never deny")
    .option("--enforce", "deny what does not fit")
    .option("--etag <etag>", "only if the cap has not changed since it was read")
    .action((cap: string, flags: UpdateFlags) => update(context, cap, flags));
  caps
    .command("archive <cap>")
    .description("end a cap for ever")
    .requiredOption("--reason <text>", "why, for the audit")
    .action(async (cap: string, flags: { reason: string }) => {
      const { admin } = context.connection();
      const answer = await admin.archiveCap({ name: resourceName("caps", cap), reason: flags.reason });
      printCap(context.output(), answer.cap);
    });
}

function limitFlags(command: Command): Command {
  return command
    .option("--limit <money>", 'the most within one window, for example "11000.00 usd"', parseMoney)
    .option("--count <spends>", "instead: how many spends within one window", parseBigWhole)
    .option("--max-per-spend <money>", "the most that one spend may ask for", parseMoney);
}

function windowFlags(command: Command): Command {
  return command
    .requiredOption("--window <window>", Object.keys(windows).join(", "), choice(windows))
    .option("--zone <zone>", 'IANA zone of a calendar window, for example "Europe/Berlin"; UTC by default')
    .option("--start-hour <hour>", "when a calendar window begins, 0 to 23", parseWhole)
    .option("--week-start <day>", "when a week begins; monday by default", choice(days))
    .option("--anchor-day <day>", "when a month or a year begins, 1 to 31", parseWhole)
    .option("--anchor-month <month>", "when a year begins, 1 to 12", parseWhole)
    .option("--from <time>", "when a fixed window begins", parseTime)
    .option("--to <time>", "when a fixed window ends", parseTime);
}

function scopeFlags(command: Command): Command {
  return command
    .option("--key <key>", "only spends of this vault key")
    .option("--vendor <vendor>", "only spends at this vendor")
    .option("--endpoint <endpoint>", 'only this endpoint, for example "POST /v1/charges"')
    .option("--customer <id>", "only spends of this customer")
    .option("--purpose <purpose>", "only spends for this purpose")
    .option("--per-customer", "one counter for each customer")
    .option("--attached-only", "only spends of keys that name the cap")
    .option("--refunds", "money that is given back instead of spent")
    .option("--refunds-restore-headroom", "a refund gives its headroom back");
}

/** The cap that flags describe. Values are judged by the server. */
export function capOf(flags: CapFlags) {
  return {
    ...limitsOf(flags),
    window: flags.window,
    timeZone: flags.zone ?? "",
    startHour: flags.startHour ?? 0,
    weekStart: flags.weekStart ?? DayOfWeek.UNSPECIFIED,
    anchorDay: flags.anchorDay ?? 0,
    anchorMonth: flags.anchorMonth ?? 0,
    ...(flags.from === undefined ? {} : { startTime: flags.from }),
    ...(flags.to === undefined ? {} : { endTime: flags.to }),
    scope: {
      vaultKey: flags.key === undefined ? "" : resourceName("vaultKeys", flags.key),
      vendor: flags.vendor ?? "",
      endpoint: flags.endpoint ?? "",
      customerId: flags.customer ?? "",
      purpose: flags.purpose ?? "",
    },
    perCustomer: flags.perCustomer === true,
    attachedOnly: flags.attachedOnly === true,
    direction: flags.refunds === true ? Direction.REFUND : Direction.SPEND,
    refundsRestoreHeadroom: flags.refundsRestoreHeadroom === true,
    enforcement: flags.shadow === true ? CapEnforcement.SHADOW : CapEnforcement.ENFORCE,
  };
}

function limitsOf(flags: { limit?: MoneyFlag; count?: bigint; maxPerSpend?: MoneyFlag | false }) {
  return {
    ...(flags.limit === undefined ? {} : { limit: flags.limit }),
    ...(flags.count === undefined ? {} : { spendCountLimit: flags.count }),
    ...(flags.maxPerSpend === undefined || flags.maxPerSpend === false ? {} : { maxPerSpend: flags.maxPerSpend }),
  };
}

async function list(context: CommandContext, flags: ListFlags & { archived?: true }): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listCaps({ ...page, includeArchived: flags.archived === true });
    return { rows: answer.caps, nextPageToken: answer.nextPageToken };
  });
  if (output.json)
    return printJson(
      output,
      ListCapsResponseSchema,
      create(ListCapsResponseSchema, { caps: [...rows], nextPageToken }),
    );
  printTable(
    output,
    [
      { title: "CAP", of: ({ name }) => name.slice("caps/".length), shrinks: true },
      { title: "LIMIT", of: limitText, right: true },
      { title: "WINDOW", of: windowText },
      { title: "COUNTS", of: scopeText },
      { title: "STATE", of: stateText },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

async function show(
  context: CommandContext,
  cap: string,
  flags: { window?: string; customer?: string },
): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const request = { name: resourceName("caps", cap), window: flags.window ?? "", customerId: flags.customer ?? "" };
  const answer = await admin.getCap(request);
  if (output.json) return printJson(output, GetCapResponseSchema, answer);
  printCap(output, answer.cap);
  const { usage } = answer;
  if (usage === undefined) return output.line("Name a --window or a --customer to see a counter.");
  const counted = usage.committedCount !== undefined;
  printFields(output, [
    ["used in", usage.window === "" ? "all time" : usage.window],
    ["customer", usage.customerId],
    ["committed", counted ? `${usage.committedCount}` : moneyText(usage.committed)],
    ["held", counted ? `${usage.heldCount}` : moneyText(usage.held)],
    ["headroom", counted ? `${usage.headroomCount}` : moneyText(usage.headroom)],
    ["begins", timeText(usage.windowStartTime)],
    ["ends", timeText(usage.windowEndTime)],
  ]);
}

async function createCap(context: CommandContext, cap: string, flags: CapFlags): Promise<void> {
  const { admin } = context.connection();
  const answer = await admin.createCap({ capId: cap.replace(/^caps\//, ""), cap: capOf(flags) });
  const output = context.output();
  if (output.json) return printJson(output, CreateCapResponseSchema, answer);
  printCap(output, answer.cap);
  printWarnings(output, answer.warnings);
}

interface UpdateFlags {
  readonly limit?: MoneyFlag;
  readonly count?: bigint;
  /** False with --no-max-per-spend; true where neither flag is given. */
  readonly maxPerSpend?: MoneyFlag | boolean;
  readonly shadow?: true;
  readonly enforce?: true;
  readonly etag?: string;
}

async function update(context: CommandContext, cap: string, flags: UpdateFlags): Promise<void> {
  const { admin } = context.connection();
  const maxPerSpend = flags.maxPerSpend === true ? undefined : flags.maxPerSpend;
  if (flags.shadow === true && flags.enforce === true) {
    throw new CommandError("usage", "--shadow and --enforce contradict each other; give one.");
  }
  const paths = [
    ...(flags.limit === undefined ? [] : ["limit"]),
    ...(flags.count === undefined ? [] : ["spend_count_limit"]),
    ...(maxPerSpend === undefined ? [] : ["max_per_spend"]),
    ...(flags.shadow === true || flags.enforce === true ? ["enforcement"] : []),
  ];
  if (paths.length === 0) throw new CommandError("usage", "Nothing to change; give --limit, --count or another flag.");
  const answer = await admin.updateCap({
    cap: {
      name: resourceName("caps", cap),
      etag: flags.etag ?? "",
      enforcement: flags.shadow === true ? CapEnforcement.SHADOW : CapEnforcement.ENFORCE,
      ...limitsOf({ ...flags, ...(maxPerSpend === undefined ? { maxPerSpend: false } : { maxPerSpend }) }),
    },
    updateMask: { paths },
  });
  const output = context.output();
  if (output.json) return printJson(output, UpdateCapResponseSchema, answer);
  printCap(output, answer.cap);
  printWarnings(output, answer.warnings);
}

function printWarnings(output: Output, warnings: readonly string[]): void {
  printFields(
    output,
    warnings.map((text) => ["warning", text] as const),
  );
}

/** One cap, as every command that made or changed it shows it. */
export function printCap(output: Output, cap: Cap | undefined): void {
  if (cap === undefined) return;
  if (output.json) return printJson(output, CapSchema, cap);
  printFields(output, [
    ["cap", cap.name],
    ["limit", limitText(cap)],
    ["window", windowText(cap)],
    ["counts", scopeText(cap)],
    ["max per spend", moneyText(cap.maxPerSpend)],
    ["enforcement", wordOf(CapEnforcement, cap.enforcement).toLowerCase()],
    ["refunds", cap.refundsRestoreHeadroom ? "give headroom back" : ""],
    ["etag", cap.etag],
    ["created", timeText(cap.createTime)],
    ["archived", timeText(cap.archiveTime)],
    ["reason", cap.archiveReason],
  ]);
}

function limitText(cap: Cap): string {
  return cap.spendCountLimit === undefined ? moneyText(cap.limit) : `${cap.spendCountLimit} spends`;
}

function windowText(cap: Cap): string {
  const window = wordOf(CapWindow, cap.window).toLowerCase().replace("_", "-");
  const from = [
    cap.startHour > 0 ? `from ${cap.startHour}:00` : "",
    cap.weekStart === DayOfWeek.UNSPECIFIED ? "" : `from ${wordOf(DayOfWeek, cap.weekStart).toLowerCase()}`,
    cap.anchorDay > 1 || cap.anchorMonth > 1
      ? `from ${Math.max(1, cap.anchorMonth)}/${Math.max(1, cap.anchorDay)}`
      : "",
    cap.startTime === undefined ? "" : `${timeText(cap.startTime)} to ${timeText(cap.endTime)}`,
  ];
  return [window, ...from, cap.timeZone].filter((part) => part !== "").join(" ");
}

function scopeText(cap: Cap): string {
  const { scope } = cap;
  const parts = [
    scope?.vaultKey ?? "",
    scope?.vendor ?? "",
    scope?.endpoint ?? "",
    scope?.customerId === undefined || scope.customerId === "" ? "" : `customer ${scope.customerId}`,
    scope?.purpose === undefined || scope.purpose === "" ? "" : `for ${scope.purpose}`,
    cap.perCustomer ? "per customer" : "",
    cap.attachedOnly ? "attached keys" : "",
    cap.direction === Direction.REFUND ? "refunds" : "",
  ].filter((part) => part !== "");
  return parts.length === 0 ? "everything" : parts.join(", ");
}

function stateText(cap: Cap): string {
  if (cap.state === CapState.ARCHIVED) return "archived";
  return cap.enforcement === CapEnforcement.SHADOW ? "shadow" : "enforced";
}

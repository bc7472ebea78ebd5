import { create } from "@bufbuild/protobuf";
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import {
  CreateBillingPeriodKeyResponseSchema,
  CreateVaultKeyResponseSchema,
  ListVaultKeysResponseSchema,
  RevokeVaultKeyResponseSchema,
  RotateVaultKeyResponseSchema,
  SuspendVaultKeyResponseSchema,
  type VaultKey,
  VaultKeySchema,
  VaultKeyState,
} from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { Command } from "commander";
import { collect, collectLabel, parseCount, parseDuration, parseMoney, parseTime, resourceName } from "./arguments.ts";
import { printExposure } from "./authorizations.ts";
import { printCap } from "./caps.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { proxyPolicyText, readProxyPolicy } from "./proxy-policy.ts";
import { moneyText, type Output, printFields, printJson, printTable, timeText, wordOf } from "./output.ts";

type MoneyFlag = ReturnType<typeof parseMoney>;

interface PolicyFlags {
  readonly vendor?: string;
  readonly allow?: readonly string[];
  readonly period?: readonly string[];
  readonly purpose?: readonly string[];
  readonly customer?: readonly string[];
  readonly attach?: readonly string[];
  readonly label?: Readonly<Record<string, string>>;
  readonly maxPerSpend?: MoneyFlag | false;
  readonly expires?: Timestamp | false;
  /** A file, or "-". */
  readonly proxyPolicy?: string | false;
}

interface CreateFlags extends PolicyFlags {
  readonly dailyCap?: MoneyFlag;
  readonly zone?: string;
  readonly policy?: string;
}

interface PeriodFlags {
  readonly billingPeriod: string;
  readonly vendor: string;
  readonly allow: readonly string[];
  readonly expected: MoneyFlag;
  readonly margin?: string;
  readonly expires: Timestamp;
  readonly purpose?: readonly string[];
  readonly maxPerSpend?: MoneyFlag;
}

export function keyCommands(program: Command, context: CommandContext): void {
  const keys = program.command("keys").description("vault keys: who may spend what");
  keys
    .command("list")
    .description("every key by id")
    .option("--label <name=value>", "only keys with this label", collectLabel)
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags & { label?: Record<string, string> }) => list(context, flags));
  keys
    .command("show <key>")
    .description("one key and its policy")
    .action(async (key: string) => {
      const { vaultKey } = await context.connection().admin.getVaultKey({ name: resourceName("vaultKeys", key) });
      printKey(context.output(), vaultKey);
    });
  policyFlags(keys.command("create <key>").description("a new key; its token is shown once"))
    .option("--vendor <vendor>", 'where it may spend, for example "stripe"')
    .option("--daily-cap <money>", "a cap of its own per day", parseMoney)
    .option("--zone <zone>", "IANA zone of the daily cap; UTC by default")
    .option("--policy <file>", "all of this from a policy document, YAML or JSON")
    .action((key: string, flags: CreateFlags) => createKey(context, key, flags));
  policyFlags(keys.command("update <key>").description("another policy; what is given replaces what was"))
    .option("--no-max-per-spend", "take the limit per spend away")
    .option("--no-expires", "let it never expire")
    .option("--no-proxy-policy", "what an empty policy lets the proxy do")
    .option("--etag <etag>", "only if the key has not changed since it was read")
    .action((key: string, flags: PolicyFlags & { etag?: string }) => update(context, key, flags));
  periodCommand(keys, context);
  keys
    .command("rotate <key>")
    .description("a new token; the present one goes on to open for a while")
    .option("--overlap <time>", 'how long, for example "1h"', parseDuration)
    .action((key: string, flags: { overlap?: Duration }) => rotate(context, key, flags.overlap));
  for (const verb of ["suspend", "resume", "revoke"] as const) switchCommand(keys, context, verb);
}

function policyFlags(command: Command): Command {
  return command
    .option("--allow <endpoint>", 'an endpoint, for example "POST /v1/charges"; may be repeated', collect)
    .option("--period <period>", "a billing period it may spend in; may be repeated", collect)
    .option("--purpose <purpose>", "a purpose it may spend for; may be repeated", collect)
    .option("--customer <id>", "a customer it may spend for; may be repeated", collect)
    .option("--attach <cap>", "a cap that counts it beside those of its scope; may be repeated", collect)
    .option("--label <name=value>", "may be repeated", collectLabel)
    .option("--max-per-spend <money>", "the most that one spend may ask for", parseMoney)
    .option("--expires <time>", "when it ends", parseTime)
    .option("--proxy-policy <file>", "what the proxy lets it do, as JSON; - for standard input");
}

async function policyOf(context: CommandContext, flags: PolicyFlags) {
  const { proxyPolicy: file } = flags;
  return {
    allowedEndpoints: [...(flags.allow ?? [])],
    billingPeriods: [...(flags.period ?? [])],
    purposes: [...(flags.purpose ?? [])],
    customers: [...(flags.customer ?? [])],
    attachedCaps: (flags.attach ?? []).map((cap) => resourceName("caps", cap)),
    labels: { ...flags.label },
    ...(flags.maxPerSpend === undefined || flags.maxPerSpend === false ? {} : { maxPerSpend: flags.maxPerSpend }),
    ...(flags.expires === undefined || flags.expires === false ? {} : { expireTime: flags.expires }),
    ...(file === undefined || file === false ? {} : { proxy: await readProxyPolicy(file, context) }),
  };
}

async function list(context: CommandContext, flags: ListFlags & { label?: Record<string, string> }): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listVaultKeys({ ...page, labels: flags.label ?? {} });
    return { rows: answer.vaultKeys, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListVaultKeysResponseSchema, { vaultKeys: [...rows], nextPageToken });
    return printJson(output, ListVaultKeysResponseSchema, all);
  }
  printTable(
    output,
    [
      { title: "KEY", of: ({ name }) => name.slice("vaultKeys/".length) },
      { title: "STATE", of: (key) => wordOf(VaultKeyState, key.state).toLowerCase() },
      { title: "VENDOR", of: ({ vendor }) => vendor },
      { title: "ENDPOINTS", of: ({ allowedEndpoints }) => allowedEndpoints.join(", "), shrinks: true },
      { title: "EXPIRES", of: ({ expireTime }) => timeText(expireTime).slice(0, 10) },
      { title: "LAST USE", of: ({ lastUseTime }) => timeText(lastUseTime).slice(0, 16) },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

async function createKey(context: CommandContext, key: string, flags: CreateFlags): Promise<void> {
  const { admin } = context.connection();
  const answer = await admin.createVaultKey(await creationOf(context, key.replace(/^vaultKeys\//, ""), flags));
  const output = context.output();
  if (output.json) return printJson(output, CreateVaultKeyResponseSchema, answer);
  printKey(output, answer.vaultKey);
  for (const made of answer.caps) printCap(output, made);
  printToken(output, answer.token);
}

async function creationOf(context: CommandContext, vaultKeyId: string, flags: CreateFlags) {
  const { policy, ...others } = flags;
  if (policy !== undefined) {
    if (Object.keys(others).length > 0) {
      throw new CommandError(
        "usage",
        "--policy says everything about the key; give it alone, or only the other flags.",
      );
    }
    // Only this needs a reader of YAML.
    const { policyFileRequest } = await import("./policy-file.ts");
    return policyFileRequest(policy, vaultKeyId);
  }
  const { vendor, dailyCap, zone = "" } = flags;
  if (vendor === undefined) throw new CommandError("usage", "Give --vendor, or --policy with a policy document.");
  if (dailyCap === undefined && zone !== "") {
    throw new CommandError("usage", "--zone is the zone of --daily-cap; give both.");
  }
  const cap = { window: CapWindow.DAY, timeZone: zone };
  return {
    vaultKeyId,
    vaultKey: { vendor, ...(await policyOf(context, flags)) },
    caps: dailyCap === undefined ? [] : [{ capId: `${vaultKeyId}-daily`, cap: { ...cap, limit: dailyCap } }],
  };
}

async function update(context: CommandContext, key: string, flags: PolicyFlags & { etag?: string }): Promise<void> {
  const paths = [
    ...(flags.allow === undefined ? [] : ["allowed_endpoints"]),
    ...(flags.period === undefined ? [] : ["billing_periods"]),
    ...(flags.purpose === undefined ? [] : ["purposes"]),
    ...(flags.customer === undefined ? [] : ["customers"]),
    ...(flags.attach === undefined ? [] : ["attached_caps"]),
    ...(flags.label === undefined ? [] : ["labels"]),
    ...(flags.maxPerSpend === undefined ? [] : ["max_per_spend"]),
    ...(flags.expires === undefined ? [] : ["expire_time"]),
    ...(flags.proxyPolicy === undefined ? [] : ["proxy"]),
  ];
  if (paths.length === 0)
    throw new CommandError("usage", "Nothing to change; give --allow, --expires or another flag.");
  const { vaultKey } = await context.connection().admin.updateVaultKey({
    vaultKey: { name: resourceName("vaultKeys", key), etag: flags.etag ?? "", ...(await policyOf(context, flags)) },
    updateMask: { paths },
  });
  printKey(context.output(), vaultKey);
}

function periodCommand(keys: Command, context: CommandContext): void {
  keys
    .command("period <key>")
    .description("the key of one billing period, with its cap at the expected total and a margin")
    .requiredOption("--billing-period <period>", 'the period, for example "2026-12"')
    .requiredOption("--vendor <vendor>", "where it may spend")
    .requiredOption("--allow <endpoint>", "an endpoint; may be repeated", collect)
    .requiredOption("--expected <money>", "what the period is expected to bill in all", parseMoney)
    .option("--margin <fraction>", "how much more the cap allows; 0.10 by default")
    .requiredOption("--expires <time>", "when the period ends", parseTime)
    .option("--purpose <purpose>", "a purpose it may spend for; may be repeated", collect)
    .option("--max-per-spend <money>", "the most that one spend may ask for", parseMoney)
    .action(async (key: string, flags: PeriodFlags) => {
      const answer = await context.connection().admin.createBillingPeriodKey({
        vaultKeyId: key.replace(/^vaultKeys\//, ""),
        billingPeriod: flags.billingPeriod,
        vendor: flags.vendor,
        allowedEndpoints: [...flags.allow],
        expectedTotal: flags.expected,
        margin: flags.margin ?? "",
        expireTime: flags.expires,
        purposes: [...(flags.purpose ?? [])],
        ...(flags.maxPerSpend === undefined ? {} : { maxPerSpend: flags.maxPerSpend }),
      });
      const output = context.output();
      if (output.json) return printJson(output, CreateBillingPeriodKeyResponseSchema, answer);
      printKey(output, answer.vaultKey);
      printCap(output, answer.cap);
      printToken(output, answer.token);
    });
}

async function rotate(context: CommandContext, key: string, overlap: Duration | undefined): Promise<void> {
  const answer = await context.connection().admin.rotateVaultKey({
    name: resourceName("vaultKeys", key),
    ...(overlap === undefined ? {} : { overlap }),
  });
  const output = context.output();
  if (output.json) return printJson(output, RotateVaultKeyResponseSchema, answer);
  printKey(output, answer.vaultKey);
  printToken(output, answer.token);
}

const switches = {
  suspend: "stop it until it is resumed, and list what is open",
  resume: "let it spend again",
  revoke: "stop it for ever, and list what is open",
} as const;

function switchCommand(keys: Command, context: CommandContext, verb: keyof typeof switches): void {
  keys
    .command(`${verb} <key>`)
    .description(switches[verb])
    .requiredOption("--reason <text>", "why, for the audit")
    .action((key: string, flags: { reason: string }) => turn(context, verb, key, flags.reason));
}

/** Suspends, resumes or revokes a key. */
export async function turn(
  context: CommandContext,
  verb: keyof typeof switches,
  key: string,
  reason: string,
): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const request = { name: resourceName("vaultKeys", key), reason };
  if (verb === "resume") return printKey(output, (await admin.resumeVaultKey(request)).vaultKey);
  if (verb === "suspend") {
    const answer = await admin.suspendVaultKey(request);
    if (output.json) return printJson(output, SuspendVaultKeyResponseSchema, answer);
    printKey(output, answer.vaultKey);
    return printExposure(output, answer);
  }
  const answer = await admin.revokeVaultKey(request);
  if (output.json) return printJson(output, RevokeVaultKeyResponseSchema, answer);
  printKey(output, answer.vaultKey);
  printExposure(output, answer);
}

function printKey(output: Output, key: VaultKey | undefined): void {
  if (key === undefined) return;
  if (output.json) return printJson(output, VaultKeySchema, key);
  printFields(output, [
    ["key", key.name],
    ["state", wordOf(VaultKeyState, key.state).toLowerCase()],
    ["reason", key.reason],
    ["vendor", key.vendor],
    ["endpoints", key.allowedEndpoints.length === 0 ? "none: everything is denied" : key.allowedEndpoints.join(", ")],
    ["periods", key.billingPeriods.join(", ")],
    ["purposes", key.purposes.join(", ")],
    ["customers", key.customers.join(", ")],
    ["attached caps", key.attachedCaps.join(", ")],
    ["proxy", proxyPolicyText(key.proxy)],
    ["max per spend", moneyText(key.maxPerSpend)],
    ["expires", timeText(key.expireTime)],
    [
      "labels",
      Object.entries(key.labels)
        .map(([name, value]) => `${name}=${value}`)
        .join(", "),
    ],
    ["last use", timeText(key.lastUseTime)],
    ["old token until", timeText(key.previousSecretExpireTime)],
    ["etag", key.etag],
    ["created", timeText(key.createTime)],
    ["suspended", timeText(key.suspendTime)],
    ["revoked", timeText(key.revokeTime)],
  ]);
}

/** A token is shown once, so it stands last and alone. */
export function printToken(output: Output, token: string): void {
  if (token === "") return output.line("The token was shown before; rotate to get a new one.");
  output.line("");
  output.line("The token, shown only now:");
  output.line(token);
}

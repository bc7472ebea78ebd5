import { create } from "@bufbuild/protobuf";
import {
  ListVendorCredentialsResponseSchema,
  TestVendorCredentialResponseSchema,
  type VendorCredential,
  VendorCredentialSchema,
} from "@holdfast/api/holdfast/v1/vendor_credential_pb";
import type { Command } from "commander";
import { parseCount, resourceName } from "./arguments.ts";
import { type CommandContext, type ListFlags, listPages, printMore } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { type Output, printFields, printJson, printTable, printText, timeText } from "./output.ts";

const collection = "vendorCredentials";

export function credentialCommands(program: Command, context: CommandContext): void {
  const credentials = program.command("credentials").description("the vendors' own keys that Holdfast keeps");
  credentials
    .command("list")
    .description("by id, without the secrets")
    .option("--limit <rows>", "how many to show", parseCount, 50)
    .action((flags: ListFlags) => list(context, flags));
  credentials
    .command("create <credential>")
    .description("store one; the secret is read from standard input")
    .requiredOption("--vendor <vendor>", 'for example "stripe"')
    .action(async (vendorCredentialId: string, { vendor }: { vendor: string }) => {
      const secret = await secretFrom(context);
      const answer = await context.connection().admin.createVendorCredential({ vendorCredentialId, vendor, secret });
      printCredential(context.output(), answer.vendorCredential);
    });
  credentials
    .command("rotate <credential>")
    .description("exchange the secret for another one of the same account, read from standard input")
    .action(async (credential: string) => {
      const request = { name: resourceName(collection, credential), secret: await secretFrom(context) };
      const answer = await context.connection().admin.rotateVendorCredential(request);
      printCredential(context.output(), answer.vendorCredential);
    });
  credentials
    .command("test <credential>")
    .description("try it with one harmless read")
    .action((credential: string) => tryOut(context, credential));
  credentials
    .command("delete <credential>")
    .description("delete it and its secret")
    .requiredOption("--reason <text>", "why, for the audit")
    .action(async (credential: string, { reason }: { reason: string }) => {
      const name = resourceName(collection, credential);
      await context.connection().admin.deleteVendorCredential({ name, reason });
      context.output().line(context.output().json ? "{}" : `${name} is deleted.`);
    });
}

/** On the command line it would be seen by everybody on the machine. */
async function secretFrom(context: CommandContext): Promise<string> {
  const secret = (await context.input()).trim();
  if (secret !== "") return secret;
  throw new CommandError(
    "usage",
    "No secret on standard input; pipe it in, for example from a file or a secret store.",
  );
}

async function list(context: CommandContext, flags: ListFlags): Promise<void> {
  const { admin } = context.connection();
  const output = context.output();
  const { rows, nextPageToken } = await listPages(flags.limit, async (page) => {
    const answer = await admin.listVendorCredentials(page);
    return { rows: answer.vendorCredentials, nextPageToken: answer.nextPageToken };
  });
  if (output.json) {
    const all = create(ListVendorCredentialsResponseSchema, { vendorCredentials: [...rows], nextPageToken });
    return printJson(output, ListVendorCredentialsResponseSchema, all);
  }
  printTable(
    output,
    [
      { title: "CREDENTIAL", of: ({ name }) => name.slice(collection.length + 1) },
      { title: "VENDOR", of: ({ vendor }) => vendor },
      { title: "ACCOUNT", of: ({ vendorAccountId }) => vendorAccountId, shrinks: true },
      { title: "SECRET", of: ({ maskedSecret }) => maskedSecret },
      { title: "ACCEPTED", of: ({ lastAcceptedTime }) => timeText(lastAcceptedTime).slice(0, 16) },
    ],
    rows,
  );
  printMore(output, nextPageToken, flags.limit);
}

async function tryOut(context: CommandContext, credential: string): Promise<void> {
  const request = { name: resourceName(collection, credential) };
  const answer = await context.connection().admin.testVendorCredential(request);
  const output = context.output();
  if (output.json) printJson(output, TestVendorCredentialResponseSchema, answer);
  else printText(output, answer.message);
  if (!answer.accepted) throw new CommandError("problems", "The vendor does not accept the credential.");
}

function printCredential(output: Output, credential: VendorCredential | undefined): void {
  if (credential === undefined) return;
  if (output.json) return printJson(output, VendorCredentialSchema, credential);
  printFields(output, [
    ["credential", credential.name],
    ["vendor", credential.vendor],
    ["account", credential.vendorAccountId],
    ["secret", credential.maskedSecret],
    ["created", timeText(credential.createTime)],
    ["rotated", timeText(credential.rotateTime)],
    ["accepted", timeText(credential.lastAcceptedTime)],
    ["refused", timeText(credential.lastRefusedTime)],
  ]);
}

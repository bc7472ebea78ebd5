import { readFileSync } from "node:fs";
import { fromJsonString, toJsonString } from "@bufbuild/protobuf";
import { type ProxyPolicy, ProxyPolicySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import type { CommandContext } from "./command.ts";
import { CommandError } from "./exit-codes.ts";

/** The proxy's part of a key's policy, from a JSON file, or from standard input for "-". Throws a CommandError. */
export async function readProxyPolicy(file: string, context: CommandContext): Promise<ProxyPolicy> {
  const text = file === "-" ? await context.input() : textOf(file);
  try {
    return fromJsonString(ProxyPolicySchema, text);
  } catch (error) {
    const said = error instanceof Error ? error.message : "it cannot be read";
    const source = file === "-" ? "The standard input" : file;
    throw new CommandError("usage", `${source} is no proxy policy: ${said}`, error);
  }
}

function textOf(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    throw new CommandError("usage", `--proxy-policy names ${file}, which cannot be read.`, error);
  }
}

/** One line of JSON, as the flag takes it; empty where the key has none. */
export function proxyPolicyText(policy: ProxyPolicy | undefined): string {
  return policy === undefined ? "" : toJsonString(ProxyPolicySchema, policy, { useProtoFieldName: true });
}

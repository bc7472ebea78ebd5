import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { Command } from "commander";
import { parseTime, resourceName } from "./arguments.ts";

export interface AuditFilterFlags {
  readonly since?: Timestamp;
  readonly until?: Timestamp;
  readonly kind?: string;
  readonly actor?: string;
  readonly authorization?: string;
  readonly customer?: string;
  readonly period?: string;
  readonly purpose?: string;
  readonly key?: string;
  readonly disposition?: string;
  readonly trace?: string;
}

/** The flags that choose events; what is given must all match. */
export function withAuditFilter(command: Command): Command {
  return command
    .option("--since <time>", "from this instant on", parseTime)
    .option("--until <time>", "before this instant", parseTime)
    .option("--kind <kind>", 'for example "spend.granted", or "spend" for all of them')
    .option("--actor <name>", 'for example "vaultKeys/nightly" or "operators/root"')
    .option("--authorization <name>", "of one authorization")
    .option("--customer <id>", "of one customer")
    .option("--period <period>", "of one billing period")
    .option("--purpose <purpose>", "of one purpose")
    .option("--key <key>", "by a vault key, or about it")
    .option("--disposition <word>", 'for example "DENIED"')
    .option("--trace <id>", "of one trace");
}

export type AuditFilterRequest = ReturnType<typeof auditFilterOf>;

export function auditFilterOf(flags: AuditFilterFlags) {
  return {
    kind: flags.kind ?? "",
    actor: flags.actor ?? "",
    authorization: flags.authorization === undefined ? "" : resourceName("authorizations", flags.authorization),
    customerId: flags.customer ?? "",
    billingPeriod: flags.period ?? "",
    purpose: flags.purpose ?? "",
    vaultKey: flags.key === undefined ? "" : resourceName("vaultKeys", flags.key),
    disposition: flags.disposition ?? "",
    traceId: flags.trace ?? "",
    ...(flags.since === undefined ? {} : { startTime: flags.since }),
    ...(flags.until === undefined ? {} : { endTime: flags.until }),
  };
}

import { timestampDate } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { HealthCheckResponse_ServingStatus as ServingStatus } from "@holdfast/api/grpc/health/v1/health_pb";
import type { Command } from "commander";
import type { CommandContext } from "./command.ts";
import type { Connection } from "./connection.ts";
import { CommandError, commandErrorFrom } from "./exit-codes.ts";
import { durationText, type Output, printText } from "./output.ts";

type Verdict = "ok" | "look" | "wrong";

/** What one check has found. */
export interface Finding {
  readonly verdict: Verdict;
  /** What was looked at. */
  readonly subject: string;
  /** What was found, and what to do. */
  readonly text: string;
}

type Check = (connection: Connection) => Promise<Finding>;

export function doctorCommand(program: Command, context: CommandContext): void {
  program
    .command("doctor")
    .description("look for what is wrong, or will be soon; exit code 4 if something is")
    .action(() => examine(context));
}

const checks: readonly (readonly [subject: string, check: Check])[] = [
  ["server", serverCheck],
  ["address", addressCheck],
  ["token", tokenCheck],
  ["in doubt", doubtCheck],
  ["contradictions", contradictionCheck],
  ["kill switches", killSwitchCheck],
  ["vault keys", keyCheck],
  ["caps", capCheck],
  ["credentials", credentialCheck],
];

async function examine(context: CommandContext): Promise<void> {
  const connection = context.connection();
  const output = context.output();
  const findings: Finding[] = [];
  const tell = (finding: Finding): void => {
    findings.push(finding);
    if (!output.json) print(output, finding);
  };
  for (const [subject, check] of checks) {
    const finding = await check(connection).catch((error: unknown): Finding => {
      return { verdict: "wrong", subject, text: commandErrorFrom(error, connection.url).message };
    });
    tell(finding);
    // Without a server or a token there is nothing else to ask for.
    if (finding.verdict === "wrong" && (subject === "server" || subject === "token")) break;
  }
  // Most computers that ask a server do not reach its database, and need not load what reads it.
  const { databaseFindings } = await import("./doctor-database.ts");
  for await (const finding of databaseFindings(context.env)) tell(finding);
  if (output.json) output.line(JSON.stringify({ findings }, undefined, 2));
  const wrong = findings.filter(({ verdict }) => verdict === "wrong").length;
  if (wrong > 0) throw new CommandError("problems", `${wrong} ${wrong === 1 ? "thing is" : "things are"} wrong.`);
}

function print(output: Output, { verdict, subject, text }: Finding): void {
  printText(output, `${verdict.padEnd(5)}  ${subject}: ${text}`, 7);
}

async function serverCheck({ health, url }: Connection): Promise<Finding> {
  const subject = "server";
  const { status } = await health.check({ service: "" });
  if (status === ServingStatus.SERVING) return { verdict: "ok", subject, text: `${url} serves.` };
  const text = `${url} answers, but does not serve: it cannot reach its database, or is going down. See its log.`;
  return { verdict: "wrong", subject, text };
}

function addressCheck({ url }: Connection): Promise<Finding> {
  const { protocol, hostname } = new URL(url);
  const local = ["127.0.0.1", "localhost", "[::1]"].includes(hostname);
  if (protocol === "https:" || local) {
    return Promise.resolve({ verdict: "ok", subject: "address", text: local ? "this machine." : "encrypted." });
  }
  const text = "tokens travel in clear text; give the server a certificate, or use https.";
  return Promise.resolve({ verdict: "look", subject: "address", text });
}

async function tokenCheck({ admin }: Connection): Promise<Finding> {
  try {
    await admin.listCaps({ pageSize: 1 });
    return { verdict: "ok", subject: "token", text: "accepted." };
  } catch (error) {
    if (!(error instanceof ConnectError) || error.code !== Code.Unauthenticated) throw error;
    const text = "not accepted; set HOLDFAST_OPERATOR_TOKEN to an operator's token of this server's workspace.";
    return { verdict: "wrong", subject: "token", text };
  }
}

async function doubtCheck({ admin }: Connection): Promise<Finding> {
  const { totalCount, oldestAge } = await admin.listInDoubtAuthorizations({ pageSize: 1 });
  if (totalCount === 0n) return { verdict: "ok", subject: "in doubt", text: "nothing." };
  // After the quarantine everything that the vendor can answer is settled: what is older waits for a person.
  const verdict = (oldestAge?.seconds ?? 0n) > 26n * 3_600n ? "wrong" : "look";
  const text = `${totalCount}, the oldest for ${durationText(oldestAge)}; see holdfast in-doubt list.`;
  return { verdict, subject: "in doubt", text };
}

async function contradictionCheck({ admin }: Connection): Promise<Finding> {
  const { openCount } = await admin.listContradictions({ pageSize: 1 });
  if (openCount === 0n) return { verdict: "ok", subject: "contradictions", text: "none is open." };
  const text = `${openCount} open; see holdfast contradictions list.`;
  return { verdict: "wrong", subject: "contradictions", text };
}

async function killSwitchCheck({ admin }: Connection): Promise<Finding> {
  const { killSwitches } = await admin.listKillSwitches({ pageSize: 1 });
  if (killSwitches.length === 0) return { verdict: "ok", subject: "kill switches", text: "none is engaged." };
  return { verdict: "look", subject: "kill switches", text: "engaged; see holdfast kill list." };
}

const soonMs = 7 * 86_400_000;

async function keyCheck({ admin }: Connection): Promise<Finding> {
  const subject = "vault keys";
  const { vaultKeys } = await admin.listVaultKeys({ pageSize: 200 });
  if (vaultKeys.length === 0) return { verdict: "look", subject, text: "there is none; see holdfast keys create." };
  const now = Date.now();
  const soon = vaultKeys.filter(({ expireTime }) => {
    const left = expireTime === undefined ? Number.POSITIVE_INFINITY : timestampDate(expireTime).getTime() - now;
    return left > 0 && left < soonMs;
  });
  if (soon.length === 0) return { verdict: "ok", subject, text: "none of the first 200 expires within 7 days." };
  return { verdict: "look", subject, text: `expire within 7 days: ${soon.map(({ name }) => name).join(", ")}.` };
}

async function capCheck({ admin }: Connection): Promise<Finding> {
  const { caps } = await admin.listCaps({ pageSize: 1 });
  if (caps.length > 0) return { verdict: "ok", subject: "caps", text: "there are some." };
  return { verdict: "look", subject: "caps", text: "there is none, so nothing is limited; see holdfast caps create." };
}

async function credentialCheck({ admin }: Connection): Promise<Finding> {
  const subject = "credentials";
  const { vendorCredentials } = await admin.listVendorCredentials({ pageSize: 200 });
  const refused = vendorCredentials.filter(({ lastAcceptedTime, lastRefusedTime }) => {
    if (lastRefusedTime === undefined) return false;
    return lastAcceptedTime === undefined || timestampDate(lastRefusedTime) > timestampDate(lastAcceptedTime);
  });
  if (refused.length > 0) {
    const text = `refused by their vendor: ${refused.map(({ name }) => name).join(", ")}; see holdfast credentials rotate.`;
    return { verdict: "wrong", subject, text };
  }
  return {
    verdict: "ok",
    subject,
    text: vendorCredentials.length === 0 ? "none is stored." : "none was refused last.",
  };
}

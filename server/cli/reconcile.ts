import { randomBytes } from "node:crypto";
import { create, toJson } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import {
  type ReconciliationDifference,
  ReconciliationDifferenceKind,
  ListReconciliationDifferencesResponseSchema,
  type ReconciliationRun,
  ReconciliationRunSchema,
  ReconciliationRunState,
} from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { type Command, InvalidArgumentError } from "commander";
import { parseSeconds, parseTime } from "./arguments.ts";
import { type CommandContext, listPages } from "./command.ts";
import { CommandError } from "./exit-codes.ts";
import { moneyText, type Output, printFields, timeText, wordOf } from "./output.ts";

interface ReconcileFlags {
  readonly vendor: string;
  readonly since?: ReturnType<typeof sinceFrom>;
  readonly timeout?: number;
}

export function reconcileCommand(program: Command, context: CommandContext): void {
  program
    .command("reconcile")
    .description("compare both sides with a vendor; exit code 3 where they differ")
    .option("--vendor <vendor>", "which one", "stripe")
    .option("--since <time>", 'a length of time such as "48h", which is the default, or an instant', sinceFrom)
    .option("--timeout <time>", 'how long to wait for it, "6h" by default', parseSeconds)
    .action((flags: ReconcileFlags) => reconcile(context, flags));
}

/** An instant, or how many milliseconds ago. */
function sinceFrom(text: string) {
  if (/^[0-9]{1,9}[smhd]$/.test(text)) return { ago: parseSeconds(text) * 1000 };
  try {
    return { at: parseTime(text) };
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error;
    throw new InvalidArgumentError('Write a length of time, "90s", "15m", "48h" or "2d", or an instant with its zone.');
  }
}

const pollMs = 1_000;

async function reconcile(context: CommandContext, flags: ReconcileFlags): Promise<void> {
  // Not defaults of the flags: the help would show them as they are parsed.
  const { vendor, since = sinceFrom("48h"), timeout = parseSeconds("6h") } = flags;
  const { admin } = context.connection();
  const output = context.output();
  const startTime = "at" in since ? since.at : timestampFromMs(Date.now() - since.ago);
  const requestId = randomBytes(16).toString("hex");
  const started = await admin.startReconciliationRun({ vendor, startTime, requestId });
  const name = started.reconciliationRun?.name ?? "";
  const run = await finished(context, name, timeout);
  const { rows } = await listPages(Number.MAX_SAFE_INTEGER, async (page) => {
    const answer = await admin.listReconciliationDifferences({ parent: name, ...page });
    return { rows: answer.differences, nextPageToken: answer.nextPageToken };
  });
  if (output.json) printAsJson(output, run, rows);
  else printReport(output, run, rows);
  if (run.state === ReconciliationRunState.FAILED) throw new CommandError("refusedState", run.message);
  if (rows.length > 0)
    throw new CommandError("differences", `${rows.length} ${rows.length === 1 ? "difference" : "differences"}.`);
}

/** The run at its end. It goes on at the server, also where nobody waits for it any more. */
async function finished(context: CommandContext, name: string, timeoutSeconds: number): Promise<ReconciliationRun> {
  const { admin } = context.connection();
  let said = "";
  for (let waitedMs = 0; ; waitedMs += pollMs) {
    const { reconciliationRun: run } = await admin.getReconciliationRun({ name });
    if (run === undefined) throw new CommandError("bug", `${name} is not there.`);
    if (run.state === ReconciliationRunState.DONE || run.state === ReconciliationRunState.FAILED) return run;
    if (waitedMs >= timeoutSeconds * 1000 || context.ended()) {
      const why = run.message === "" ? "No server has taken it." : run.message;
      throw new CommandError("unavailable", `${name} is not at its end, and goes on at the server. ${why}`);
    }
    const line = `${run.message} ${run.movementCount} movements, ${run.readCount} reads`.trim();
    if (line !== said) context.progress(line);
    said = line;
    await context.wait(pollMs);
  }
}

function printReport(output: Output, run: ReconciliationRun, rows: readonly ReconciliationDifference[]): void {
  printFields(output, [
    ["run", run.name],
    ["compared", `${timeText(run.startTime)} to ${timeText(run.endTime)}`],
    ["authorizations", `${run.authorizationCount}`],
    ["movements", `${run.movementCount}`],
    ["settled", `${run.committedCount} committed, ${run.voidedCount} voided`],
    ["differences", `${run.differenceCount}`],
    ["result", run.message],
  ]);
  for (const row of rows) {
    output.line("");
    printFields(output, [
      ["difference", kindText(row.kind)],
      ["authorization", row.authorization],
      ["movement", row.vendorReference],
      ["account", row.vendorAccount],
      ["holdfast has", moneyText(row.authorizedAmount)],
      ["vendor shows", moneyText(row.vendorAmount)],
      ["what to do", row.message],
    ]);
  }
}

function kindText(kind: ReconciliationDifferenceKind): string {
  return wordOf(ReconciliationDifferenceKind, kind).toLowerCase().replaceAll("_", " ");
}

function printAsJson(output: Output, run: ReconciliationRun, differences: readonly ReconciliationDifference[]): void {
  const names = { useProtoFieldName: true };
  const list = create(ListReconciliationDifferencesResponseSchema, { differences: [...differences] });
  const all = {
    reconciliation_run: toJson(ReconciliationRunSchema, run, names),
    ...(toJson(ListReconciliationDifferencesResponseSchema, list, names) as object),
  };
  output.line(JSON.stringify(all, undefined, 2));
}

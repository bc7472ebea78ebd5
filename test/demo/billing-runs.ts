import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import type { BillingJob, BillingReport, FromBilling, ToBilling } from "./billing-job.ts";
import type { ChildProcesses } from "./child-processes.ts";

/** How one billing process ended, and what it had to say until then. */
export interface RunEnd {
  readonly kind: "killed" | "done";
  readonly report: BillingReport;
}

const timerMs = 50;

/**
 * Starts one billing process per job, waits until all are ready, and lets one timer fire them all. A process that
 * comes to its stopping point is killed with SIGKILL there. Throws if one ends in any other way than it should.
 */
export async function runBilling(processes: ChildProcesses, jobs: readonly BillingJob[]): Promise<readonly RunEnd[]> {
  const children = await Promise.all(jobs.map((job) => prepare(processes, job)));
  const ends = children.map((child) => endOf(processes, child));
  setTimeout(() => {
    for (const child of children) send(child, { kind: "go" });
  }, timerMs);
  return await Promise.all(ends);
}

async function prepare(processes: ChildProcesses, job: BillingJob): Promise<ChildProcess> {
  const child = processes.fork("billing-process.ts");
  const ready = once(child, "message");
  send(child, { kind: "prepare", job });
  const ended = once(child, "exit").then(() => {
    throw new Error(`A billing process ended before it was ready.\n${processes.stderrOf(child)}`);
  });
  await Promise.race([ready, ended]);
  ended.catch(() => {});
  return child;
}

function endOf(processes: ChildProcesses, child: ChildProcess): Promise<RunEnd> {
  return new Promise((resolve, reject) => {
    let end: RunEnd | undefined;
    child.on("message", (message: FromBilling) => {
      if (message.kind === "ready") return;
      end = { kind: message.kind === "done" ? "done" : "killed", report: message.report };
      if (end.kind === "killed") child.kill("SIGKILL");
    });
    child.once("close", (code, signal) => {
      if (end?.kind === "done" && code === 0) resolve(end);
      else if (end?.kind === "killed" && signal === "SIGKILL") resolve(end);
      else reject(new Error(`A billing process ended with ${signal ?? code}.\n${processes.stderrOf(child)}`));
    });
  });
}

function send(child: ChildProcess, message: ToBilling): void {
  // The end of a child is told by its exit, not by a message that could not be delivered.
  if (child.connected) child.send(message, () => {});
}

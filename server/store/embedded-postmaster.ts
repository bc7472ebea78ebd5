import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, openSync, readFileSync, renameSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { StartupError } from "../startup-error.ts";
import type { PostgresBinaries, RunAs } from "./embedded-binaries.ts";
import { clusterProcesses, sendSignal, stopCluster } from "./embedded-processes.ts";

/** What `postgres` needs to find its files; each is kept open so that it may lie below a folder it cannot enter. */
export interface ClusterFolders {
  readonly binaries: PostgresBinaries;
  readonly runAs: RunAs;
  readonly data: string;
  readonly dataFd: number;
  readonly socketFd: number;
  readonly logFile: string;
}

export interface Postmaster {
  readonly pid: number;
  stop(): Promise<void>;
}

export interface ClusterPlan {
  readonly folders: ClusterFolders;
  readonly clusterName: string;
  readonly settings: Readonly<Record<string, string>>;
  readonly log: (message: string) => void;
}

// As the child sees what is passed to it after its standard input, output and error.
const dataPath = "/proc/self/fd/3";
const socketPath = "/proc/self/fd/4";
const startLimitMs = 600_000;
const logFileMaxBytes = 16 * 1024 * 1024;

/** The process number and the state (`starting`, `ready`, `standby`, `stopping`) in postmaster.pid. */
export function readPostmasterPid(data: string): { readonly pid: number; readonly state: string } | undefined {
  try {
    const lines = readFileSync(join(data, "postmaster.pid"), "utf8").split("\n");
    return { pid: Number(lines[0]), state: lines[7]?.trim() ?? "" };
  } catch {
    return undefined;
  }
}

/** Creates an empty cluster in the folder that is open as `dataFd`. The C.UTF-8 locale sorts alike everywhere. */
export async function initCluster(folders: ClusterFolders, fsync: boolean): Promise<void> {
  const child = runBinary(folders, "initdb", [
    "-D",
    dataPath,
    "--username=holdfast",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    ...(fsync ? [] : ["--no-sync"]),
  ]);
  const problem = await exitOf(child);
  if (problem !== undefined) throw refusal(folders, `initdb failed (${problem})`);
}

/** Starts Postgres, waits until it accepts connections, and from then on starts it again whenever it ends. */
export async function superviseCluster(plan: ClusterPlan): Promise<Postmaster> {
  let stopping = false;
  let child = await startPostmaster(plan);
  let restarting: Promise<void> = Promise.resolve();
  // Even where the server ends by process.exit, Postgres writes its checkpoint and ends.
  const onExit = () => child.kill("SIGINT");
  process.on("exit", onExit);

  const watch = () => {
    child.once("exit", (code, signal) => {
      if (stopping) return;
      plan.log(`Postgres ended unexpectedly (${signal ?? `exit code ${code}`}); starting it again.`);
      restarting = restart();
    });
  };
  const restart = async () => {
    for (let wait = 100; !stopping; wait = Math.min(wait * 2, 5000)) {
      try {
        // Its orphaned children would keep the shared memory, and with it the new postmaster waiting.
        await stopCluster(plan.clusterName, plan.folders.runAs.uid, undefined);
        child = await startPostmaster(plan);
        plan.log("Postgres is running again.");
        watch();
        if (child.exitCode === null && child.signalCode === null) return;
      } catch (error) {
        plan.log(error instanceof Error ? error.message : String(error));
      }
      await delay(wait);
    }
  };
  watch();

  return {
    get pid() {
      return child.pid ?? 0;
    },
    stop: async () => {
      stopping = true;
      await restarting;
      process.off("exit", onExit);
      await stopPostmaster(child);
      await stopCluster(plan.clusterName, plan.folders.runAs.uid, undefined);
    },
  };
}

async function startPostmaster(plan: ClusterPlan): Promise<ChildProcess> {
  const { folders, clusterName } = plan;
  setAsideForeignPid(plan);
  const settings = { ...plan.settings, unix_socket_directories: socketPath, cluster_name: clusterName };
  const child = runBinary(folders, "postgres", [
    "-D",
    dataPath,
    ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]),
  ]);
  let problem: string | undefined;
  void exitOf(child).then((reason) => {
    problem = reason ?? "exit code 0";
  });
  const deadline = performance.now() + startLimitMs;
  while (problem === undefined && performance.now() < deadline) {
    const seen = readPostmasterPid(folders.data);
    if (seen?.pid === child.pid && ["ready", "standby"].includes(seen?.state ?? "")) return child;
    await delay(10);
  }
  await stopPostmaster(child);
  throw refusal(folders, `Postgres did not start (${problem ?? "no answer in time"})`);
}

/**
 * After a crash of the machine or the container the number in postmaster.pid may belong to an unrelated process,
 * and Postgres would refuse to start until that one ends. The file is kept where the number is unused: Postgres then
 * looks at the shared memory by itself.
 */
function setAsideForeignPid({ folders, clusterName }: ClusterPlan): void {
  const pid = readPostmasterPid(folders.data)?.pid;
  if (pid === undefined || clusterProcesses(clusterName, folders.runAs.uid).length > 0) return;
  if (statSync(`/proc/${pid}`, { throwIfNoEntry: false }) === undefined) return;
  rmSync(join(folders.data, "postmaster.pid"));
}

async function stopPostmaster(child: ChildProcess): Promise<void> {
  for (const [signal, waitMs] of [
    ["SIGINT", 10_000],
    ["SIGQUIT", 5000],
    ["SIGKILL", 5000],
  ] as const) {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    sendSignal(child.pid, signal);
    await Promise.race([ended, delay(waitMs, undefined, { ref: false })]);
  }
}

function runBinary(folders: ClusterFolders, name: string, args: readonly string[]): ChildProcess {
  const { uid, gid } = folders.runAs;
  const user = uid === process.getuid?.() ? {} : { uid, gid };
  // A file and not a pipe: Postgres may outlive this process and must still be able to log.
  const logFd = openLog(folders.logFile);
  try {
    return spawn(join(folders.binaries.folder, "bin", name), args, {
      ...user,
      cwd: "/",
      env: { PATH: "/usr/local/bin:/usr/bin:/bin", LC_ALL: "C", TZ: "UTC" },
      stdio: ["ignore", logFd, logFd, folders.dataFd, folders.socketFd],
      // In a session of its own: Ctrl-C in a terminal is for the server, which then stops Postgres last.
      detached: true,
    });
  } finally {
    closeSync(logFd);
  }
}

function openLog(file: string): number {
  const size = statSync(file, { throwIfNoEntry: false })?.size ?? 0;
  if (size > logFileMaxBytes) renameSync(file, `${file}.1`);
  return openSync(file, "a", 0o600);
}

/** Resolves when the process has ended: undefined for exit code 0, else what happened. */
function exitOf(child: ChildProcess): Promise<string | undefined> {
  return new Promise((resolve) => {
    child.once("error", (error) => {
      resolve(error.message);
    });
    child.once("exit", (code, signal) => {
      resolve(code === 0 ? undefined : (signal ?? `exit code ${code}`));
    });
  });
}

function refusal(folders: ClusterFolders, what: string): StartupError {
  const tail = readFileSync(folders.logFile, "utf8").trimEnd().split("\n").slice(-12).join("\n");
  return new StartupError(
    "embeddedPostgres",
    `${what}; see ${folders.logFile}, or set DATABASE_URL. Its last lines:\n${tail}`,
  );
}

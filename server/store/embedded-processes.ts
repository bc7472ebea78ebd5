import { readdirSync, readFileSync, statSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";

/**
 * The processes of one cluster, the postmaster and its children, found by the cluster name that Postgres shows in
 * their titles. Unlike a process number in a file this cannot mean an unrelated process, and unlike the working
 * folder of a process it can be read in a container without extra rights.
 */
export function clusterProcesses(clusterName: string, uid: number): readonly number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && isClusterProcess(name, clusterName, uid))
    .map(Number);
}

function isClusterProcess(name: string, clusterName: string, uid: number): boolean {
  try {
    if (statSync(`/proc/${name}`).uid !== uid) return false;
    const title = readFileSync(`/proc/${name}/cmdline`, "utf8");
    return title.startsWith(`postgres: ${clusterName}: `) || title.split("\0").includes(`cluster_name=${clusterName}`);
  } catch {
    return false; // It ended meanwhile.
  }
}

/**
 * Stops what an earlier server left behind. A living postmaster is asked first, so that it writes its checkpoint;
 * children without one have nothing left to save.
 */
export async function stopCluster(clusterName: string, uid: number, postmaster: number | undefined): Promise<number> {
  const found = clusterProcesses(clusterName, uid);
  const steps: readonly { readonly signal: NodeJS.Signals; readonly waitMs: number }[] = [
    { signal: "SIGINT", waitMs: 10_000 },
    { signal: "SIGQUIT", waitMs: 5000 },
    { signal: "SIGKILL", waitMs: 5000 },
  ];
  for (const { signal, waitMs } of steps) {
    const alive = clusterProcesses(clusterName, uid);
    if (alive.length === 0) return found.length;
    const parent = alive.filter((pid) => pid === postmaster);
    if (signal === "SIGINT" && parent.length === 0) continue;
    for (const pid of parent.length > 0 && signal !== "SIGKILL" ? parent : alive) sendSignal(pid, signal);
    const deadline = performance.now() + waitMs;
    while (clusterProcesses(clusterName, uid).length > 0 && performance.now() < deadline) await delay(20);
  }
  return found.length;
}

export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

import { createGrpcJsTransport } from "@holdfast/sdk/grpc-js";
import { type Cluster, startCluster, type Way } from "./cluster.ts";
import { type Load, startLoad } from "./load.ts";
import { nextVersions, type Version } from "./versions.ts";

/** Servers restarted; replaced by a version with a new migration; replaced by one whose migration takes that away. */
export const parts = ["restart", "next", "after"] as const;
export type Part = (typeof parts)[number];

export interface RehearsalOptions {
  readonly way: Way;
  /** All by default, in this order. "after" needs "next". */
  readonly parts?: readonly Part[];
  /** Spends of each kind of client between two steps. */
  readonly spends: number;
  readonly callers: number;
  /** Instead of a migration that only adds. */
  readonly expandSql?: string;
  readonly tell?: (line: string) => void;
}

export interface Step {
  readonly what: string;
  readonly how: number | NodeJS.Signals;
  readonly drainMs: number;
}

export interface Rehearsal {
  readonly steps: readonly Step[];
  readonly failures: readonly unknown[];
  readonly spent: number;
  /** What the cap counts in the end, as decimal strings. */
  readonly usage: { readonly committed: string; readonly held: string };
  /** How the first version ended that was started on the schema of a later one; undefined where it served. */
  readonly oldRefused?: string | undefined;
}

/** A day in the life of three servers, under the load of two kinds of SDK clients. Old and new serve together. */
export async function rehearse(options: RehearsalOptions): Promise<Rehearsal> {
  const [next, after] = await nextVersions(options.expandSql);
  const cluster = await startCluster(options.way);
  const { vaultKey } = cluster.policy;
  const target = `ipv4:${cluster.ports.map((port) => `127.0.0.1:${port}`).join(",")}`;
  const transport = createGrpcJsTransport({ target });
  const { callers } = options;
  const loads = [
    startLoad({ vaultKey, callers, name: "each", to: { transport } }),
    startLoad({ vaultKey, callers, name: "one", to: { baseUrl: `http://127.0.0.1:${cluster.front.port}` } }),
  ];
  try {
    const played = await play(cluster, loads, { ...options, next, after });
    await Promise.all(loads.map((load) => load.stop()));
    const spent = loads.reduce((sum, load) => sum + load.spent(), 0);
    return { ...played, failures: failuresOf(loads), spent, usage: await usageOf(cluster, loads) };
  } finally {
    await Promise.all(loads.map((load) => load.stop()));
    transport.close();
    await cluster.close();
    await Promise.all([next, after].map((version) => version.close()));
  }
}

async function play(
  cluster: Cluster,
  loads: readonly Load[],
  options: RehearsalOptions & { readonly next: Version; readonly after: Version },
): Promise<Pick<Rehearsal, "steps" | "oldRefused">> {
  const { next, after, spends, tell = () => {} } = options;
  const asked = options.parts ?? parts;
  const steps: Step[] = [];
  const more = () => Promise.all(loads.map((load) => load.more(spends)));
  const rollOut = async (what: string, version: Version | undefined): Promise<void> => {
    for (const index of cluster.ports.keys()) {
      const { how, drainMs } = await cluster.replace(index, version);
      steps.push({ what: `${what} ${index + 1}`, how, drainMs });
      tell(`${what} ${index + 1}: exit ${how} after ${Math.round(drainMs)} ms`);
      await more();
    }
  };
  await more();
  if (asked.includes("restart")) await rollOut("restart", undefined);
  if (!asked.includes("next")) return { steps };
  tell(`migrate to the next version: ${(await cluster.migrate(next)).join(", ")}`);
  await more();
  // Servers that cannot work with the schema would not be ready either.
  if (failuresOf(loads).length > 0) return { steps };
  await rollOut("replace by the next version", next);
  const oldRefused = await cluster.refusal();
  if (asked.includes("after")) {
    await cluster.migrate(after);
    await rollOut("replace by the one after", after);
  }
  return { steps, oldRefused };
}

const failuresOf = (loads: readonly Load[]): unknown[] => loads.flatMap(({ failures }) => failures);

/** A schema that the servers cannot work with has failed the calls already; then nothing can be asked either. */
async function usageOf(cluster: Cluster, loads: readonly Load[]): Promise<Rehearsal["usage"]> {
  if (failuresOf(loads).length > 0) return { committed: "", held: "" };
  return await cluster.policy.usage();
}

/** What is wrong with a rehearsal, in words; nothing where all is well. */
export function faultsOf(rehearsal: Rehearsal, drainMaxMs: number): string[] {
  const { steps, failures, spent, usage } = rehearsal;
  const faults = [
    ...failures.map((error) => `a call failed: ${error instanceof Error ? error.message : String(error)}`),
    ...steps.filter(({ how }) => how !== 0).map(({ what, how }) => `${what}: it ended with ${how}`),
    ...steps
      .filter(({ drainMs }) => drainMs > drainMaxMs)
      .map(({ what, drainMs }) => `${what}: it took ${Math.round(drainMs)} ms to stop`),
  ];
  // What a failed call has left behind is not known here.
  if (failures.length > 0) return faults;
  if (usage.committed !== `${spent}`) faults.push(`${spent} spent, ${usage.committed} committed`);
  if (usage.held !== "0") faults.push(`${usage.held} are still held`);
  if ("oldRefused" in rehearsal && rehearsal.oldRefused !== "81") {
    faults.push(`the old version on the new schema: ${rehearsal.oldRefused ?? "it serves"}`);
  }
  return faults;
}

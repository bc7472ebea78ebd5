import { createGrpcJsTransport } from "@holdfast/sdk/grpc-js";
import { type Cluster, startCluster, type Way } from "./cluster.ts";
import { type Load, startLoad } from "./load.ts";
import { nextVersions, type Version } from "./versions.ts";

export interface RehearsalOptions {
  readonly way: Way;
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
  /** How the first version ended that was started on the schema of a later one. */
  readonly oldRefused: string | undefined;
}

/**
 * A day in the life of three servers, under the load of two kinds of SDK clients: each restarted, each replaced by a
 * version with a new migration while old and new serve together, and each by one whose migration takes that away again.
 */
export async function rehearse(options: RehearsalOptions): Promise<Rehearsal> {
  const { way, callers, tell = () => {} } = options;
  const [next, after] = await nextVersions(options.expandSql);
  const cluster = await startCluster(way);
  const { vaultKey } = cluster.policy;
  const target = `ipv4:${cluster.ports.map((port) => `127.0.0.1:${port}`).join(",")}`;
  const transport = createGrpcJsTransport({ target });
  const loads = [
    startLoad({ vaultKey, callers, name: "each", to: { transport } }),
    startLoad({ vaultKey, callers, name: "one", to: { baseUrl: `http://127.0.0.1:${cluster.front.port}` } }),
  ];
  const steps: Step[] = [];
  const rollOut = async (what: string, version: Version | undefined): Promise<void> => {
    for (const index of cluster.ports.keys()) {
      const { how, drainMs } = await cluster.replace(index, version);
      steps.push({ what: `${what} ${index + 1}`, how, drainMs });
      tell(`${what} ${index + 1}: exit ${how} after ${Math.round(drainMs)} ms`);
      await more(loads, options.spends);
    }
  };
  let oldRefused: string | undefined;
  try {
    await more(loads, options.spends);
    await rollOut("restart", undefined);
    tell(`migrate to the next version: ${(await cluster.migrate(next)).join(", ")}`);
    await more(loads, options.spends);
    if (failuresOf(loads).length === 0) {
      await rollOut("replace by the next version", next);
      oldRefused = await cluster.refusal();
      await cluster.migrate(after);
      await rollOut("replace by the one after", after);
    }
    await Promise.all(loads.map((load) => load.stop()));
    return {
      steps,
      failures: failuresOf(loads),
      spent: spentOf(loads),
      usage: await usageOf(cluster, loads),
      oldRefused,
    };
  } finally {
    await Promise.all(loads.map((load) => load.stop()));
    transport.close();
    await cluster.close();
    await Promise.all([next, after].map((version) => version.close()));
  }
}

const more = (loads: readonly Load[], count: number) => Promise.all(loads.map((load) => load.more(count)));
const failuresOf = (loads: readonly Load[]): unknown[] => loads.flatMap(({ failures }) => failures);
const spentOf = (loads: readonly Load[]): number => loads.reduce((sum, { spent }) => sum + spent(), 0);

/** A schema that the servers cannot work with has failed the calls already; then nothing can be asked either. */
async function usageOf(cluster: Cluster, loads: readonly Load[]): Promise<Rehearsal["usage"]> {
  if (failuresOf(loads).length > 0) return { committed: "", held: "" };
  return await cluster.policy.usage();
}

/** What is wrong with a rehearsal, in words; nothing where all is well. */
export function faultsOf(rehearsal: Rehearsal, drainMaxMs: number): string[] {
  const { steps, failures, spent, usage, oldRefused } = rehearsal;
  return [
    ...failures.map((error) => `a call failed: ${error instanceof Error ? error.message : String(error)}`),
    ...steps.filter(({ how }) => how !== 0).map(({ what, how }) => `${what}: it ended with ${how}`),
    ...steps
      .filter(({ drainMs }) => drainMs > drainMaxMs)
      .map(({ what, drainMs }) => `${what}: it took ${Math.round(drainMs)} ms to stop`),
    ...(failures.length > 0 || usage.committed === `${spent}` ? [] : [`${spent} spent, ${usage.committed} committed`]),
    ...(failures.length > 0 || usage.held === "0" ? [] : [`${usage.held} are still held`]),
    ...(failures.length > 0 || oldRefused === "81"
      ? []
      : [`the old version on the new schema: ${oldRefused ?? "serves"}`]),
  ];
}

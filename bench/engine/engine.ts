import { resolve } from "node:path";
import type { Bench, BenchOptions, BenchResult } from "../bench.ts";
import { describeMachine } from "../machine.ts";
import { median, percentile } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { startCluster } from "./cluster.ts";
import { redisVersion } from "./redis.ts";
import {
  type Cost,
  costOf,
  type Course,
  driveAt,
  figuresOf,
  type Measured,
  measure,
  type Place,
  rateOf,
  type Started,
  startPlace,
  tuneAt,
  verify,
} from "./rounds.ts";

/** Counts of calls. A round of a slow contender is shorter, or it would take most of the time. */
const full = { rounds: 5, warmUp: 10_000, slowWarmUp: 400, fast: 4_000, slow: 250, alone: 150 };
const quick = { rounds: 1, warmUp: 40, slowWarmUp: 12, fast: 80, slow: 24, alone: 6 };
type Counts = typeof full;

/** The engine, in process, against what a team would write by hand and against Redis. */
export const engineBench: Bench = {
  about: "granting under one cap and under a thousand, against a hand-written transaction and Redis",
  gives: [
    "hot_vs_recipe_64",
    "hot_vs_recipe_256",
    "many_vs_recipe_256",
    "hot_vs_redis_256",
    "hot_vs_redis_1024",
    "many_vs_redis_256",
    "hot_vs_many",
    "three_caps_vs_one",
    "p99_64_vs_p50_1",
    "lone_vs_insert",
  ],
  async run(options) {
    const cluster = await startCluster();
    const places: Place[] = [];
    try {
      const started = { cluster, folder: cluster.folder, root: ownRoot };
      await startAll(places, started, options);
      const counts = options.quick ? quick : full;
      const machine = describeMachine(cluster.folder);
      const tuned = await warmUp(places, counts, options);
      const measured = await measure(places, coursesOf(places, counts), counts.rounds, options.progress);
      const costs = await costsOf(places, started, counts, options);
      await verify(places, ["hot", "many", "three", "small"]);
      const redis = redisVersion();
      const table = [
        machine,
        `Redis ${redis ?? "absent: there is no redis-server on PATH"}`,
        ...tuned,
        ...tableOf(measured, costs),
      ];
      return { table, ...ratiosOf(measured, redis !== undefined), against: againstOf(measured, options) };
    } finally {
      for (const { child } of places.toReversed()) await child.close();
      await cluster.close();
    }
  },
};

async function startAll(places: Place[], started: Started, options: BenchOptions): Promise<void> {
  const { profileFolder, against } = options;
  places.push(await startPlace("holdfast", "holdfast", { ...started, profileFolder }));
  if (against !== undefined) places.push(await startPlace("other", "holdfast", { ...started, root: resolve(against) }));
  for (const kind of ["recipe", "statement", "insert"]) places.push(await startPlace(kind, kind, started));
  if (redisVersion() !== undefined) places.push(await startPlace("redis", "redis", started));
}

const slow: ReadonlySet<string> = new Set(["recipe", "statement", "insert"]);

/** Compiles and caches whatever there is to, finds the best settings, and shows that a full cap refuses. */
async function warmUp(places: readonly Place[], counts: Counts, { progress }: BenchOptions): Promise<string[]> {
  const lines: string[] = [];
  for (const place of places) {
    progress(`warming up ${place.name}`);
    const isSlow = slow.has(place.name);
    const calls = isSlow ? counts.slowWarmUp : counts.warmUp;
    await driveAt(place, { load: "hot", callers: isSlow ? 16 : 256, calls });
    if (place.name === "insert") continue;
    await driveAt(place, { load: "many", callers: isSlow ? 16 : 256, calls });
    if (place.name === "holdfast" || place.name === "other") {
      await driveAt(place, { load: "three", callers: 256, calls: calls / 2 });
    }
    for (const load of ["hot", "many"] as const) {
      const text = await tuneAt(place, { load, callers: 256, calls: isSlow ? counts.slow : counts.fast });
      if (text !== undefined) lines.push(`${place.name}, ${load}: ${text}`);
    }
    await driveAt(place, { load: "small", callers: 16, calls: 40 });
  }
  return lines;
}

function coursesOf(places: readonly Place[], { fast, slow: few, alone }: Counts): readonly Course[] {
  const ours = Object.fromEntries(
    places.flatMap(({ name }) => (["holdfast", "other"].includes(name) ? [[name, fast]] : [])),
  );
  return [
    { name: "hot_64", load: "hot", callers: 64, calls: { ...ours, recipe: few } },
    { name: "hot_256", load: "hot", callers: 256, calls: { ...ours, recipe: few, statement: few, redis: fast } },
    { name: "hot_1024", load: "hot", callers: 1_024, calls: { ...ours, redis: fast } },
    {
      name: "many_256",
      load: "many",
      callers: 256,
      calls: { ...ours, recipe: 2 * few, statement: 2 * few, redis: fast },
    },
    { name: "three_256", load: "three", callers: 256, calls: ours },
    {
      name: "lone",
      load: "hot",
      callers: 1,
      calls: { ...inAll(ours, alone), recipe: few, insert: alone, redis: alone },
    },
  ];
}

function inAll(calls: Readonly<Record<string, number>>, count: number): Record<string, number> {
  return Object.fromEntries(Object.keys(calls).map((name) => [name, count]));
}

async function costsOf(
  places: readonly Place[],
  { cluster }: Started,
  counts: Counts,
  { progress }: BenchOptions,
): Promise<ReadonlyMap<string, Cost>> {
  progress("counting what a grant costs");
  const costs = new Map<string, Cost>();
  for (const place of places) {
    const isSlow = slow.has(place.name);
    const calls = isSlow ? 2 * counts.slow : counts.fast;
    costs.set(place.name, await costOf(place, cluster, { load: "hot", callers: 256, calls }));
  }
  return costs;
}

function tableOf(measured: Measured, costs: ReadonlyMap<string, Cost>): string[] {
  const lines = ["load       contender   grants/s   p50 ms   p99 ms"];
  for (const [course, of] of measured) {
    for (const [place, { rates, times }] of of) {
      lines.push(
        `${course.padEnd(11)}${place.padEnd(10)}${median(rates).toFixed(0).padStart(10)}` +
          `${percentile(times, 0.5).toFixed(2).padStart(9)}${percentile(times, 0.99).toFixed(2).padStart(9)}`,
      );
    }
  }
  lines.push(
    "",
    "per grant, 256 callers, one hot cap",
    "contender   WAL bytes   log syncs   round trips   Node CPU ms   server CPU ms",
  );
  for (const [place, { walBytes, walSyncs, roundTrips, nodeMs, serverMs }] of costs) {
    const isRedis = place === "redis";
    lines.push(
      `${place.padEnd(10)}${(isRedis ? "" : walBytes.toFixed(0)).padStart(11)}` +
        `${(isRedis ? "" : walSyncs.toFixed(4)).padStart(12)}${roundTrips.toFixed(4).padStart(14)}` +
        `${nodeMs.toFixed(3).padStart(14)}${(serverMs?.toFixed(3) ?? "absent").padStart(16)}`,
    );
  }
  return lines;
}

function ratiosOf(measured: Measured, hasRedis: boolean): Pick<BenchResult, "ratios" | "absent"> {
  const versus = (course: string, other: string): number =>
    rateOf(measured, course, "holdfast") / rateOf(measured, course, other);
  const ours = (course: string): number => rateOf(measured, course, "holdfast");
  const p50 = (place: string): number => percentile(figuresOf(measured, "lone", place).times, 0.5);
  const redis = ["hot_256", "hot_1024", "many_256"].map((course) => [redisName(course), course] as const);
  return {
    ratios: {
      hot_vs_recipe_64: versus("hot_64", "recipe"),
      hot_vs_recipe_256: versus("hot_256", "recipe"),
      many_vs_recipe_256: versus("many_256", "recipe"),
      ...(hasRedis ? Object.fromEntries(redis.map(([name, course]) => [name, versus(course, "redis")])) : {}),
      hot_vs_many: ours("hot_256") / ours("many_256"),
      three_caps_vs_one: ours("three_256") / ours("hot_256"),
      p99_64_vs_p50_1: percentile(figuresOf(measured, "hot_64", "holdfast").times, 0.99) / p50("holdfast"),
      lone_vs_insert: p50("holdfast") / p50("insert"),
    },
    absent: hasRedis ? [] : redis.map(([name]) => name),
  };
}

function redisName(course: string): string {
  return course.replace("_", "_vs_redis_");
}

/** Rates as this checkout's over the other's, and the time of a lone call as well: more is faster in all of them. */
function againstOf(measured: Measured, { against }: BenchOptions): Readonly<Record<string, number>> {
  if (against === undefined) return {};
  return Object.fromEntries(
    [...measured.keys()].map((course) => [
      course,
      rateOf(measured, course, "holdfast") / rateOf(measured, course, "other"),
    ]),
  );
}

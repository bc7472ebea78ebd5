import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Bench, BenchOptions, BenchResult } from "../bench.ts";
import { type Child, startChild } from "../child.ts";
import { oneByOne, openTarget, together } from "../load.ts";
import { describeMachine } from "../machine.ts";
import { median, percentile } from "../statistics.ts";
import { operations, type Operation } from "./operations.ts";

/** The vendor itself, a bare proxy, this checkout's server, and that of another checkout where one is named. */
type Contender = "direct" | "bare" | "holdfast" | "other";

/** Where a contender is, and the key that it takes. */
interface Place {
  readonly contender: Contender;
  readonly url: string;
  readonly token: string;
}

/** Counts of calls, per operation and contender. */
const full = { warmUp: 1_000, rounds: 5, alone: 60, together: 320 };
const quick = { warmUp: 8, rounds: 1, alone: 4, together: 16 };
const callers = 16;
const secret = "sk_test_bench0000000000000000000000";

interface Figures {
  /** Milliseconds of lone calls, all rounds. */
  readonly alone: number[];
  /** Calls per second with 16 callers, one figure per round. */
  readonly together: number[];
}

type Measured = Readonly<Record<Operation["name"], ReadonlyMap<Contender, Figures>>>;

/** Holdfast's proxy against the least that any proxy does, in front of the same vendor. */
export const proxyBench: Bench = {
  about: "Stripe's proxy against a bare reverse proxy in front of the same fast vendor",
  gives: operations.flatMap(({ name }) =>
    ["latency", "latency_p99", "throughput"].map((figure) => `proxy_${name}_${figure}`),
  ),
  async run(options) {
    const folder = await mkdtemp(join(tmpdir(), "holdfast-bench-"));
    const children: Child[] = [];
    try {
      const places = await start(folder, children, options);
      const machine = describeMachine(folder);
      const measured = await measure(places, options);
      return { table: [machine, ...tableOf(measured)], ratios: ratiosOf(measured) };
    } finally {
      for (const child of children.toReversed()) await child.close();
      await rm(folder, { recursive: true, force: true });
    }
  },
};

async function start(folder: string, children: Child[], options: BenchOptions): Promise<readonly Place[]> {
  const child = async (file: URL, given: Record<string, string>, profileFolder?: string) => {
    const started = await startChild(file, given, profileFolder);
    children.push(started);
    return started.ready;
  };
  const here = (file: string) => new URL(`./${file}`, import.meta.url);
  const { url: vendorUrl = "" } = await child(here("vendor-process.ts"), {});
  const asked = { vendorUrl, secret };
  const { url: bareUrl = "" } = await child(here("bare-process.ts"), asked);
  const places: Place[] = [
    { contender: "direct", url: vendorUrl, token: secret },
    { contender: "bare", url: bareUrl, token: "any" },
  ];
  const server = async (contender: Contender, file: URL): Promise<void> => {
    const profileFolder = contender === "holdfast" ? options.profileFolder : undefined;
    const { url = "", token = "" } = await child(file, { ...asked, folder: join(folder, contender) }, profileFolder);
    places.push({ contender, url, token });
  };
  await server("holdfast", here("holdfast-process.ts"));
  const { against } = options;
  if (against !== undefined) {
    await server("other", pathToFileURL(join(resolve(against), "bench/proxy/holdfast-process.ts")));
  }
  return places;
}

async function measure(places: readonly Place[], { quick: isQuick, progress }: BenchOptions): Promise<Measured> {
  const counts = isQuick ? quick : full;
  const measured: [Operation["name"], ReadonlyMap<Contender, Figures>][] = [];
  for (const { name, about, prepare } of operations) {
    progress(about);
    const targets = places.map((place) => ({ ...place, target: openTarget(place.url, callers) }));
    const calls = await Promise.all(
      targets.map(async ({ contender, target, token }) => {
        const figures: Figures = { alone: [], together: [] };
        return { contender, figures, call: await prepare(target, token) };
      }),
    );
    for (const { call } of calls) await together(counts.warmUp, callers, call);
    for (let round = 0; round < counts.rounds; round += 1) {
      // Nobody is always the first one after a pause.
      const at = round % calls.length;
      const turned = [...calls.slice(at), ...calls.slice(0, at)];
      for (const { figures, call } of turned) figures.alone.push(...(await oneByOne(counts.alone, call)));
      for (const { figures, call } of turned) figures.together.push(await together(counts.together, callers, call));
    }
    for (const { target } of targets) target.close();
    measured.push([name, new Map(calls.map(({ contender, figures }) => [contender, figures]))]);
  }
  return Object.fromEntries(measured) as Measured;
}

function figuresOf(measured: Measured, name: Operation["name"], contender: Contender): Figures {
  const figures = measured[name].get(contender);
  if (figures === undefined) throw new Error(`${contender} has not run ${name}`);
  return figures;
}

function tableOf(measured: Measured): string[] {
  const lines = ["operation  contender   p50 ms   p99 ms   added p50   added p99   calls/s with 16 callers"];
  for (const { name } of operations) {
    const direct = figuresOf(measured, name, "direct");
    for (const [contender, { alone, together: rates }] of measured[name]) {
      const [p50, p99] = [percentile(alone, 0.5), percentile(alone, 0.99)];
      const added = [p50 - percentile(direct.alone, 0.5), p99 - percentile(direct.alone, 0.99)];
      const [addedP50 = "", addedP99 = ""] = added.map((ms) => (contender === "direct" ? "" : ms.toFixed(2)));
      lines.push(
        `${name.padEnd(11)}${contender.padEnd(9)}${p50.toFixed(2).padStart(9)}${p99.toFixed(2).padStart(9)}` +
          `${addedP50.padStart(12)}${addedP99.padStart(12)}${Math.round(median(rates)).toString().padStart(12)}`,
      );
    }
  }
  return lines;
}

/** Latency: how many times as long as through the bare proxy. Throughput: how many times as many. */
function ratiosOf(measured: Measured): BenchResult["ratios"] {
  const ratios: [string, number][] = [];
  for (const { name } of operations) {
    const bare = figuresOf(measured, name, "bare");
    const holdfast = figuresOf(measured, name, "holdfast");
    const other = measured[name].get("other");
    ratios.push(...compared(`proxy_${name}`, holdfast, bare));
    if (other !== undefined) ratios.push(...compared(`proxy_${name}_vs_other`, holdfast, other));
  }
  return Object.fromEntries(ratios);
}

function compared(name: string, ours: Figures, theirs: Figures): [string, number][] {
  return [
    [`${name}_latency`, median(ours.alone) / median(theirs.alone)],
    [`${name}_latency_p99`, percentile(ours.alone, 0.99) / percentile(theirs.alone, 0.99)],
    [`${name}_throughput`, median(ours.together) / median(theirs.together)],
  ];
}

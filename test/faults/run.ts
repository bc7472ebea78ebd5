import { setTimeout as delay } from "node:timers/promises";
import { faultModes } from "../support/stripe-simulator/fault-spec.ts";
import { createDisturber, type Disturber, type Faults } from "./disturber.ts";
import { collect, watchCaps } from "./collect.ts";
import type { Evidence, PlannedSpend, Reconciled, SpendClass } from "./evidence.ts";
import { plainClient } from "./plant.ts";
import { randomOf } from "./random.ts";
import { stories } from "./stories.ts";
import { type Stage, Story } from "./story.ts";
import type { Plant, WorkerStart } from "./worker-call.ts";
import { startWorkers, type Workers } from "./workers.ts";
import { startWorld, type World } from "./world.ts";

export interface RunOptions {
  readonly seed: number;
  /** How many calls of billing processes, those at the end included, about. */
  readonly operations: number;
  /** Bugs of the billing processes, one each. */
  readonly plants?: readonly Plant[];
  /** Only these classes. */
  readonly only?: readonly SpendClass[];
  readonly onProgress?: (line: string) => void;
  /** No new story is begun after so many milliseconds of real time. */
  readonly timeMaxMs?: number;
  /** Ends the run, and every process of it. */
  readonly signal?: AbortSignal;
}

const processes = 3;
const storiesAtOnceMax = 40;
/** Short, so that much goes wrong. */
const rough = { timeoutMs: 8_000, vendorDeadlineMs: 2_000, holdMs: 6_000 };
const calm = { timeoutMs: 120_000, vendorDeadlineMs: 60_000, holdMs: 600_000 };

/** Lets three processes spend while everything fails, then asks once more in peace, and collects what is known. */
export async function run(options: RunOptions): Promise<Evidence> {
  const { seed, plants = [] } = options;
  const world = await startWorld(randomOf(seed, "plain vendor"));
  let workers: Workers | undefined;
  try {
    const start: WorkerStart = {
      baseUrl: `http://127.0.0.1:${world.front.port}`,
      stripePort: world.vendor.port,
      plainVendorPort: world.plainVendor.port,
      vaultKeys: world.policy,
      ...rough,
    };
    const { cacheFolder } = world;
    workers = await startWorkers({ count: processes, start, plants, cacheFolder });
    const playing = play(options, world, workers, start);
    // Once the world is closed under it, what it says does not matter any more.
    playing.catch(() => undefined);
    const { log, ...told } = await Promise.race([playing, ...abortOf(options.signal)]);
    return await collect(world, { ...told, workers, disturbances: log, ...rough });
  } finally {
    await workers?.close();
    await world.close();
  }
}

function abortOf(signal: AbortSignal | undefined): readonly Promise<never>[] {
  if (signal === undefined) return [];
  const { promise, reject } = Promise.withResolvers<never>();
  signal.addEventListener("abort", () => reject(new Error("interrupted")), { once: true });
  return [promise];
}

async function play(options: RunOptions, world: World, workers: Workers, start: WorkerStart) {
  const { seed, operations, onProgress } = options;
  const faults = createFaults(world);
  const disturber = createDisturber(world, workers, randomOf(seed, "disturbances"), faults);
  const caps = watchCaps(world);
  const stage = createStage(world, workers, disturber, faults);
  const told: Story[] = [];
  const begun = Date.now();
  const progress = setInterval(() => {
    const { length } = workers.answers;
    const seconds = Math.round((Date.now() - begun) / 1000);
    const spends = told.reduce((sum, story) => sum + story.spends.length, 0);
    onProgress?.(
      `${seconds} s: ${length} of ${operations} operations, ${spends} spends, ${disturber.log.length} disturbances`,
    );
  }, 10_000);
  try {
    const timeMaxMs = options.timeMaxMs ?? Number.POSITIVE_INFINITY;
    const isOver = (): boolean => {
      const spends = told.reduce((sum, story) => sum + story.spends.length, 0);
      return workers.answers.length + spends >= operations || Date.now() - begun >= timeMaxMs;
    };
    // A small run is not over before it has begun.
    const atOnce = Math.min(storiesAtOnceMax, Math.ceil(operations / 20));
    await Promise.all(Array.from({ length: atOnce }, () => tellStories(options, stage, told, isOver)));
    await disturber.stop();
    await settleDown(world, workers, disturber, faults, start);
    stage.isCalm = true;
    await inTurns([...told], (story) => story.end());
    await workers.flush();
    const reconciled = await reconcileInPeace(world, workers, disturber);
    return {
      reconciled,
      spends: told.flatMap((story): readonly PlannedSpend[] => story.spends),
      excesses: await caps.stop(),
      log: disturber.log,
    };
  } finally {
    clearInterval(progress);
  }
}

async function tellStories(options: RunOptions, stage: Stage, told: Story[], isOver: () => boolean): Promise<void> {
  const { seed, operations, only } = options;
  const weights = Object.fromEntries(
    Object.entries(stories).map(([name, { weight }]) => [
      name,
      only?.includes(name as SpendClass) === false ? 0 : weight,
    ]),
  ) as Record<SpendClass, number>;
  const customers = Math.ceil(operations / 30);
  while (!isOver()) {
    const name = `s${told.length + 1}`;
    const random = randomOf(seed, name);
    const story = new Story(stage, random, { name, customerId: `customer-${random.whole(1, customers)}` });
    told.push(story);
    await stories[random.weighted(weights)].tell(story);
  }
}

/** Ends every fault, and lets every hold of the rough times run out. */
async function settleDown(
  world: World,
  workers: Workers,
  disturber: Disturber,
  faults: Faults,
  start: WorkerStart,
): Promise<void> {
  world.plainVendor.calm();
  await workers.flush();
  await faults.letGo(true);
  await world.vendor.control("DELETE", "faults");
  await workers.restart({ ...start, ...calm });
  const movedMs = 20 * 60_000;
  await disturber.during("holds_run_out", () => world.advance(movedMs), { movedMs });
}

/** Looks at the vendor, twice after every quarantine: 23 h in which a key may be sent, and 25 h on the way. */
async function reconcileInPeace(world: World, workers: Workers, disturber: Disturber) {
  let steps: readonly Reconciled[] = [];
  for (const hours of [1, 50, 1]) {
    const movedMs = hours * 60 * 60_000;
    await disturber.during("quarantine_passes", () => world.advance(movedMs), { movedMs });
    steps = (await workers.reconcile(0)) ?? [];
  }
  return steps;
}

async function inTurns<Item>(items: Item[], work: (item: Item) => Promise<void>): Promise<void> {
  const next = async (): Promise<void> => {
    for (let item = items.shift(); item !== undefined; item = items.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: storiesAtOnceMax }, next));
}

function createStage(world: World, workers: Workers, disturber: Disturber, faults: Faults) {
  const stage = {
    workers: workers.count,
    plain: plainClient(world.vendor.port, undefined),
    isCalm: false,
    async ask(worker, call) {
      for (let again = 0; ; again += 1) {
        await disturber.gate();
        const answer = await workers.ask(worker, call);
        if (!stage.isCalm) disturber.passed();
        if (answer.kind !== "lost" || again === 2) return answer;
      }
    },
    async fault(random, match, isStateGuarded) {
      const mode = random.pick(faultModes);
      const get = match.path === undefined ? {} : { method: "GET", nth: random.whole(1, 4) };
      const afterMs = mode.startsWith("slow") ? { afterMs: random.whole(20, 2_500) } : {};
      const times = random.whole(1, 3);
      const body = { mode, times, match: { ...match, ...get }, ...afterMs };
      const { id } = (await world.vendor.control("POST", "faults", body)) as { readonly id: string };
      if (mode.startsWith("hold")) faults.keep(id, match.key ?? "", isStateGuarded && random.chance(0.5));
    },
    async act(path, body, about) {
      await disturber.gate();
      // What the vendor refuses has not happened.
      await disturber.during("act", () => world.vendor.control("POST", path, body).catch(() => undefined), about);
    },
  } satisfies Stage & { isCalm: boolean };
  return stage as Stage & { isCalm: boolean };
}

/** Requests that are under way for long. */
function createFaults(world: World): Faults {
  const kept = new Map<string, { readonly key: string; readonly mayStay: boolean }>();
  const release = async (id: string): Promise<void> => {
    if (kept.delete(id)) await world.vendor.control("POST", `faults/${id}/release`);
  };
  return {
    keep(id, key, mayStay) {
      kept.set(id, { key, mayStay });
      if (!mayStay) setTimeout(() => void release(id).catch(() => undefined), 300 + Math.random() * 4_000).unref();
    },
    async letGo(all) {
      for (const [id, { mayStay }] of kept) if (all || !mayStay) await release(id);
      const staying = new Set(["", ...[...kept.values()].map(({ key }) => key)]);
      // Nothing that was let go may still be on its way when time moves. What only reads may.
      while ((await world.vendor.open()).some((key) => !staying.has(key))) await delay(20);
    },
  };
}

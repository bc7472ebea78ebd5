import { setTimeout as delay } from "node:timers/promises";
import type { Disturbance } from "./evidence.ts";
import type { Random } from "./random.ts";
import type { Workers } from "./workers.ts";
import type { World } from "./world.ts";

const minute = 60_000;

/** How often each comes, and how many operations lie between two of them on average. */
const operationsBetween = 25;
const kinds = {
  kill_worker: 22,
  kill_server: 6,
  reset_connections: 24,
  freeze_connections: 3,
  garble_connections: 6,
  minutes_pass: 24,
  hours_pass: 4,
  days_pass: 4,
  reconcile: 14,
} as const;

export interface Faults {
  /** A fault that keeps requests of this key until it is let go; by itself soon, unless they may stay for days. */
  keep(id: string, key: string, mayStay: boolean): void;
  /** Lets go what must not be older than the vendor's memory; with `all`, everything. Resolves when it has arrived. */
  letGo(all: boolean): Promise<void>;
}

/** Disturbs everything, one thing after the other, whenever some operations have passed. */
export interface Disturber {
  readonly log: Disturbance[];
  /** Resolves at once, or when time has been moved. */
  gate(): Promise<void>;
  /** Told after every operation. */
  passed(): void;
  /** No more of it; resolves when the last has ended. */
  stop(): Promise<void>;
  during(kind: string, what: () => Promise<unknown>, more?: Partial<Disturbance>): Promise<void>;
}

export function createDisturber(world: World, workers: Workers, random: Random, faults: Faults): Disturber {
  const log: Disturbance[] = [];
  let due = random.whole(1, operationsBetween * 2);
  let last: Promise<void> = Promise.resolve();
  let isBusy = false;
  let stopped = false;
  let gate: Promise<void> = Promise.resolve();

  const during: Disturber["during"] = async (kind, what, more = {}) => {
    const start = Date.now();
    await what();
    log.push({ kind, start, end: Date.now(), ...more });
  };

  /** Far enough that holds run out, but no key is forgotten: may come at any moment. */
  const passMinutes = (): Promise<void> => {
    const movedMs = random.whole(1, 15) * minute;
    return during("minutes_pass", () => world.advance(movedMs), { movedMs });
  };

  /**
   * The billing processes measure with clocks of their own, which this does not move: nothing may be under way, or a
   * key would be sent again when the vendor has forgotten it, which no real clock would allow.
   */
  const passLong = async (kind: string, movedMs: number): Promise<void> => {
    const open = Promise.withResolvers<void>();
    gate = open.promise;
    try {
      while (workers.running() > 0) await delay(10);
      await workers.flush();
      await faults.letGo(random.chance(0.5));
      await during(kind, () => world.advance(movedMs), { movedMs });
    } finally {
      open.resolve();
    }
  };

  const acts: Readonly<Record<keyof typeof kinds, () => Promise<void>>> = {
    kill_worker: () => during("kill_worker", () => workers.kill(random.whole(0, workers.count - 1))),
    kill_server: () => during("kill_server", () => world.crashServer()),
    reset_connections: () => during("reset_connections", async () => world.front.reset()),
    freeze_connections: () => during("freeze_connections", async () => world.front.freeze()),
    garble_connections: () => during("garble_connections", async () => world.front.inject(Buffer.alloc(70_000, 0xff))),
    minutes_pass: passMinutes,
    hours_pass: () => passLong("hours_pass", random.whole(60, 23 * 60) * minute),
    reconcile: () => during("reconcile", () => workers.reconcile(random.whole(0, workers.count - 1))),
    days_pass: () => passLong("days_pass", random.whole(24 * 60 + 5, 80 * 60) * minute),
  };

  return {
    log,
    gate: () => gate,
    during,
    passed() {
      due -= 1;
      if (due > 0 || stopped || isBusy) return;
      due = random.whole(1, operationsBetween * 2);
      isBusy = true;
      last = acts[random.weighted(kinds)]().finally(() => {
        isBusy = false;
      });
    },
    async stop() {
      stopped = true;
      await last;
    },
  };
}

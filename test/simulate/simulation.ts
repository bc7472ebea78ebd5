import { DefectError } from "./control-plane.ts";
import { type DisturbanceName, drawDisturbance } from "./disturbance.ts";
import { createEventLoop, type EventLoop } from "./event-loop.ts";
import { Violation } from "./invariants.ts";
import { onControlledMachine } from "./machine.ts";
import type { Planted } from "./planted.ts";
import { type Chance, createChance } from "./random.ts";
import { schedule } from "./schedule.ts";
import { buildStage } from "./stage.ts";

export interface SimulationOptions {
  readonly seed: number;
  /** Disturbances that are left out, to find the fewest that show a violation. */
  readonly without?: ReadonlySet<DisturbanceName>;
  readonly planted?: Planted;
}

export interface SimulationResult {
  readonly seed: number;
  readonly hash: string;
  readonly violation: string | undefined;
  readonly trace: readonly string[];
  readonly figures: Figures;
}

export interface Figures {
  readonly messages: number;
  readonly vendorRequests: number;
  readonly grants: number;
  readonly movements: number;
  /** See `Invariants.late`. */
  readonly lateMovements: number;
  readonly simulatedMs: number;
  readonly unsettled: number;
  readonly processes: number;
}

// After the last message that may be held on the way, and after a quarantine that may begin then.
const endMs = 16 * 24 * 3_600_000;

/** One world, from a seed. Equal options give equal results, and nothing of the machine's time passes for it. */
export async function simulate(options: SimulationOptions): Promise<SimulationResult> {
  const chance = createChance(options.seed);
  const loop = createEventLoop();
  return onControlledMachine(loop, chance.fork(), () => runSimulation(options, chance, loop));
}

async function runSimulation(
  { seed, without = new Set(), planted = {} }: SimulationOptions,
  chance: Chance,
  loop: EventLoop,
): Promise<SimulationResult> {
  const stage = buildStage(chance, loop, drawDisturbance(chance.fork(), without), planted);
  schedule(stage, chance.fork());
  let violation: string | undefined;
  try {
    await loop.run(endMs, () => {
      if (stage.failure !== undefined) throw stage.failure;
      stage.invariants.check();
    });
  } catch (error) {
    if (!(error instanceof Violation) && !(error instanceof DefectError)) throw error;
    violation = error.message;
    stage.trace.add(loop.now(), `VIOLATION ${violation}`);
  }
  const { trace, vendor, invariants } = stage;
  return {
    seed,
    violation,
    hash: trace.hash(),
    trace: trace.lines(),
    figures: {
      messages: stage.network.messages(),
      vendorRequests: vendor.requests.length,
      grants: invariants.grants(),
      movements: vendor.movements.length,
      lateMovements: invariants.late(),
      simulatedMs: loop.now(),
      unsettled: stage.unsettled(),
      processes: stage.processes,
    },
  };
}

import { createChance } from "../simulate/random.ts";
import type { Cell } from "./cell.ts";
import type { Plant } from "./plant.ts";
import { playServerRound } from "./server-round.ts";
import { serverRoundsOf } from "./server-cell.ts";
import { playRound, type Played, roundsOf } from "./round.ts";
import { type CrashWorld, startCrashWorld } from "./world.ts";

export interface PlayOptions {
  /** The order of the rounds; every cell is played whatever it is. */
  readonly seed: number;
  readonly plant?: Plant;
  /** How many rounds are played at a time, each kind of them in a world of its own; one unless told. */
  readonly worlds?: number;
  readonly onRound?: (played: readonly Played[], left: number, ms: number) => void;
}

// A machine that stalls can let a call give up before it has come to its point. The cell is played again then, alone.
const triesMax = 3;

/** Plays every cell that can be, until it was struck where and when it says, and leaves nothing behind. */
export async function play(
  cells: readonly Cell[],
  { seed, plant, onRound, worlds = 1 }: PlayOptions,
): Promise<Played[]> {
  const inProcess = cells.filter(({ server }) => server === undefined);
  const inServer = cells.filter(({ server }) => server !== undefined);
  const rounds = shuffled([...roundsOf(inProcess), ...serverRoundsOf(inServer)], seed);
  const all: Played[] = [];
  const tries = new Map<Cell, number>();
  const mayTryAgain = (cell: Cell): boolean => {
    tries.set(cell, (tries.get(cell) ?? 1) + 1);
    return (tries.get(cell) ?? 0) <= triesMax;
  };
  const playSome = async (): Promise<void> => {
    const world = await startCrashWorld(plant);
    try {
      for (let round = rounds.pop(); round !== undefined; round = rounds.pop()) {
        const begun = performance.now();
        const played = await playOne(world, round);
        const again = played.filter((one) => isMissed(one) && mayTryAgain(one.cell));
        rounds.unshift(...again.map(({ cell }) => [cell]));
        onRound?.(played, rounds.length, performance.now() - begun);
        all.push(...played.filter((one) => !again.includes(one)));
      }
    } finally {
      await world.close();
    }
  };
  const ends = await Promise.allSettled(Array.from({ length: Math.min(worlds, rounds.length) }, playSome));
  for (const end of ends) if (end.status === "rejected") throw end.reason;
  return all;
}

function isMissed({ violations, missed }: Played): boolean {
  return violations.length === 0 && missed.length > 0;
}

/** A round that cannot be played to its end has shown nothing of its cells. */
async function playOne(world: CrashWorld, round: readonly Cell[]): Promise<Played[]> {
  try {
    return await (round[0]?.server === undefined ? playRound(world, round) : playServerRound(world, round));
  } catch (error) {
    const why = `the round failed: ${error instanceof Error ? error.message : String(error)}`;
    return round.map((cell) => ({ cell, violations: [], missed: [why], ending: "unknown" }));
  }
}

function shuffled<Item>(items: readonly Item[], seed: number): Item[] {
  const chance = createChance(seed);
  return items
    .map((item) => ({ item, place: chance.next() }))
    .toSorted((one, other) => one.place - other.place)
    .map(({ item }) => item);
}

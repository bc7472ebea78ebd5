import { createChance } from "../simulate/random.ts";
import type { Cell } from "./cell.ts";
import type { Plant } from "./plant.ts";
import { playServerRound } from "./server-round.ts";
import { serverRoundsOf } from "./server-cell.ts";
import { playRound, type Played, roundsOf } from "./round.ts";
import { startCrashWorld } from "./world.ts";

export interface PlayOptions {
  /** The order of the rounds; every cell is played whatever it is. */
  readonly seed: number;
  readonly plant?: Plant;
  readonly onPlayed?: (played: Played) => void;
}

/** Plays every cell that can be, and leaves nothing behind. */
export async function play(cells: readonly Cell[], { seed, plant, onPlayed }: PlayOptions): Promise<Played[]> {
  const world = await startCrashWorld(plant);
  const all: Played[] = [];
  try {
    const inProcess = cells.filter(({ server }) => server === undefined);
    const inServer = cells.filter(({ server }) => server !== undefined);
    for (const round of shuffled([...roundsOf(inProcess), ...serverRoundsOf(inServer)], seed)) {
      const isServer = round[0]?.server !== undefined;
      const played = isServer ? await playServerRound(world, round) : await playRound(world, round);
      for (const one of played) onPlayed?.(one);
      all.push(...played);
    }
    return all;
  } finally {
    await world.close();
  }
}

function shuffled<Item>(items: readonly Item[], seed: number): Item[] {
  const chance = createChance(seed);
  return items
    .map((item) => ({ item, place: chance.next() }))
    .toSorted((one, other) => one.place - other.place)
    .map(({ item }) => item);
}

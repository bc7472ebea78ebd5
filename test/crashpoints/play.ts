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

const triesMax = 2;

/** Plays every cell that can be, and leaves nothing behind. */
export async function play(
  cells: readonly Cell[],
  { seed, plant, onRound, worlds = 1 }: PlayOptions,
): Promise<Played[]> {
  const inProcess = cells.filter(({ server }) => server === undefined);
  const inServer = cells.filter(({ server }) => server !== undefined);
  const all: Played[] = [];
  let rounds = shuffled([...roundsOf(inProcess), ...serverRoundsOf(inServer)], seed);
  const playSome = async (): Promise<void> => {
    const world = await startCrashWorld(plant);
    try {
      for (let round = rounds.pop(); round !== undefined; round = rounds.pop()) {
        const begun = performance.now();
        const played = await playOne(world, round);
        onRound?.(played, rounds.length, performance.now() - begun);
        all.push(...played);
      }
    } finally {
      await world.close();
    }
  };
  const playAll = async (): Promise<void> => {
    const ends = await Promise.allSettled(Array.from({ length: Math.min(worlds, rounds.length) }, playSome));
    for (const end of ends) if (end.status === "rejected") throw end.reason;
  };
  await playAll();
  for (let tries = 1; tries <= triesMax; tries += 1) {
    const unplayed = new Set(all.filter(isUnplayed));
    if (unplayed.size === 0) break;
    // A machine under load may be too slow for the deadlines of many cells at a time: alone they have it to themselves.
    rounds = [...unplayed].map(({ cell }) => [cell]);
    all.splice(0, all.length, ...all.filter((one) => !unplayed.has(one)));
    await playAll();
  }
  return all;
}

/** What says that a cell was never set up: nothing was shown of it, neither that it is right nor that it is wrong. */
const setUp =
  /^(?:not in the state |never came to |never waited for |did not stay behind |the round failed|\S+ (?:did not end|failed))/;

const isUnplayed = ({ violations }: Played): boolean =>
  violations.length > 0 && violations.every((one) => setUp.test(one));

/** A round that cannot be played to its end has shown nothing of its cells. */
async function playOne(world: CrashWorld, round: readonly Cell[]): Promise<Played[]> {
  try {
    return await (round[0]?.server === undefined ? playRound(world, round) : playServerRound(world, round));
  } catch (error) {
    const why = `the round failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
    return round.map((cell) => ({ cell, violations: [why], ending: "unknown" }));
  }
}

function shuffled<Item>(items: readonly Item[], seed: number): Item[] {
  const chance = createChance(seed);
  return items
    .map((item) => ({ item, place: chance.next() }))
    .toSorted((one, other) => one.place - other.place)
    .map(({ item }) => item);
}

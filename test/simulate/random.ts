/** Numbers that a seed determines: mulberry32, 32 bits of state. */
export interface Chance {
  /** At least 0, below 1. */
  next(): number;
  /** A whole number of at least `min` and at most `max`. */
  between(min: number, max: number): number;
  /** A whole number, small ones as likely as large ones: for times from milliseconds to days. */
  spread(min: number, max: number): number;
  happens(probability: number): boolean;
  pick<Value>(values: readonly Value[]): Value;
  hex(digits: number): string;
  /** Another stream, so that what one part draws does not move what another draws. */
  fork(): Chance;
}

export function createChance(seed: number): Chance {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
  const between = (min: number, max: number): number => min + Math.floor(next() * (max - min + 1));
  return {
    next,
    between,
    spread: (min, max) => Math.round(min * (max / min) ** next()),
    happens: (probability) => next() < probability,
    pick: <Value>(values: readonly Value[]) => values[between(0, values.length - 1)] as Value,
    hex: (digits) => Array.from({ length: digits }, () => between(0, 15).toString(16)).join(""),
    fork: () => createChance(Math.floor(next() * 4_294_967_296)),
  };
}

/** Random choices that one number decides. */
export interface Random {
  /** At least 0, below 1. */
  next(): number;
  /** A whole number from `from` to `to`, both included. */
  whole(from: number, to: number): number;
  chance(probability: number): boolean;
  pick<Value>(values: readonly Value[]): Value;
  /** A choice by weights: `{ a: 3, b: 1 }` is "a" three times of four. */
  weighted<Name extends string>(weights: Readonly<Record<Name, number>>): Name;
}

/** The same choices for the same seed and name, whatever else was chosen in between. */
export function randomOf(seed: number, name: string): Random {
  let state = hash(`${seed} ${name}`);
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return {
    next,
    whole: (from, to) => from + Math.floor(next() * (to - from + 1)),
    chance: (probability) => next() < probability,
    pick(values) {
      const value = values[Math.floor(next() * values.length)];
      if (value === undefined) throw new Error("nothing to pick from");
      return value;
    },
    weighted(weights) {
      const entries = Object.entries<number>(weights);
      let rest = next() * entries.reduce((sum, [, weight]) => sum + weight, 0);
      for (const [name_, weight] of entries) {
        rest -= weight;
        if (rest < 0) return name_ as never;
      }
      return entries.at(-1)?.[0] as never;
    },
  };
}

function hash(text: string): number {
  let value = 2_166_136_261;
  for (const char of text) value = Math.imul(value ^ (char.codePointAt(0) ?? 0), 16_777_619);
  return value;
}

import { randomInt } from "node:crypto";
import { describe, expect, it, test } from "vitest";
import { check } from "./checker.ts";
import type { Evidence } from "./evidence.ts";
import { historyOf, tableOf, troubleList } from "./report.ts";
import { run } from "./run.ts";

// Begins nothing new after this long: on a busy machine the run is smaller, and as right.
const timeMaxMs = 20_000;

function newSeed(): number {
  const seed = randomInt(2 ** 31);
  console.log(`npm run faults -- --seed ${seed}`);
  return seed;
}

/** What differs, with the history of its spend. */
function differencesOf(evidence: Evidence): readonly string[] {
  return check(evidence).differences.map(({ spend, what }) =>
    spend === undefined ? what : `${what}\n${historyOf(evidence, spend)}`,
  );
}

test("whatever fails at random, the vendors, the books and the callers agree", async () => {
  const evidence = await run({ seed: newSeed(), operations: 300, timeMaxMs });
  console.log(`${tableOf(evidence, check(evidence))}\n${troubleList(evidence)}`);
  expect(differencesOf(evidence)).toEqual([]);
  expect(evidence.answers.length).toBeGreaterThan(50);
  expect(evidence.movements.length).toBeGreaterThan(0);
});

describe("a billing process with a bug is found out", () => {
  const few = { operations: 60, timeMaxMs, only: ["charge", "transfer", "intent"] } as const;

  it.each([
    ["second_charge", /moved \d+ times/],
    ["wrong_amount", /is committed at \d+ usd, and \w+ \d+ usd/],
  ] as const)("%s", async (plant, difference) => {
    const evidence = await run({ ...few, seed: newSeed(), plant });
    expect(differencesOf(evidence).join("\n")).toMatch(difference);
  });
});

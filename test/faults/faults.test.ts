import { randomInt } from "node:crypto";
import { expect, test } from "vitest";
import { check } from "./checker.ts";
import type { Evidence } from "./evidence.ts";
import { historyOf, tableOf, troubleList } from "./report.ts";
import { run } from "./run.ts";

// Begins nothing new after this long: on a busy machine the run is smaller, and as right.
const timeMaxMs = 15_000;

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
  const evidence = await run({ seed: newSeed(), operations: 400, timeMaxMs });
  console.log(`${tableOf(evidence, check(evidence))}\n${troubleList(evidence)}`);
  expect(differencesOf(evidence)).toEqual([]);
  expect(evidence.answers.length).toBeGreaterThan(50);
  expect(evidence.movements.length).toBeGreaterThan(0);
});

test("billing processes with bugs are found out", async () => {
  const plants = ["second_charge", "wrong_amount"] as const;
  const only = ["charge", "transfer", "intent"] as const;
  const evidence = await run({ seed: newSeed(), operations: 80, timeMaxMs, only, plants });
  const differences = differencesOf(evidence).join("\n");
  expect(differences).toMatch(/moved \d+ times/);
  expect(differences).toMatch(/is committed at \d+ usd, and \w+ \d+ usd/);
});

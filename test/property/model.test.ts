import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { explain, histories, runHistory, type Difference, type History } from "./history.ts";
import { createModel } from "./model.ts";
import { plantedBugs } from "./planted-bugs.ts";
import type { Rules } from "./model-world.ts";

const runs = 1_000;
/** Some defects show only where several rare things meet. */
const hunted = 10_000;
const length = 80;

/** The first difference that a broken model shows; null if none of the histories finds one. */
async function hunt(rules: Rules, seed: number): Promise<Difference | null> {
  for (let tried = 0; tried < hunted; tried += runs) {
    const found = await huntAmong(fc.sample(histories(length), { numRuns: runs, seed: seed + tried }), rules);
    if (found !== null) return found;
  }
  return null;
}

async function huntAmong(some: readonly History[], rules: Rules): Promise<Difference | null> {
  for (const history of some) {
    const found = await runHistory(history, createModel(history.start, rules));
    if (found !== null) return found;
  }
  return null;
}

describe("the reference model", () => {
  test("agrees with itself, adds up after every history, and every answer occurs", async () => {
    const seen = new Map<string, number>();
    const count = (name: unknown): void => void seen.set(String(name), (seen.get(String(name)) ?? 0) + 1);
    for (const history of fc.sample(histories(length), { numRuns: runs, seed: 1 })) {
      const found = await runHistory(history, createModel(history.start), {
        observe: (_command, answers) => {
          for (const answer of answers) count(answer.error ?? answer.rule ?? answer.disposition ?? answer.answer);
        },
      });
      expect(found === null ? null : explain(found)).toBeNull();
    }
    const rare = expectedAnswers.filter((name) => (seen.get(name) ?? 0) < 10);
    expect(rare, JSON.stringify([...seen])).toEqual([]);
  });

  test.each(Object.entries(plantedBugs))("catches a planted bug: %s", async (_bug, rules) => {
    expect(await hunt(rules, 2)).not.toBeNull();
  });
});

const expectedAnswers = [
  "GRANTED ALREADY_COMMITTED ALREADY_FAILED IN_PROGRESS IN_DOUBT CAP_HEADROOM MAX_PER_SPEND CURRENCY",
  "KILL_SWITCH VAULT_KEY_SUSPENDED VAULT_KEY_REVOKED VAULT_KEY_EXPIRED VENDOR ENDPOINT BILLING_PERIOD PURPOSE CUSTOMER BILLING_PERIOD_NOT_PINNED",
  "FENCING_TOKEN NOT_FOUND SPEND_MISMATCH OTHER_VAULT_KEY ATTEMPT_SUPERSEDED GENERATION_NOT_FOUND ALREADY_VOIDED",
  "COMMIT_CONTRADICTS REFERENCE_ALREADY_COMMITTED REFERENCE_BOUND_ELSEWHERE EVIDENCE_INSUFFICIENT ALREADY_BOUND STATE_NOT_ALLOWED",
  "ALREADY_EXISTS ACQUIRED HELD_BY_OTHER ALREADY_COMPLETED",
].flatMap((line) => line.split(" "));

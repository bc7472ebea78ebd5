import { generations } from "./model.ts";
import type { Counter } from "./model-cap.ts";
import { isLive, type World } from "./model-world.ts";

/**
 * What is wrong with a world, judged from its generations alone: counters that differ from a recount, a second
 * live or committed generation, a generation that follows one which was not proven void.
 */
export function recount(world: World): readonly string[] {
  const wrong: string[] = [];
  const held = new Map<Counter, bigint>();
  const committed = new Map<Counter, bigint>();
  const add = (sums: Map<Counter, bigint>, counter: Counter, amount: bigint): void => {
    sums.set(counter, (sums.get(counter) ?? 0n) + amount);
  };
  for (const one of generations(world)) {
    for (const hold of one.holds) {
      if (isLive(one)) add(held, hold.counter, hold.amount);
      if (one.committed !== null) add(committed, hold.counter, hold.counts ? 1n : one.committed - hold.returned);
      if (hold.returned > (one.committed ?? 0n)) wrong.push(`${hold.counter.name.cap}: more returned than committed`);
    }
  }
  for (const counted of world.contradictions.values()) {
    for (const [counter, amount] of counted) add(committed, counter, amount);
  }
  for (const [name, counter] of world.counters) {
    const expected = [held.get(counter) ?? 0n, committed.get(counter) ?? 0n];
    if (counter.held !== expected[0]) wrong.push(`${name}: held ${counter.held}, recounted ${expected[0]}`);
    if (counter.committed !== expected[1]) wrong.push(`${name}: committed ${counter.committed}, not ${expected[1]}`);
  }
  for (const [key, all] of world.spends) {
    all.forEach((one, i) => {
      if (one.generation !== i + 1) wrong.push(`${key}: generation ${one.generation} at place ${i + 1}`);
      if (i < all.length - 1 && one.state !== "VOIDED")
        wrong.push(`${key}: g${i + 1} is ${one.state} and was followed`);
      if ((one.state === "VOIDED") !== (one.evidence !== null)) wrong.push(`${key}: evidence without a void`);
      if ((one.state === "COMMITTED") !== (one.committed !== null)) wrong.push(`${key}: amount without a commit`);
      if (one.state === "COMMITTED" && one.reference === null) wrong.push(`${key}: committed without a reference`);
    });
  }
  return wrong;
}

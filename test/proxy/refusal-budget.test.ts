import { expect, test } from "vitest";
import { createRefusalBudget } from "../../server/proxy/refusal-budget.ts";

function budget(perSecond: number, vaultKeysMax?: number) {
  let nowMs = 0;
  const made = createRefusalBudget({
    perSecond,
    nowMs: () => nowMs,
    ...(vaultKeysMax === undefined ? {} : { vaultKeysMax }),
  });
  return {
    take: (vaultKeyId: string) => made.take(vaultKeyId),
    rest: () => made.rest(),
    advance: (ms: number) => void (nowMs += ms),
  };
}

const recorded = (suppressed: number) => ({ recorded: true, suppressed });
const dropped = { recorded: false };

test("so many refusals a second are written down, and the next one says how many were not", () => {
  const { take, advance } = budget(2);
  expect([take("a"), take("a"), take("a"), take("a")]).toEqual([recorded(0), recorded(0), dropped, dropped]);
  advance(499);
  expect(take("a")).toEqual(dropped);
  advance(1);
  expect([take("a"), take("a")]).toEqual([recorded(3), dropped]);
  advance(3_600_000);
  expect([take("a"), take("a"), take("a")]).toEqual([recorded(1), recorded(0), dropped]);
});

test("no key uses up what another one has", () => {
  const { take } = budget(1);
  expect([take("a"), take("a"), take("b")]).toEqual([recorded(0), dropped, recorded(0)]);
});

test("what was not written down is told at the end, once", () => {
  const { take, rest } = budget(1);
  for (const key of ["a", "a", "a", "b"]) take(key);
  expect([...rest()]).toEqual([["a", 2]]);
  expect([...rest()]).toEqual([]);
});

test("keys without a count are forgotten first when there are too many", () => {
  const { take, rest } = budget(1, 2);
  take("owes");
  take("owes");
  for (let n = 0; n < 100; n += 1) take(`key${n}`);
  expect([...rest()]).toEqual([["owes", 1]]);
});

test("a clock that goes back gives nothing", () => {
  const { take, advance } = budget(1);
  take("a");
  advance(-5000);
  expect(take("a")).toEqual(dropped);
});

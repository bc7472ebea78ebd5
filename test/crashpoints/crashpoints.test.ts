import { describe, expect, test } from "vitest";
import { type Cell, enumerateCells } from "./cell.ts";
import { play } from "./play.ts";
import { type Plant, plants } from "./plant.ts";
import { lineOf } from "./report.ts";
import type { Played } from "./round.ts";

const cells = enumerateCells();

/** One cell of each name. */
function named(...names: string[]): Cell[] {
  return names.map((name) => {
    const found = cells.find((cell) => cell.name === name);
    if (found === undefined) throw new Error(`There is no cell ${name}`);
    return found;
  });
}

// The rounds of a few states and actions, with every point that each of them has; `npm run crashpoints` plays all.
const selected: readonly (readonly [string, string])[] = [
  ["HELD taken over", "pause a day before"],
  ["bound", "kill after"],
  ["COMMITTED", "drop the reply"],
  ["own generation 2", "pause before"],
];

test("every point is met with every state and action, and what cannot be has its reason", () => {
  expect(new Set(cells.map(({ name }) => name)).size).toBe(cells.length);
  for (const { route } of cells) if ("impossible" in route) expect(route.impossible).not.toBe("");
});

test("a few rounds of crash points: one movement per spend, and every row agrees with the vendor", async () => {
  const some = cells.filter(({ state, action }) => selected.some(([one, other]) => one === state && other === action));
  const played = await play(some, { seed: 1 });
  const isBad = ({ violations, missed }: Played) => violations.length > 0 || missed.length > 0;
  expect(played.filter(isBad).map(lineOf)).toEqual([]);
  expect(played.length).toBe(some.filter(({ route }) => !("impossible" in route)).length);
}, 300_000);

describe("the check finds", () => {
  const shows: Readonly<Record<Plant, readonly Cell[]>> = {
    "release on expiry": named("one call / POST /v1/charges / IN_DOUBT / kill after"),
    "send again after the hold": named("reconcile after the quarantine / GET* / IN_DOUBT / kill before"),
    "void on 5xx": named("one call, no answer / ReportUnknown / HELD fresh / kill before"),
    "a new key every time": named("one call / POST /v1/charges / HELD fresh / kill after"),
  };
  test.each(plants)(
    "%s",
    async (plant) => {
      const [played] = await play(shows[plant], { seed: 1, plant });
      expect(played?.violations.join("\n")).toMatch(/moved/);
    },
    120_000,
  );
});

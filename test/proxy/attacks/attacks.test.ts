import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { AttackRow } from "./attack-row.ts";
import { type AttackWorld, raw, startAttackWorld } from "./attack-world.ts";
import { bodyRows } from "./body-rows.ts";
import { headRows } from "./head-rows.ts";
import { walkRows } from "./walk-rows.ts";

// Raw bytes on a socket, to a whole server, before a vendor to whom every connection and every byte is counted.

const rows = [...headRows, ...bodyRows, ...walkRows].toSorted((one, other) => one.id.localeCompare(other.id));

let world: AttackWorld;

beforeAll(async () => {
  world = await startAttackWorld();
});

afterAll(async () => {
  await world.close();
});

/** Of one key at most ten refusals are written down in a second. */
const shotsPerKey = 9;

test.each(rows.map((row) => [row.id, row.what, row] as const))("%s %s", async (id, _, row) => {
  if ("walk" in row) {
    expect(await row.walk(world, id.toLowerCase())).toBe(row.outcome);
    return;
  }
  const before = [world.way.connections(), world.way.sent().length, world.charges()];
  const answers: string[] = [];
  for (let from = 0; from < row.shots.length; from += shotsPerKey) {
    const shots = row.shots.slice(from, from + shotsPerKey);
    const name = `${id.toLowerCase()}x${from}`;
    const token = await world.attacker(name, row.policy);
    for (const { bytes } of shots) answers.push(await world.shoot(token, bytes));
    const events = shots.reduce((sum, one) => sum + one.events, 0);
    // Whoever has gone may not have been written down yet.
    await expect.poll(() => world.eventsOf(name)).toBe(events);
  }
  expect(answers).toEqual(row.shots.map(({ answer }) => answer));
  expect(world.way.sent().slice(before[1])).toBe("");
  expect([world.way.connections(), world.way.sent().length, world.charges()]).toEqual(before);
});

test("what the rows change is all that keeps their requests from being served", async () => {
  const token = await world.attacker("plain");
  expect(await world.shoot(token, raw())).toBe("200");
});

test("every row has its own kind, and the page lists what is answered to each", async () => {
  const numbers = new Set(rows.map(({ id }) => Number(id.slice(1))));
  expect([...numbers]).toEqual(Array.from({ length: 45 }, (_, at) => at + 1));
  await expect(pageOf(rows)).toMatchFileSnapshot(join(import.meta.dirname, "../../../docs/proxy-attacks.md"));
});

function pageOf(all: readonly AttackRow[]): string {
  const lines = all.map((row) => {
    if ("walk" in row) return `| ${row.id} | ${row.what} | ${row.outcome} | |`;
    const answers = [...new Set(row.shots.map(({ answer }) => answer))].join(", ");
    const events = [...new Set(row.shots.map((shot) => `${shot.events}`))].toSorted().join(" or ");
    return `| ${row.id} | ${row.what} | ${answers} | ${events} |`;
  });
  return `# What the Stripe proxy answers to attacks

Each row is bytes that are sent over a socket to a whole server, before a vendor to whom every connection and every byte
is counted: \`test/proxy/attacks/attacks.test.ts\` sends them, and checks the status, the code, that nothing went to the
vendor, and how many events the audit has of each. The test is named as the row is. This page is written by it: run
\`npx vitest run test/proxy/attacks -u\` after a change.

"0" events: the request could not be read so far that it is anybody's, or it names two keys. Without events stand
attacks in several steps, and those that are served without their poison.

| row | what is tried | answer | events |
|---|---|---|---|
${lines.join("\n")}
`;
}

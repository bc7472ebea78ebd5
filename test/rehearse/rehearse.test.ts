import { expect, test, vi } from "vitest";
import { missingPgBouncer } from "../support/pgbouncer.ts";
import { faultsOf, rehearse } from "./rehearse.ts";
import { contractTooEarly } from "./versions.ts";

// A share of `npm run rehearse`, which also judges how long a server takes to stop: on a machine that does nothing else.
const anyTime = Number.POSITIVE_INFINITY;
// Starts of up to seven servers; a guard against hanging only.
vi.setConfig({ testTimeout: 900_000 });

test("a rollout with a migration, old and new servers together, fails no call of the SDK and loses none", async () => {
  const rehearsal = await rehearse({ way: "direct", spends: 10, callers: 3, parts: ["next"] });
  expect(faultsOf(rehearsal, anyTime)).toEqual([]);
  expect(rehearsal).toMatchObject({ oldRefused: "81" });
  expect(rehearsal.steps).toHaveLength(3);
  expect(rehearsal.spent).toBeGreaterThanOrEqual(100);
});

const title = "a rolling restart behind PgBouncer in transaction mode fails no call of the SDK";
test.skipIf(missingPgBouncer !== undefined)(
  missingPgBouncer === undefined ? title : `${title} (skipped: ${missingPgBouncer})`,
  async () => {
    const rehearsal = await rehearse({ way: "PgBouncer", spends: 10, callers: 3, parts: ["restart"] });
    expect(faultsOf(rehearsal, anyTime)).toEqual([]);
    expect(rehearsal.steps).toHaveLength(3);
  },
);

test("a migration that takes away what running servers need is found out", async () => {
  const options = { way: "direct", spends: 5, callers: 2, parts: ["next"] } as const;
  const rehearsal = await rehearse({ ...options, expandSql: contractTooEarly });
  expect(faultsOf(rehearsal, anyTime).join("\n")).toContain("a call failed");
});

test("what a rehearsal has found wrong is told", () => {
  const good = { steps: [], failures: [], spent: 3, usage: { committed: "3", held: "0" }, oldRefused: "81" };
  const step = { what: "restart 1", how: 0, drainMs: 20 };
  expect(faultsOf({ ...good, steps: [step] }, 30)).toEqual([]);
  expect(faultsOf({ ...good, steps: [step, { ...step, how: "SIGKILL" }] }, 10)).toEqual([
    "restart 1: it ended with SIGKILL",
    "restart 1: it took 20 ms to stop",
    "restart 1: it took 20 ms to stop",
  ]);
  expect(faultsOf({ ...good, usage: { committed: "2", held: "1" }, oldRefused: undefined }, 10)).toEqual([
    "3 spent, 2 committed",
    "1 are still held",
    "the old version on the new schema: it serves",
  ]);
});

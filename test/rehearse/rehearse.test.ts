import { expect, test } from "vitest";
import { missingPgBouncer } from "../support/pgbouncer.ts";
import { faultsOf, rehearse } from "./rehearse.ts";
import { contractTooEarly } from "./versions.ts";

// How long a server takes to stop is judged by `npm run rehearse`, on a machine that does nothing else.
const anyTime = Number.POSITIVE_INFINITY;

const ways = [
  { way: "direct", skipped: undefined },
  { way: "PgBouncer", skipped: missingPgBouncer },
] as const;

for (const { way, skipped } of ways) {
  const title = `${way}: restarts and two rollouts with migrations under the SDK's load fail no call`;
  test.skipIf(skipped !== undefined)(skipped === undefined ? title : `${title} (skipped: ${skipped})`, async () => {
    const rehearsal = await rehearse({ way, spends: 10, callers: 3 });
    expect(faultsOf(rehearsal, anyTime)).toEqual([]);
    expect(rehearsal.steps).toHaveLength(9);
    expect(rehearsal.spent).toBeGreaterThan(200);
  });
}

test("a migration that takes away what running servers need is found out", async () => {
  const rehearsal = await rehearse({ way: "direct", spends: 5, callers: 2, expandSql: contractTooEarly });
  expect(faultsOf(rehearsal, anyTime).join("\n")).toContain("a call failed");
});

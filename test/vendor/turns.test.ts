import { randomBytes } from "node:crypto";
import { systemClock, systemRandom, systemTimers } from "@holdfast/sdk/stripe-vendor";
import { ReconciliationRunState } from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { expect, test } from "vitest";
import { createCredentialCipher } from "../../server/store/credential-cipher.ts";
import { reconcileVendor } from "../../server/vendor/reconcile-pass.ts";
import { createStripeClient } from "../../server/vendor/stripe-client.ts";
import { createTurns } from "../../server/vendor/turns.ts";
import { credentialKey, startVendorWorld } from "./world.ts";

/** Jobs that go on until they are told to give way, or are ended by the test. */
function endless(max: number) {
  const started: string[] = [];
  const under = new Map<string, { readonly yields: () => boolean; readonly end: () => void }>();
  const turns = createTurns<string>({
    max,
    keyOf: (job) => job,
    run: (job, yields) =>
      new Promise((resolve) => {
        started.push(job);
        const end = () => {
          under.delete(job);
          resolve();
        };
        under.set(job, { yields, end });
      }),
  });
  /** A step of everything that is under way: who is told to give way ends. */
  const step = async () => {
    for (const { yields, end } of under.values()) if (yields()) end();
    await new Promise((resolve) => setImmediate(resolve));
  };
  return { turns, started, under, step };
}

test("four that never end give way to every other one, in turn", async () => {
  const { turns, started, under, step } = endless(4);
  const all = ["a", "b", "c", "d", "e", "f"];
  turns.offer(all);
  expect(started).toEqual(["a", "b", "c", "d"]);
  for (let rounds = 0; rounds < 12; rounds += 1) {
    await step();
    turns.offer(all);
  }
  for (const job of all) expect(started.filter((one) => one === job).length).toBeGreaterThanOrEqual(4);
  expect(under.size).toBe(4);
});

test("nobody gives way where nobody waits, and one that is not offered any more has lost its place", async () => {
  const { turns, started, under, step } = endless(2);
  turns.offer(["a", "b"]);
  turns.offer(["a", "b"]);
  await step();
  expect(under.size).toBe(2);
  turns.offer(["a", "b", "c"]);
  turns.offer(["a", "b"]);
  await step();
  expect(started).toEqual(["a", "b"]);
});

test("a turn ends after a step of a comparison where others wait, and the next one goes on there", async () => {
  const world = await startVendorWorld({ config: { reconcileIntervalMs: 86_400_000 } });
  const client = createStripeClient({ origin: world.simulator.url });
  try {
    await world.store();
    const { reconciliationRun } = await world.server.admin.startReconciliationRun({ vendor: "stripe" });
    const name = reconciliationRun?.name ?? "";
    const turn = async () => {
      const settings = {
        database: world.server.database.pool,
        commits: { submit: () => Promise.reject(new Error("nothing is to be committed")) } as never,
        client,
        cipher: createCredentialCipher({ current: credentialKey, previous: undefined }, randomBytes),
        runtime: { clock: systemClock(), timers: systemTimers, random: systemRandom },
        readsPerAuthorization: 10,
        figures: { read: () => undefined, settled: () => undefined },
        signal: new AbortController().signal,
        yields: () => true,
      };
      await reconcileVendor(settings, "default", "stripe", async () => {});
      return (await world.server.admin.getReconciliationRun({ name })).reconciliationRun?.state;
    };
    expect(await turn()).toBe(ReconciliationRunState.RUNNING);
    let turns = 1;
    while ((await turn()) === ReconciliationRunState.RUNNING && turns < 50) turns += 1;
    expect(turns).toBeGreaterThan(5);
    expect(await turn()).toBe(ReconciliationRunState.DONE);
  } finally {
    client.close();
    await world.close();
  }
});

import { SpendInDoubtError, stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

/** Everything a reconciler can find: a charge by its event, a charge that is bound, and an object that has ended. */
async function makeDoubts(round: string): Promise<string[]> {
  const one = `${round}-one-call`;
  const two = `${round}-two-step`;
  const ended = `${round}-ended`;
  const key = (customerId: string) => stableKey(customerId, billingPeriod, purpose);
  till.simulator.fault({ mode: "html_502_after", match: { key: key(one) }, times: 100 });
  // The charge exists, and nobody can read it: neither the answer nor the object.
  till.simulator.fault({ mode: "html_502_after", match: { key: `${key(two)}-confirm-1` }, times: 100 });
  till.simulator.fault({ mode: "html_502", match: { key: `${key(ended)}-confirm-1` }, times: 100 });
  till.simulator.fault({ mode: "html_502", match: { method: "GET" }, times: 100 });
  expect(await rejection(till.clerk().charge(one, "one_call"))).toBeInstanceOf(SpendInDoubtError);
  expect(await rejection(till.clerk().charge(two))).toBeInstanceOf(SpendInDoubtError);
  expect(await rejection(till.clerk().charge(ended))).toBeInstanceOf(SpendInDoubtError);
  till.simulator.clearFaults();
  const bound = (await till.generations(ended))[0]?.vendor_reference ?? "";
  await till.clerk().plain.paymentIntents.cancel(bound);
  return [one, two, ended];
}

async function states(customers: readonly string[]): Promise<string[]> {
  return Promise.all(customers.map((customerId) => till.state(customerId)));
}

/** How often each kind of end is written down for a customer. */
async function ends(customers: readonly string[]): Promise<number[]> {
  const kinds = new Set(["spend.committed", "spend.voided"]);
  const all = await Promise.all(customers.map((customerId) => till.events(customerId)));
  return all.map((events) => events.filter(({ kind }) => kinds.has(kind)).length);
}

test("a reconciler that ends at any step, and another one after it, settle everything once", async () => {
  const before = await till.usage();
  const all: string[] = [];
  let stopped = true;
  // Ended before or after its n-th call of the control plane, until a run comes to its own end.
  for (let step = 1; stopped; step += 1) {
    const customers = await makeDoubts(`step-${step}`);
    all.push(...customers);
    stopped = await runUntil(step);
    const { complete } = await till.clerk().reconcile();
    expect(complete).toBe(true);
    expect(await states(customers)).toEqual(["COMMITTED", "COMMITTED", "VOIDED"]);
  }
  // The list, and the end of each of the three, before and after.
  expect(all.length).toBeGreaterThanOrEqual(3 * 8);
  expect(await ends(all)).toEqual(all.map(() => 1));
  const rounds = all.length / 3;
  expect(await till.usage()).toEqual({ ...before, committed: before.committed + 2 * rounds * amount });
  for (const customerId of all) expect(till.charges(customerId).length).toBeLessThanOrEqual(1);
}, 120_000);

/** Runs a reconciler that does nothing any more from its n-th point on, as a killed one. False if it had fewer. */
async function runUntil(step: number): Promise<boolean> {
  let points = 0;
  const ended = Promise.withResolvers<boolean>();
  const never = new Promise<void>(() => undefined);
  const { reconcile } = till.clerk({
    observe: () => {
      points += 1;
      if (points < step) return Promise.resolve();
      ended.resolve(true);
      return never;
    },
  });
  void reconcile().then(
    () => ended.resolve(false),
    () => ended.resolve(false),
  );
  return ended.promise;
}

test("four reconcilers at once settle everything once", async () => {
  const before = await till.usage();
  const customers = [...(await makeDoubts("many-1")), ...(await makeDoubts("many-2"))];
  const reports = await Promise.all(Array.from({ length: 4 }, () => till.clerk().reconcile()));
  expect(reports.map(({ complete }) => complete)).toEqual([true, true, true, true]);
  expect(reports.flatMap(({ steps }) => steps).filter(({ outcome }) => outcome === "contradiction")).toEqual([]);
  expect(await states(customers)).toEqual([1, 2].flatMap(() => ["COMMITTED", "COMMITTED", "VOIDED"]));
  expect(await ends(customers)).toEqual(customers.map(() => 1));
  expect(await till.usage()).toEqual({ ...before, committed: before.committed + 4 * amount });
});

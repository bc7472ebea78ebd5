import { stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "./billing-call.ts";
import { createVirtualTime } from "../support/virtual-time.ts";
import { amount, type Desk, openDesk } from "./desk.ts";

let desk: Desk;
beforeAll(async () => {
  desk = await openDesk();
});
afterAll(async () => {
  await desk.close();
});

const kinds: readonly BillingKind[] = ["two_step", "one_call"];

test.each(kinds)("two concurrent calls for one spend (%s): two attempts, one grant, one charge", async (kind) => {
  const customerId = `concurrent-${kind}`;
  const before = await desk.usage();
  const { charge } = desk.client(desk.call(customerId, { kind }));
  const [first, second] = await Promise.all([charge(), charge()]);
  const [movement, ...others] = desk.charges(customerId);
  expect(others).toEqual([]);
  const object = movement?.payment_intent ?? movement?.id;
  expect(first).toMatchObject({ ok: object, status: "succeeded" });
  expect(second).toMatchObject({ ok: object, status: "succeeded" });
  const events = await desk.events(customerId);
  const asked = events.filter(({ disposition }) => disposition !== null);
  expect(new Set(asked.map(({ attempt_id }) => attempt_id)).size).toBe(2);
  expect(asked.filter(({ disposition }) => disposition === "GRANTED")).toHaveLength(1);
  expect(events.filter(({ kind: what }) => what === "spend.granted")).toHaveLength(1);
  expect(await desk.usage()).toEqual({ ...before, committed: before.committed + amount });
});

test.each(kinds)("a closure that timed out and is retried (%s) continues the same spend", async (kind) => {
  const customerId = `retried-${kind}`;
  const key = stableKey(customerId, billingPeriod, purpose);
  const suffix = kind === "two_step" ? "-confirm-1" : "";
  const fault = desk.simulator.fault({ mode: "hold_in_transit", match: { key: `${key}${suffix}` } });
  const outcomes: unknown[] = [];
  // What a retry operator does: it runs the whole closure again, with a client that knows nothing of the first time.
  const closure = async () => {
    if (outcomes.length > 0) return await desk.client(desk.call(customerId, { kind })).charge();
    const time = createVirtualTime();
    const call = desk.call(customerId, { kind });
    const outcome = desk.client(call, undefined, time).charge();
    await fault.arrivals();
    // The vendor's deadline is over at once, without time to send again.
    time.jump(call.vendorDeadlineMs);
    await time.advance(0);
    return await outcome;
  };
  for (let tries = 0; tries < 3; tries += 1) {
    const outcome = await closure();
    outcomes.push(outcome);
    if ("ok" in outcome) break;
  }
  // The first request arrives at the vendor only now.
  fault.release();
  await expect
    .poll(() => desk.simulator.requests().filter((one) => one.fault === "hold_in_transit" && one.status === null))
    .toEqual([]);
  const [movement, ...others] = desk.charges(customerId);
  expect(others).toEqual([]);
  expect(outcomes).toMatchObject([
    { error: "SpendInDoubtError" },
    { ok: movement?.payment_intent ?? movement?.id, status: "succeeded" },
  ]);
  const events = await desk.events(customerId);
  expect(events.map(({ kind: what }) => what)).toEqual(
    expect.arrayContaining(["spend.granted", "spend.in_doubt", "spend.taken_over", "spend.committed"]),
  );
  expect(await desk.generations(customerId)).toMatchObject([{ state: "COMMITTED" }]);
});

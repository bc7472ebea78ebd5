import { Code } from "@connectrpc/connect";
import { type HeldBillingLease, LeaseLostError } from "@holdfast/sdk";
import type { AuthorizeSpendRequest } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, rejection, SPEND, startWorld, type World } from "./setup.ts";

const JOB = { lease: "nightly-billing", billingPeriod: "2026-11" };

let world: World;
beforeEach(async () => {
  world = await startWorld({ time: "stands" });
});
afterEach(() => world.close());

const TTL_MS = 30_000;

describe("a billing lease", () => {
  it("is held by one at a time, and not getting it is an answer", async () => {
    const result = await world.holdfast().withBillingLease(JOB, async (lease) => {
      const other = await world.holdfast().withBillingLease(JOB, () => Promise.reject(new Error("ran twice")));
      expect(other).toMatchObject({ acquired: false, answer: "held_by_other", holderId: lease.holderId });
      expect(other.acquired ? 0 : other.remainingMs).toBeGreaterThan(20_000);
      return "done";
    });
    expect(result).toEqual({ acquired: true, value: "done", outcome: "completed", unsettled: [] });
  });

  it("closes the period for ever when the job is complete", async () => {
    await world.holdfast().withBillingLease(JOB, async () => undefined);
    const again = await world.holdfast().withBillingLease(JOB, async () => undefined);
    expect(again).toMatchObject({ acquired: false, answer: "already_completed" });
    const next = await world.holdfast().withBillingLease({ ...JOB, billingPeriod: "2026-12" }, async () => undefined);
    expect(next.acquired).toBe(true);
  });

  it("is free for the next run when the job threw or says that something is left", async () => {
    const error = new Error("one customer failed");
    expect(await rejection(world.holdfast().withBillingLease(JOB, () => Promise.reject(error)))).toBe(error);
    const left = await world.holdfast().withBillingLease(JOB, async (lease) => lease.incomplete());
    expect(left).toMatchObject({ acquired: true, outcome: "incomplete" });
    const tokens: bigint[] = [];
    const done = await world.holdfast().withBillingLease(JOB, async (lease) => void tokens.push(lease.fencingToken));
    expect(done).toMatchObject({ outcome: "completed" });
    expect(tokens).toEqual([3n]);
  });

  it("is renewed while the job runs longer than its time", async () => {
    const result = await world.holdfast().withBillingLease({ ...JOB, ttlMs: TTL_MS }, async (lease) => {
      await world.time.advance(2.5 * TTL_MS);
      lease.assertHeld();
      return lease.signal.aborted;
    });
    expect(result).toMatchObject({ value: false, outcome: "completed" });
    expect(world.plane.names().filter((rpc) => rpc === "renewLease").length).toBeGreaterThanOrEqual(7);
  });

  it("fences every spend made inside it", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    await holdfast.withBillingLease(JOB, async (lease) => {
      await stripe.charges.create({ ...CHARGE }, { spend: SPEND });
      const request = world.plane.calls.find(({ rpc }) => rpc === "authorize")?.request as AuthorizeSpendRequest;
      expect(request.leaseFence).toMatchObject({ ...JOB, holderId: lease.holderId, fencingToken: 1n });
    });
    await stripe.charges.create({ ...CHARGE }, { spend: { ...SPEND, purpose: "later" } });
    const last = world.plane.calls.findLast(({ rpc }) => rpc === "authorize")?.request as AuthorizeSpendRequest;
    expect(last.leaseFence).toBeUndefined();
  });
});

describe("a billing lease that cannot be renewed", () => {
  it("aborts its signal before its time is over, and refuses spends from then on without asking", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "renewLease") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    const started = world.time.now();
    const result = await holdfast.withBillingLease({ ...JOB, ttlMs: TTL_MS }, async (lease) => {
      let abortedAt = Number.POSITIVE_INFINITY;
      lease.signal.addEventListener("abort", () => {
        abortedAt = world.time.now();
      });
      await world.time.advance(TTL_MS - 1);
      expect(abortedAt - started).toBeLessThan(TTL_MS);
      expect(lease.signal.reason).toBeInstanceOf(LeaseLostError);
      expect(await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }))).toBeInstanceOf(LeaseLostError);
    });
    expect(result).toMatchObject({ acquired: true, outcome: "lost" });
    expect(world.plane.names()).not.toContain("authorize");
    expect(world.plane.names()).not.toContain("releaseLease");
    expect(world.simulator.requests()).toEqual([]);
  });

  it("is lost as soon as the server says so", async () => {
    await world.holdfast().withBillingLease({ ...JOB, ttlMs: TTL_MS }, async (lease) => {
      world.plane.advance(TTL_MS);
      const { signal } = lease;
      await world.time.advance(TTL_MS / 2);
      // Before this process itself would have stopped to trust it.
      expect(signal.aborted).toBe(true);
      expect(() => lease.assertHeld()).toThrow(LeaseLostError);
    });
  });

  it("is lost for a process that was stopped, before any timer fires", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    await holdfast.withBillingLease(JOB, async (lease: HeldBillingLease) => {
      lease.assertHeld();
      world.time.jump(2 * TTL_MS);
      // The very next statement of a process that goes on: no timer has had a turn.
      expect(lease.signal.aborted).toBe(true);
      expect(await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }))).toBeInstanceOf(LeaseLostError);
    });
    expect(world.simulator.requests()).toEqual([]);
  });

  it("sends nothing when it was lost between the grant and the write", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize") world.time.jump(2 * TTL_MS);
    };
    await holdfast.withBillingLease(JOB, async () => {
      const error = await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }));
      expect(error).toBeInstanceOf(LeaseLostError);
    });
    expect(world.simulator.requests()).toEqual([]);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.NEVER_SENT);
  });

  it("is fenced by the server even where this process believes to hold it", async () => {
    const holdfast = world.holdfast();
    await holdfast.withBillingLease(JOB, async (stale) => {
      world.plane.advance(60_000);
      await world.holdfast().withBillingLease(JOB, async () => {
        const stripe = holdfast.stripe(world.plain);
        const error = await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }));
        expect(error).toBeInstanceOf(LeaseLostError);
        // Whoever looks at the signal stops here too, and not only when the next heartbeat is told.
        expect(stale.signal.aborted).toBe(true);
      });
    });
    expect(world.simulator.requests()).toEqual([]);
  });
});

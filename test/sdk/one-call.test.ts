import { SpendAlreadyFailedError, SpendInDoubtError, stableKey, VendorUnreachableError } from "@holdfast/sdk";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CHARGE, rejection, SPEND, startWorld, type World } from "./setup.ts";

const POST = `/v1/charges ${stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose)}`;

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

function charge(options: Parameters<World["stripe"]>[0] = {}, params: object = {}) {
  return world.stripe(options).charges.create({ ...CHARGE, ...params }, { spend: SPEND });
}

describe("a charge in one call", () => {
  it("is sent once with the grant's key and committed", async () => {
    expect((await charge()).status).toBe("succeeded");
    expect(world.posts()).toEqual([POST]);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00", currency: "usd" },
    });
  });

  it("is answered with the real object when it was charged before", async () => {
    const first = await charge();
    expect((await charge()).id).toBe(first.id);
    expect(world.charges()).toBe(1);
  });

  it.each([
    "drop_after_execute",
    "truncate_body",
    "html_502_after",
    "invalid_json_200",
    "drop_before_execute",
    "html_502",
    "conflict_409",
    "rate_limit_429",
  ] as const)("charges once after %s, with the same key again", async (mode) => {
    world.simulator.fault({ mode, match: { path: "/v1/charges" } });
    expect((await charge()).status).toBe("succeeded");
    expect(world.posts()).toEqual([POST, POST]);
    expect(world.charges()).toBe(1);
  });

  it.each(["error_500_after", "lock_timeout_429"] as const)("stays in doubt after %s, which is saved", async (mode) => {
    world.simulator.fault({ mode, match: { path: "/v1/charges" } });
    expect(await rejection(charge({ vendorDeadlineMs: 1_500 }))).toBeInstanceOf(SpendInDoubtError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
    expect(world.charges()).toBeLessThanOrEqual(1);
  });

  it("in doubt is continued by the next call with the same key", async () => {
    world.simulator.fault({ mode: "drop_after_execute", match: { path: "/v1/charges" }, times: 1 });
    world.simulator.fault({ mode: "drop_before_execute", match: { path: "/v1/charges" }, times: 100 });
    expect(await rejection(charge({ vendorDeadlineMs: 700 }))).toBeInstanceOf(SpendInDoubtError);
    world.simulator.clearFaults();
    expect((await charge()).status).toBe("succeeded");
    expect(new Set(world.posts())).toEqual(new Set([POST]));
    expect(world.charges()).toBe(1);
  });

  it("in doubt is not sent again after the time in which the vendor remembers the key", async () => {
    world.simulator.fault({ mode: "drop_after_execute", match: { path: "/v1/charges" }, times: 1 });
    world.simulator.fault({ mode: "drop_before_execute", match: { path: "/v1/charges" }, times: 100 });
    await rejection(charge({ vendorDeadlineMs: 700 }));
    world.simulator.clearFaults();
    world.simulator.advance(25 * 3_600_000);
    world.plane.advance(25 * 3_600_000);
    const before = world.posts().length;
    expect(await rejection(charge())).toBeInstanceOf(SpendInDoubtError);
    expect(world.posts()).toHaveLength(before);
    expect(world.charges()).toBe(1);
  });

  it("in doubt is not continued with another body", async () => {
    world.simulator.fault({ mode: "drop_before_execute", match: { path: "/v1/charges" }, times: 100 });
    await rejection(charge({ vendorDeadlineMs: 300 }));
    world.simulator.clearFaults();
    const error = await rejection(charge({}, { source: "tok_mastercard" }));
    expect(error).toBeInstanceOf(SpendInDoubtError);
    expect((error as Error).message).toContain("body_fingerprint");
    expect(world.charges()).toBe(0);
  });

  it("that is declined is voided and answered with the vendor's own error", async () => {
    const error = await rejection(charge({}, { source: "tok_chargeDeclined" }));
    expect(error).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(world.posts()).toEqual([POST]);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.VENDOR_REFUSED);
    expect(await rejection(charge())).toBeInstanceOf(SpendAlreadyFailedError);
  });

  it("sends nothing and voids when the process was stopped past its hold before the write", async () => {
    world.plane.intercept = (rpc) => {
      // What a stopped process sees when it goes on: the grant is here, and the time is over.
      if (rpc === "authorize") world.time.jump(25 * 3_600_000);
    };
    const error = await rejection(charge({ timeoutMs: 600_000 }));
    expect(error).toBeInstanceOf(Error);
    expect(world.posts()).toEqual([]);
  });

  it("re-sends nothing when the process was stopped past its hold between two sends", async () => {
    const fault = world.simulator.fault({ mode: "hold", match: { path: "/v1/charges" } });
    const pending = rejection(charge({ vendorDeadlineMs: 600, holdMs: 5_000 }));
    await fault.arrivals();
    world.time.jump(25 * 3_600_000);
    expect(await pending).toBeInstanceOf(SpendInDoubtError);
    expect(world.posts()).toEqual([POST]);
  });

  it("says that nothing was sent when the vendor cannot be connected to", async () => {
    const stripe = world.holdfast({ vendorDeadlineMs: 300 }).stripe(world.unreachable);
    const error = await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }));
    expect(error).toBeInstanceOf(VendorUnreachableError);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.NEVER_SENT);
    expect((await charge()).status).toBe("succeeded");
    expect(world.posts()).toHaveLength(1);
  });
});

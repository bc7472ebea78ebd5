import { LeaseLostError, NotChargedError, SpendInDoubtError, type VendorGrant } from "@holdfast/sdk";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const JOB = { lease: "nightly-billing", billingPeriod: "2026-11" };

let world: World;
beforeEach(async () => {
  world = await startWorld({ time: "stands" });
});
afterEach(() => world.close());

describe("a callback that asks whether its grant is still held", () => {
  it("gives the headroom back when the lease was lost before it sent", async () => {
    const holdfast = world.holdfast();
    await holdfast.withBillingLease(JOB, async () => {
      const spent = holdfast.spend(SPEND, MAIL, async (grant) => {
        world.time.jump(60_000);
        grant.assertHeld();
        throw new Error("sent without a lease");
      });
      expect(await rejection(spent)).toBeInstanceOf(LeaseLostError);
    });
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.NEVER_SENT);
  });

  it("gives the headroom back when the hold ran out before it sent", async () => {
    const spent = world.holdfast().spend(SPEND, MAIL, async (grant) => {
      world.time.jump(601_000);
      grant.assertHeld();
      throw new Error("sent without a hold");
    });
    expect(await rejection(spent)).toBeInstanceOf(NotChargedError);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.NEVER_SENT);
  });

  // Between the two checks the callback may have sent.
  const checksTwice = async (grant: VendorGrant, laterMs: number) => {
    grant.assertHeld();
    world.time.jump(laterMs);
    grant.assertHeld();
    return { vendorReference: "mail_1" };
  };

  it("leaves it in doubt when the hold ran out after a check that had passed", async () => {
    const spent = world.holdfast().spend(SPEND, MAIL, (grant) => checksTwice(grant, 601_000));
    expect(await rejection(spent)).toBeInstanceOf(SpendInDoubtError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
  });

  it("leaves it in doubt when the lease was lost after a check that had passed", async () => {
    const holdfast = world.holdfast();
    await holdfast.withBillingLease(JOB, async () => {
      const spent = holdfast.spend(SPEND, MAIL, (grant) => checksTwice(grant, 60_000));
      expect(await rejection(spent)).toBeInstanceOf(SpendInDoubtError);
    });
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
  });
});

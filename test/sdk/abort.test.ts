import { Code } from "@connectrpc/connect";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendAbortedError, SpendInProgressError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const JOB = { lease: "nightly-billing", billingPeriod: "2026-11" };

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

/** Stops the control plane at an RPC: `reached` resolves when it is asked, `go` lets it answer. */
function gate(rpc: string) {
  const reached = Promise.withResolvers<void>();
  const go = Promise.withResolvers<void>();
  world.plane.intercept = async (name) => {
    if (name !== rpc) return;
    reached.resolve();
    await go.promise;
  };
  return { reached: reached.promise, go: () => go.resolve() };
}

function aborting() {
  const controller = new AbortController();
  const reason = new Error("the user left");
  return { signal: controller.signal, reason, abort: () => controller.abort(reason) };
}

describe("a signal that is aborted before the grant", () => {
  it("asks for nothing when it was aborted from the start", async () => {
    const { signal, reason, abort } = aborting();
    abort();
    const holdfast = world.holdfast();
    const error = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal }));
    expect(error).toBeInstanceOf(SpendAbortedError);
    expect(error).toMatchObject({ carriedThrough: false, cause: reason, code: "holdfast_spend_aborted" });
    expect(world.plane.calls).toEqual([]);
  });

  it("ends the wait for an answer at once, and gives the grant back that came nevertheless", async () => {
    const { signal, abort } = aborting();
    const { reached, go } = gate("authorize");
    const holdfast = world.holdfast();
    const spent = rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal }));
    await reached;
    abort();
    expect(await spent).toBeInstanceOf(SpendAbortedError);
    go();
    await holdfast.close();
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.NEVER_SENT,
    });
    expect(world.errors).toEqual([]);
  });

  it("finds and gives back a grant whose answer was lost", async () => {
    const { signal, abort } = aborting();
    const holdfast = world.holdfast();
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize") abort();
    };
    world.plane.loseAnswers = (rpc) => rpc === "authorize";
    const error = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal }));
    expect(error).toBeInstanceOf(SpendAbortedError);
    await expect.poll(() => world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
    expect(world.plane.names().filter((rpc) => rpc === "authorize")).toHaveLength(1);
  });

  it("ends the wait between two tries", async () => {
    const { signal, abort } = aborting();
    world.plane.intercept = (rpc) => {
      if (rpc !== "authorize") return;
      abort();
      throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const error = await rejection(
      world.holdfast().spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal }),
    );
    expect(error).toBeInstanceOf(SpendAbortedError);
    expect(world.plane.names().filter((rpc) => rpc === "authorize")).toHaveLength(1);
  });

  it("ends the wait for another attempt", async () => {
    const { signal, abort } = aborting();
    const holdfast = world.holdfast({ timeoutMs: 600_000, holdMs: 3_600_000 });
    const finish = Promise.withResolvers<void>();
    const first = holdfast.spend(SPEND, MAIL, async () => {
      await finish.promise;
      return { vendorReference: "mail_1" };
    });
    await expect.poll(() => world.plane.names()).toContain("authorize");
    let asked = 0;
    world.plane.intercept = (rpc) => {
      asked += 1;
      if (rpc === "authorize" && asked === 3) abort();
    };
    const second = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal }));
    expect(second).toBeInstanceOf(SpendAbortedError);
    expect(second).not.toBeInstanceOf(SpendInProgressError);
    finish.resolve();
    expect((await first).vendorReference).toBe("mail_1");
  });

  it("leaves a request out of the next batch", async () => {
    const { signal, abort } = aborting();
    const { reached, go } = gate("authorize");
    const holdfast = world.holdfast();
    const mail = async () => ({ vendorReference: "mail_1" });
    const first = holdfast.spend(SPEND, MAIL, mail);
    await reached;
    const second = rejection(holdfast.spend({ ...SPEND, purpose: "second" }, MAIL, mail, { signal }));
    abort();
    expect(await second).toBeInstanceOf(SpendAbortedError);
    go();
    await first;
    await holdfast.close();
    expect(world.plane.names()).toEqual(["authorize", "commit"]);
  });
});

describe("a signal that is aborted after bytes have left", () => {
  it("tells the caller at once, carries the charge through and commits it, and close waits for that", async () => {
    const { signal, abort } = aborting();
    const { reached, go } = gate("commit");
    const holdfast = world.holdfast();
    const charge = rejection(holdfast.stripe(world.plain).charges.create({ ...CHARGE }, { spend: SPEND, signal }));
    await reached;
    abort();
    const error = await charge;
    expect(error).toBeInstanceOf(SpendAbortedError);
    expect(error).toMatchObject({ carriedThrough: true });
    go();
    await holdfast.close();
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(world.charges()).toBe(1);
  });

  it("carries a PaymentIntent through all of its steps", async () => {
    const { signal, abort } = aborting();
    const { reached, go } = gate("bind");
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    const paid = rejection(stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND, signal }));
    await reached;
    abort();
    expect(await paid).toMatchObject({ carriedThrough: true });
    go();
    expect(await holdfast.flush()).toBe(true);
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    // The same spend again finds what was carried through.
    expect((await stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND })).status).toBe("succeeded");
    expect(world.charges()).toBe(1);
  });

  it("reports how the call failed to nobody but the background", async () => {
    const { signal, abort } = aborting();
    const holdfast = world.holdfast();
    const error = await rejection(
      holdfast.spend(
        SPEND,
        MAIL,
        async () => {
          abort();
          throw new Error("cut");
        },
        { signal },
      ),
    );
    expect(error).toMatchObject({ carriedThrough: true });
    await holdfast.close();
    expect(world.errors).toMatchObject([{ code: "holdfast_spend_in_doubt" }]);
  });
});

describe("the signal", () => {
  it("of withSpend counts for every call inside, besides the call's own", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    const outer = aborting();
    const inner = aborting();
    outer.abort();
    const charge = () => rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND, signal: inner.signal }));
    expect(await holdfast.withSpend(SPEND, charge, { signal: outer.signal })).toMatchObject({
      cause: { cause: outer.reason },
    });
    expect(world.plane.calls).toEqual([]);
  });

  it("of a billing lease aborts the lease's signal and its spends, and leaves the period open", async () => {
    const holdfast = world.holdfast();
    const { signal, abort } = aborting();
    const result = await holdfast.withBillingLease({ ...JOB, signal }, async (lease) => {
      expect(lease.signal.aborted).toBe(false);
      abort();
      expect(lease.signal.aborted).toBe(true);
      const spent = holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent")));
      expect(await rejection(spent)).toBeInstanceOf(SpendAbortedError);
    });
    expect(result).toMatchObject({ outcome: "incomplete", unsettled: [SPEND] });
  });

  it("ends the wait for a billing lease, which is given back", async () => {
    const { signal, abort } = aborting();
    const { reached, go } = gate("acquireLease");
    const holdfast = world.holdfast();
    const job = holdfast.withBillingLease({ ...JOB, signal }, () => Promise.reject(new Error("ran")));
    const refused = rejection(job);
    await reached;
    abort();
    expect(await refused).toBeInstanceOf(SpendAbortedError);
    go();
    await holdfast.flush();
    expect(await world.holdfast().withBillingLease(JOB, async () => "free")).toMatchObject({ acquired: true });
  });

  it("may be shared by many calls without a warning", async () => {
    const warnings: string[] = [];
    const onWarning = (warning: Error) => warnings.push(warning.message);
    process.on("warning", onWarning);
    const { signal } = aborting();
    const holdfast = world.holdfast();
    await Promise.all(
      Array.from({ length: 50 }, (_, index) =>
        holdfast.spend({ ...SPEND, purpose: `p${index}` }, MAIL, async () => ({ vendorReference: `m${index}` }), {
          signal,
        }),
      ),
    );
    await new Promise((resolve) => setImmediate(resolve));
    process.off("warning", onWarning);
    expect(warnings).toEqual([]);
  });

  it.each(["now", 1, {}])("must be an AbortSignal: %o is refused", async (signal) => {
    const spent = world
      .holdfast()
      .spend(SPEND, MAIL, () => Promise.reject(new Error("sent")), { signal: signal as never });
    expect(await rejection(spent)).toBeInstanceOf(TypeError);
    const stripe = world.holdfast().stripe(world.plain);
    const charge = stripe.charges.create({ ...CHARGE }, { spend: SPEND, signal: signal as never });
    expect(await rejection(charge)).toBeInstanceOf(TypeError);
    expect(world.plane.calls).toEqual([]);
    expect(world.simulator.requests()).toEqual([]);
  });
});

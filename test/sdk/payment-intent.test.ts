import {
  SpendAlreadyFailedError,
  SpendInDoubtError,
  SpendMismatchError,
  stableKey,
  VendorUnreachableError,
} from "@holdfast/sdk";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { Code } from "@connectrpc/connect";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

const KEY = stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose);
const CREATE = `/v1/payment_intents ${KEY}`;
const CONFIRM = `/v1/payment_intents/:id/confirm ${KEY}-confirm-1`;
const CANCEL = `/v1/payment_intents/:id/cancel ${KEY}-cancel`;
const CONFIRM_PATH = /\/confirm$/;

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

function pay(options: Parameters<World["stripe"]>[0] = {}, params: object = {}) {
  return world.stripe(options).paymentIntents.create({ ...PAYMENT, ...params }, { spend: SPEND });
}

describe("a PaymentIntent with confirm: true", () => {
  it("is created, bound, confirmed and committed, and looks like one call", async () => {
    const intent = await pay();
    expect(intent.status).toBe("succeeded");
    expect(world.posts()).toEqual([CREATE, CONFIRM]);
    expect(world.plane.names()).toEqual(["authorize", "bind", "commit"]);
    const authorization = world.plane.authorization();
    expect(authorization.state).toBe(AuthorizationState.COMMITTED);
    expect(authorization.committedAmount).toMatchObject({ currency: "usd", amount: "49.00" });
    expect(world.simulator.movements()[0]?.metadata).toEqual({
      holdfast_authorization: world.plane.authorization().name.slice("authorizations/".length),
    });
  });

  it("is confirmed by nobody before its id is bound", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "bind") expect(world.posts()).toEqual([CREATE]);
    };
    await pay();
    expect(world.charges()).toBe(1);
  });

  it("is answered with the real object when it was charged before", async () => {
    const first = await pay();
    const again = await pay();
    expect(again.id).toBe(first.id);
    expect(again.status).toBe("succeeded");
    expect(world.charges()).toBe(1);
    expect(world.posts()).toHaveLength(2);
  });

  it("is refused when it was charged before with another amount", async () => {
    await pay();
    const error = await rejection(pay({}, { amount: 5000 }));
    expect(error).toBeInstanceOf(SpendMismatchError);
    expect((error as SpendMismatchError).differingFields).toEqual(["spend.amount.amount"]);
    expect(world.charges()).toBe(1);
  });

  it("charges once when asked twice at the same time", async () => {
    const stripe = world.stripe();
    const both = await Promise.all([1, 2].map(() => stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND })));
    expect(both[0]?.id).toBe(both[1]?.id);
    expect(world.charges()).toBe(1);
  });

  it.each(["drop_after_execute", "truncate_body", "html_502_after", "invalid_json_200", "error_500_after"] as const)(
    "charges once when the confirmation's answer is lost (%s)",
    async (mode) => {
      world.simulator.fault({ mode, match: { path: CONFIRM_PATH } });
      const intent = await pay();
      expect(intent.status).toBe("succeeded");
      expect(world.charges()).toBe(1);
      expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    },
  );

  it.each(["drop_before_execute", "html_502", "conflict_409", "rate_limit_429"] as const)(
    "is confirmed after a failure in front of the vendor (%s)",
    async (mode) => {
      world.simulator.fault({ mode, match: { path: CONFIRM_PATH } });
      expect((await pay()).status).toBe("succeeded");
      expect(world.charges()).toBe(1);
    },
  );

  it.each(["drop_before_execute", "drop_after_execute", "html_502", "conflict_409"] as const)(
    "survives a lost answer to the creation (%s)",
    async (mode) => {
      world.simulator.fault({ mode, match: { path: /payment_intents$/ } });
      expect((await pay()).status).toBe("succeeded");
      expect(world.charges()).toBe(1);
    },
  );

  it("is in doubt when the vendor stays silent, and the next call continues the same object", async () => {
    world.simulator.fault({ mode: "drop_before_execute", match: { path: CONFIRM_PATH }, times: 100 });
    const error = await rejection(pay({ vendorDeadlineMs: 800 }));
    expect(error).toBeInstanceOf(SpendInDoubtError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
    world.simulator.clearFaults();
    const intent = await pay();
    expect(intent.status).toBe("succeeded");
    expect(intent.id).toBe((error as SpendInDoubtError).vendorReference);
    expect(world.charges()).toBe(1);
  });

  it("is continued a month later without a second charge", async () => {
    world.simulator.fault({ mode: "slow_reply", afterMs: 3_600_000, match: { path: CONFIRM_PATH } });
    world.simulator.fault({ mode: "drop_before_execute", match: { method: "GET" }, times: 100 });
    const pending = rejection(pay({ vendorDeadlineMs: 500 }));
    await expect.poll(() => world.charges()).toBe(1);
    await world.time.advance(500);
    expect(await pending).toBeInstanceOf(SpendInDoubtError);
    expect(world.charges()).toBe(1);
    world.simulator.clearFaults();
    world.simulator.advance(30 * 86_400_000);
    world.plane.advance(30 * 86_400_000);
    expect((await pay()).status).toBe("succeeded");
    expect(world.charges()).toBe(1);
  });

  it("says that nothing was charged when the creation is not answered", async () => {
    world.simulator.fault({ mode: "drop_before_execute", match: { method: "POST" }, times: 100 });
    expect(await rejection(pay({ vendorDeadlineMs: 500 }))).toBeInstanceOf(VendorUnreachableError);
    world.simulator.clearFaults();
    expect((await pay()).status).toBe("succeeded");
    expect(world.charges()).toBe(1);
  });

  it("is voided and free again when the vendor cannot be connected to", async () => {
    const stripe = world.holdfast({ vendorDeadlineMs: 300 }).stripe(world.unreachable);
    const error = await rejection(stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND }));
    expect(error).toBeInstanceOf(VendorUnreachableError);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.NEVER_SENT);
    expect((await pay()).status).toBe("succeeded");
  });
});

describe("a declined PaymentIntent", () => {
  const declined = { payment_method: "pm_card_chargeDeclined" };

  it("is cancelled, voided with that proof, and answered with the vendor's own error", async () => {
    const error = await rejection(pay({}, declined));
    expect(error).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(error).toMatchObject({ statusCode: 402, decline_code: "generic_decline" });
    expect(world.posts()).toEqual([CREATE, CONFIRM, CANCEL]);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
  });

  it("is not tried again unless that is asked for, and then under another key", async () => {
    await rejection(pay({}, declined));
    const error = await rejection(pay());
    expect(error).toBeInstanceOf(SpendAlreadyFailedError);
    expect(error).toMatchObject({ retryAfterGeneration: 1 });
    const intent = await world
      .stripe()
      .paymentIntents.create({ ...PAYMENT }, { spend: { ...SPEND, retryAfterGeneration: 1 } });
    expect(intent.status).toBe("succeeded");
    const second = stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose, 2);
    expect(world.posts().at(-2)).toBe(`/v1/payment_intents ${second}`);
  });

  it("stays held and in doubt when the cancellation is not proven", async () => {
    world.simulator.fault({ mode: "drop_before_execute", match: { path: /\/cancel$/ }, times: 100 });
    const error = await rejection(pay({ vendorDeadlineMs: 800 }, declined));
    expect(error).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
  });

  it("gives the saved decline when an earlier attempt ended before it could cancel", async () => {
    world.simulator.fault({ mode: "drop_after_execute", match: { path: CONFIRM_PATH }, times: 1 });
    world.simulator.fault({ mode: "drop_before_execute", match: { path: CONFIRM_PATH }, times: 100 });
    await rejection(pay({ vendorDeadlineMs: 600 }, declined));
    world.simulator.clearFaults();
    expect(await rejection(pay({}, declined))).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
    expect(world.charges()).toBe(0);
  });

  it("is kept for another card where the service says so", async () => {
    expect(await rejection(pay({ onDecline: "keep" }, declined))).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.HELD);
    expect(world.plane.authorization().vendorReference).toMatch(/^pi_/);
    world.plane.advance(601_000);
    const intent = await pay({ onDecline: "keep" });
    expect(intent.status).toBe("succeeded");
    expect(intent.id).toBe(world.plane.authorization().vendorReference);
    expect(world.charges()).toBe(1);
  });

  it("of a creation that the vendor refuses is voided, with the vendor's answer for the caller", async () => {
    world.simulator.fault({ mode: "bad_request_400", match: { path: /payment_intents$/ } });
    expect(await rejection(pay())).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError);
    expect(world.plane.authorization().voidEvidence).toBe(VoidEvidence.VENDOR_REFUSED);
  });
});

describe("an unfinished PaymentIntent", () => {
  const authentication = { payment_method: "pm_card_authenticationRequired" };

  it("is handed out, stays held, and is committed by a later call once the customer acted", async () => {
    const intent = await pay({}, authentication);
    expect(intent.status).toBe("requires_action");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorState: "requires_action",
      vendorReference: intent.id,
    });
    // The same object again, with what the customer needs to act.
    const waiting = await pay({}, authentication);
    expect(waiting).toMatchObject({ id: intent.id, status: "requires_action", client_secret: intent.client_secret });
    world.simulator.confirmFromBrowser(intent.id);
    expect((await pay({}, authentication)).status).toBe("succeeded");
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(world.charges()).toBe(1);
  });
});

describe("the loser of a race for one spend", () => {
  it("does not cancel the object that the other attempt bound", async () => {
    // The first attempt is stopped between creation and bind; meanwhile its hold runs out and another one takes over.
    let resume: () => void = () => undefined;
    const stopped = new Promise<void>((arrived) => {
      let first = true;
      world.plane.intercept = async (rpc) => {
        if (rpc !== "bind" || !first) return;
        first = false;
        arrived();
        await new Promise<void>((go) => {
          resume = go;
        });
      };
    });
    const slow = pay();
    await stopped;
    world.plane.advance(601_000);
    const winner = await pay();
    resume();
    expect((await slow).id).toBe(winner.id);
    expect(winner.status).toBe("succeeded");
    expect(world.posts().filter((post) => post.includes("/cancel"))).toEqual([]);
    expect(world.charges()).toBe(1);
  });

  it("does not cancel the object that the other attempt is about to bind", async () => {
    // Both attempts are stopped before their bind, with one and the same object: one key, one PaymentIntent.
    const gates: (() => void)[] = [];
    const arrivals: (() => void)[] = [];
    const arrived = [1, 2].map(() => new Promise<void>((resolve) => arrivals.push(resolve)));
    world.plane.intercept = async (rpc) => {
      if (rpc !== "bind" || gates.length >= 2) return;
      arrivals[gates.length]?.();
      await new Promise<void>((go) => gates.push(go));
    };
    const loser = pay();
    await arrived[0];
    world.plane.advance(601_000);
    const winner = pay();
    await arrived[1];
    gates[0]?.();
    while (world.plane.names().at(-1) !== "authorize") await new Promise((resolve) => setImmediate(resolve));
    gates[1]?.();
    expect((await winner).status).toBe("succeeded");
    expect((await loser).id).toBe((await winner).id);
    expect(world.posts().filter((post) => post.includes("/cancel"))).toEqual([]);
    expect(world.charges()).toBe(1);
  });

  it("cancels its own object and continues with the one that is bound", async () => {
    const other = await world.plain.paymentIntents.create({
      amount: 4900,
      currency: "usd",
      payment_method: "pm_card_visa",
    });
    let first = true;
    world.plane.intercept = (rpc) => {
      if (rpc !== "bind" || !first) return;
      first = false;
      throw failure(Code.FailedPrecondition, "ALREADY_BOUND", { vendor_reference: other.id });
    };
    const intent = await pay();
    expect(intent.id).toBe(other.id);
    expect(world.posts().filter((post) => post.includes("/cancel"))).toHaveLength(1);
    expect(world.charges()).toBe(1);
  });
});

describe("the commit after a charge", () => {
  it("never hides the vendor's answer, and is delivered later", async () => {
    let broken = true;
    world.plane.intercept = (rpc) => {
      if (rpc === "commit" && broken) throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    // Longer than the longest pause of a lane, which the last try waits for.
    const holdfast = world.holdfast({ timeoutMs: 5_000 });
    const intent = await holdfast.stripe(world.plain).paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    expect(intent.status).toBe("succeeded");
    expect(world.plane.authorization().state).toBe(AuthorizationState.HELD);
    broken = false;
    await holdfast.close();
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(world.errors).toEqual([]);
  });

  it("tells of a refusal and still gives the vendor's answer", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "commit") throw failure(Code.FailedPrecondition, "COMMIT_CONTRADICTS");
    };
    expect((await pay()).status).toBe("succeeded");
    expect(world.errors).toMatchObject([{ reason: "COMMIT_CONTRADICTS" }]);
  });
});

import { Code } from "@connectrpc/connect";
import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  SpendAlreadyFailedError,
  SpendDeniedError,
  SpendIdentityMissingError,
  SpendInDoubtError,
  SpendInProgressError,
} from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, idOf, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const MANUAL = { ...PAYMENT, capture_method: "manual" } as const;

function authorizeCard(options = {}) {
  return world.stripe(options).paymentIntents.create({ ...MANUAL }, { spend: SPEND });
}

/** Kind and amount of every movement of money. */
function moved(): string[] {
  return world.simulator.movements().map(({ kind, amount }) => `${kind} ${amount}`);
}

describe("a PaymentIntent that is captured later", () => {
  it("is held and followed until it is captured, and then committed at what was captured", async () => {
    const intent = await authorizeCard();
    expect(intent.status).toBe("requires_capture");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorReference: intent.id,
      vendorState: "requires_capture",
    });
    expect(moved()).toEqual([]);
    // Another process captures: the object says whose spend it is.
    const captured = await world.stripe().paymentIntents.capture(intent.id, { amount_to_capture: 3000 });
    expect(captured).toMatchObject({ status: "succeeded", amount_received: 3000 });
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "30.00" },
    });
    expect(moved()).toEqual(["capture 3000"]);
  });

  it("is given back by every repeat, before and after the capture", async () => {
    const intent = await authorizeCard();
    expect(await authorizeCard()).toMatchObject({ id: intent.id, status: "requires_capture" });
    await world.stripe().paymentIntents.capture(intent.id);
    expect(await authorizeCard()).toMatchObject({ id: intent.id, status: "succeeded" });
    expect(await world.stripe().paymentIntents.capture(intent.id)).toMatchObject({ status: "succeeded" });
    expect(moved()).toEqual(["capture 4900"]);
  });

  it.each(["drop_before_execute", "drop_after_execute", "error_500_after", "truncate_body", "conflict_409"] as const)(
    "is captured once through %s",
    async (mode) => {
      const intent = await authorizeCard();
      world.simulator.fault({ mode, match: { path: /capture$/ }, times: 1 });
      const capture = () => world.stripe().paymentIntents.capture(intent.id);
      const first = await capture().catch((error: unknown) => error);
      if (first instanceof Error) await capture();
      expect(moved()).toEqual(["capture 4900"]);
      expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    },
  );

  it("stays where it was when Stripe refuses the capture, and can be captured afterwards", async () => {
    const intent = await authorizeCard();
    world.simulator.fault({ mode: "bad_request_400", match: { path: /capture$/ }, times: 1 });
    const refusal = await rejection(world.stripe().paymentIntents.capture(intent.id));
    expect(refusal).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorState: "requires_capture",
    });
    expect((await world.stripe().paymentIntents.capture(intent.id)).status).toBe("succeeded");
    expect(moved()).toEqual(["capture 4900"]);
  });

  it("is not captured under a revoked key", async () => {
    const intent = await authorizeCard();
    const { plane } = world;
    plane.deny = "VAULT_KEY_REVOKED";
    expect(await rejection(world.stripe().paymentIntents.capture(intent.id))).toBeInstanceOf(SpendDeniedError);
    expect(moved()).toEqual([]);
  });

  it("gives its headroom back when it is cancelled", async () => {
    const intent = await authorizeCard();
    expect((await world.stripe().paymentIntents.cancel(intent.id)).status).toBe("canceled");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
    expect(await rejection(world.stripe().paymentIntents.capture(intent.id))).toBeInstanceOf(SpendAlreadyFailedError);
    expect(moved()).toEqual([]);
  });
});

describe("an authorization that is raised", () => {
  it("holds the difference first, and is committed at the whole", async () => {
    const intent = await authorizeCard();
    const raised = await world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 6000 });
    expect(raised.amount).toBe(6000);
    expect(world.plane.authorization()).toMatchObject({
      heldAmount: { amount: "60.00" },
      vendorState: "requires_capture",
    });
    await world.stripe().paymentIntents.capture(intent.id);
    expect(world.plane.authorization().committedAmount).toMatchObject({ amount: "60.00" });
    expect(moved()).toEqual(["capture 6000"]);
  });

  it("is not raised at Stripe where the caps have no room, and can still be captured as it was", async () => {
    const intent = await authorizeCard();
    world.plane.capMajor = 55;
    const denial = await rejection(world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 6000 }));
    expect(denial).toMatchObject({ code: "holdfast_spend_denied", denial: { rule: "CAP_HEADROOM" } });
    expect((await world.plain.paymentIntents.retrieve(intent.id)).amount).toBe(4900);
    await world.stripe().paymentIntents.capture(intent.id);
    expect(moved()).toEqual(["capture 4900"]);
  });

  it("is raised in the name of its attempt and of the lease that the call is made under", async () => {
    const intent = await authorizeCard();
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    await holdfast.withBillingLease({ lease: "nightly", billingPeriod: "2026-11" }, async ({ fencingToken }) => {
      await stripe.paymentIntents.incrementAuthorization(intent.id, { amount: 6000 });
      // An update of the object takes no attempt; here Stripe refuses it afterwards.
      await rejection(stripe.paymentIntents.update(intent.id, { amount: 7000 }));
      const asked = world.plane.calls.filter(({ rpc }) => rpc === "increaseHold").map(({ request }) => request);
      const attemptId: unknown = expect.stringMatching(/^[0-9a-f]{32}$/);
      const leaseFence = { fencingToken };
      expect(asked).toMatchObject([
        { attemptId, leaseFence },
        { attemptId: "", leaseFence },
      ]);
    });
  });

  it("is not raised by a call that another one has superseded", async () => {
    const intent = await authorizeCard();
    world.plane.intercept = (rpc) => {
      if (rpc === "increaseHold") throw failure(Code.FailedPrecondition, "ATTEMPT_SUPERSEDED");
    };
    const raised = world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 6000 });
    expect(await rejection(raised)).toBeInstanceOf(SpendInProgressError);
    expect((await world.plain.paymentIntents.retrieve(intent.id)).amount).toBe(4900);
  });

  it("is raised once through a lost answer, and to a second total after that", async () => {
    const intent = await authorizeCard();
    const raise = (amount: number) => world.stripe().paymentIntents.incrementAuthorization(intent.id, { amount });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /increment/ }, times: 1 });
    expect((await raise(6000)).amount).toBe(6000);
    expect((await raise(7000)).amount).toBe(7000);
    expect(world.plane.authorization().heldAmount).toMatchObject({ amount: "70.00" });
  });

  it("holds more before an update asks for more, and nothing for an update of metadata", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });
    await world.stripe().paymentIntents.update(intent.id, { metadata: { order: "1" } });
    expect(world.plane.names()).not.toContain("increaseHold");
    await world.stripe().paymentIntents.update(intent.id, { amount: 6000 });
    expect(world.plane.authorization().heldAmount).toMatchObject({ amount: "60.00" });
    world.plane.capMajor = 65;
    expect(await rejection(world.stripe().paymentIntents.update(intent.id, { amount: 7000 }))).toBeInstanceOf(
      SpendDeniedError,
    );
    expect((await world.plain.paymentIntents.retrieve(intent.id)).amount).toBe(6000);
  });
});

describe("a PaymentIntent that is confirmed by a call of its own", () => {
  const create = () => world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });

  it("is held from its creation on, and confirmed without naming the spend again", async () => {
    const intent = await create();
    expect(intent.status).toBe("requires_confirmation");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorState: "requires_confirmation",
      vendorReference: intent.id,
    });
    expect((await create()).id).toBe(intent.id);
    expect((await world.stripe().paymentIntents.confirm(intent.id)).status).toBe("succeeded");
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect((await create()).status).toBe("succeeded");
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("is committed once a browser has confirmed it", async () => {
    const intent = await create();
    world.simulator.confirmFromBrowser(intent.id);
    expect((await create()).status).toBe("succeeded");
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("is confirmed once by two processes at the same time", async () => {
    const intent = await create();
    const results = await Promise.all(
      [1, 2, 3].map(() =>
        world
          .stripe()
          .paymentIntents.confirm(intent.id)
          .catch((error: unknown) => error),
      ),
    );
    expect(results.some((result) => (result as { status?: string }).status === "succeeded")).toBe(true);
    expect(moved()).toEqual(["charge 4900"]);
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
  });

  it("was made outside of the guard: it needs a spend, and belongs to it from then on", async () => {
    const intent = await world.plain.paymentIntents.create({ ...PAYMENT, confirm: false });
    expect(await rejection(world.stripe().paymentIntents.confirm(intent.id))).toBeInstanceOf(SpendIdentityMissingError);
    const confirm = () => world.stripe().paymentIntents.confirm(intent.id, {}, { spend: SPEND });
    expect((await confirm()).status).toBe("succeeded");
    expect((await confirm()).status).toBe("succeeded");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      vendorReference: intent.id,
      committedAmount: { amount: "49.00" },
    });
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("gets another card at once after a decline that is kept", async () => {
    const stripe = () => world.stripe({ onDecline: "keep" });
    const pay = (payment_method: string) =>
      stripe().paymentIntents.create({ ...PAYMENT, payment_method }, { spend: SPEND });
    expect(await rejection(pay("pm_card_chargeDeclined"))).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect((await pay("pm_card_visa")).status).toBe("succeeded");
    expect(moved()).toEqual(["charge 4900"]);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.COMMITTED, generation: 1 });
  });

  it("can be paid again after the customer failed the bank's check", async () => {
    const pay = (payment_method: string) =>
      world.stripe().paymentIntents.create({ ...PAYMENT, payment_method }, { spend: SPEND });
    const waiting = await pay("pm_card_authenticationRequired");
    expect(waiting.status).toBe("requires_action");
    world.simulator.failFromBrowser(waiting.id);
    // The object is continued at once, not after the time it is followed.
    const again = await pay("pm_card_authenticationRequired").catch((error: unknown) => error);
    expect(again).not.toBeInstanceOf(SpendInDoubtError);
    expect(world.plane.authorization().state).not.toBe(AuthorizationState.IN_DOUBT);
    expect(moved()).toEqual([]);
  });
});

describe("a charge that is captured later", () => {
  const charge = () => world.stripe().charges.create({ ...CHARGE, capture: false }, { spend: SPEND });

  it("is followed until it is captured, without naming the spend again", async () => {
    const created = await charge();
    expect(created.captured).toBe(false);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: "uncaptured" });
    expect((await charge()).id).toBe(created.id);
    const captured = await world.stripe().charges.capture(created.id, { amount: 1000 });
    expect(captured.captured).toBe(true);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "10.00" },
    });
    expect((await charge()).id).toBe(created.id);
    expect(moved()).toEqual(["capture 1000"]);
  });

  it("of a PaymentIntent is refused by Stripe, and its spend stays as it was", async () => {
    const intent = await authorizeCard();
    const { latest_charge: id } = await world.plain.paymentIntents.retrieve(intent.id);
    expect(await rejection(world.stripe().charges.capture(idOf(id)))).toBeInstanceOf(
      Stripe.errors.StripeInvalidRequestError,
    );
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorReference: intent.id,
      vendorState: "requires_capture",
    });
    expect((await world.stripe().paymentIntents.capture(intent.id)).status).toBe("succeeded");
    expect(moved()).toEqual(["capture 4900"]);
  });
});

describe("a card at a terminal", () => {
  it("is charged under the spend of its PaymentIntent", async () => {
    const intent = await world
      .stripe()
      .paymentIntents.create({ amount: 4900, currency: "usd", payment_method: "pm_card_visa" }, { spend: SPEND });
    const reader = world.simulator.place({ object: "terminal.reader" });
    await world.stripe().terminal.readers.processPaymentIntent(reader.id, { payment_intent: intent.id });
    await world.stripe().paymentIntents.retrieve(intent.id);
    const now = await world.plain.paymentIntents.retrieve(intent.id);
    if (now.status === "succeeded") expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    else expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: now.status });
  });
});

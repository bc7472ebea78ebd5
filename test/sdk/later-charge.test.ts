import { AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { createHoldfast, SpendAlreadyFailedError } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

/** A vendor with one charge, whose saved answer stays "pending" whatever has become of the charge. */
function debitVendor() {
  const state = { status: "pending", posts: 0 };
  const answer = (body: object) => ({
    getStatusCode: () => 200,
    getHeaders: () => ({}),
    getRawResponse: () => ({}),
    toStream: () => undefined,
    toJSON: () => Promise.resolve(body),
  });
  const client = {
    getClientName: () => "debit",
    makeRequest(_host: string, _port: string, _path: string, method: string) {
      const charge = { id: "py_1", object: "charge", amount: 4900, currency: "usd" };
      if (method === "POST") state.posts += 1;
      return Promise.resolve(answer({ ...charge, status: method === "POST" ? "pending" : state.status }));
    },
  };
  const stripe = new Stripe("sk_test_1", { httpClient: client as unknown as Stripe.HttpClient });
  return { state, stripe };
}

describe("a charge whose money moves later", () => {
  it("is handed out pending and keeps its headroom, and a later call commits it", async () => {
    const { state, stripe } = debitVendor();
    const holdfast = createHoldfast({
      baseUrl: "http://unused",
      vaultKey: "vk_test",
      transport: world.plane.transport,
    });
    const charge = () => holdfast.stripe(stripe).charges.create({ ...CHARGE }, { spend: SPEND });
    expect((await charge()).status).toBe("pending");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.HELD,
      vendorReference: "py_1",
      vendorState: "pending",
    });
    expect((await charge()).status).toBe("pending");
    expect(state.posts).toBe(1);
    state.status = "succeeded";
    expect((await charge()).status).toBe("succeeded");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      vendorReference: "py_1",
      committedAmount: { amount: "49.00" },
    });
    await holdfast.close();
  });

  it("gives its headroom back when it failed", async () => {
    const { state, stripe } = debitVendor();
    const holdfast = createHoldfast({
      baseUrl: "http://unused",
      vaultKey: "vk_test",
      transport: world.plane.transport,
    });
    const charge = () => holdfast.stripe(stripe).charges.create({ ...CHARGE }, { spend: SPEND });
    await charge();
    state.status = "failed";
    expect(await rejection(charge())).toBeInstanceOf(SpendAlreadyFailedError);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
    await holdfast.close();
  });
});

describe("a PaymentIntent that Stripe was too busy to create", () => {
  it("is created by the next call, without being asked for another generation", async () => {
    world.simulator.fault({ mode: "rate_limit_429", match: { path: /payment_intents$/ }, times: 100 });
    const pay = (options = {}) => world.stripe(options).paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    expect(await rejection(pay({ vendorDeadlineMs: 500 }))).toBeInstanceOf(Stripe.errors.StripeRateLimitError);
    world.simulator.clearFaults();
    expect((await pay()).status).toBe("succeeded");
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(world.charges()).toBe(1);
  });
});

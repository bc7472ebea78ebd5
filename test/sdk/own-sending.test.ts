import { SpendUnsupportedError, stableKey } from "@holdfast/sdk";
import type Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CHARGE, idOf, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const KEY = stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose);

const moves: Readonly<Record<string, (options: Stripe.RequestOptions) => Promise<unknown>>> = {
  "a PaymentIntent": (options) => world.stripe().paymentIntents.create({ ...PAYMENT }, { ...options, spend: SPEND }),
  "a charge": (options) => world.stripe().charges.create({ ...CHARGE }, { ...options, spend: SPEND }),
  "a charge inside withSpend": (options) => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain) as Stripe;
    return holdfast.withSpend(SPEND, () => stripe.charges.create({ ...CHARGE }, options));
  },
  "a raw request": (options) => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain) as Stripe;
    return holdfast.withSpend(SPEND, () =>
      stripe.rawRequest("POST", "/v1/charges", { amount: 4900, currency: "usd" }, options as Stripe.RawRequestOptions),
    );
  },
};

describe.each(Object.keys(moves))("%s", (name) => {
  const move = (options: Stripe.RequestOptions) => (moves[name] as (typeof moves)[string])(options);

  it.each<[string, Stripe.RequestOptions, string]>([
    ["a key of its own", { idempotencyKey: "order-77" }, "purpose"],
    ["a number of repeats", { maxNetworkRetries: 3 }, "vendorDeadlineMs"],
    ["no repeats", { maxNetworkRetries: 0 }, "vendorDeadlineMs"],
  ])("with %s is refused before anything is asked, and says what to do", async (_what, options, remedy) => {
    const error = await rejection(move(options));
    expect(error).toBeInstanceOf(SpendUnsupportedError);
    expect((error as Error).message).toContain(Object.keys(options)[0]);
    expect((error as Error).message).toContain(remedy);
    expect(world.plane.calls).toEqual([]);
    expect(world.simulator.requests()).toEqual([]);
  });
});

describe("the stable key", () => {
  it("may be given, as code in other languages does", async () => {
    const options = { idempotencyKey: KEY, spend: SPEND };
    expect((await world.stripe().charges.create({ ...CHARGE }, options)).status).toBe("succeeded");
    expect(world.posts()).toEqual([`/v1/charges ${KEY}`]);
  });

  it("of another spend is another key", async () => {
    const options = { idempotencyKey: stableKey("cust_124", "2026-11", "subscription"), spend: SPEND };
    expect(await rejection(world.stripe().charges.create({ ...CHARGE }, options))).toBeInstanceOf(
      SpendUnsupportedError,
    );
    expect(world.simulator.requests()).toEqual([]);
  });
});

describe("a key of the caller's own", () => {
  it("is refused for a step of an object that belongs to a spend", async () => {
    const stripe = world.stripe();
    const intent = await stripe.paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });
    const before = world.posts();
    const confirm = (stripe as Stripe).paymentIntents.confirm(idOf(intent), {}, { idempotencyKey: "mine" });
    expect(await rejection(confirm)).toBeInstanceOf(SpendUnsupportedError);
    expect(world.posts()).toEqual(before);
  });

  it("is used for what is passed on, and Stripe's client may repeat that", async () => {
    const options = { idempotencyKey: "mine", maxNetworkRetries: 1 };
    await (world.stripe() as Stripe).customers.create({ name: "Ada" }, options);
    expect(world.simulator.requests().map(({ key }) => key)).toEqual(["mine"]);
  });
});

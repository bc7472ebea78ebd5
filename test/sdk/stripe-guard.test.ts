import {
  type Holdfast,
  HoldfastError,
  type SpendDeniedError,
  SpendIdentityMissingError,
  SpendUnsupportedError,
  stableKey,
} from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { bodyMoney } from "../../sdk/stripe-amount.ts";
import { routeStripeRequest } from "../../sdk/stripe-route.ts";
import { nothingLeft } from "../../sdk/stripe-send.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

describe("what the guard lets through", () => {
  it("reads and writes that cannot move money, as the plain client sends them", async () => {
    const stripe = world.stripe();
    const customer = await stripe.customers.create({ name: "Ada" }, { idempotencyKey: "mine" });
    expect((await stripe.customers.retrieve(customer.id)).id).toBe(customer.id);
    expect(world.posts()).toEqual(["/v1/customers mine"]);
    expect(world.plane.calls).toEqual([]);
  });

  it("paging, with its helpers", async () => {
    const stripe = world.stripe();
    for (const name of ["a", "b", "c"]) await stripe.customers.create({ name });
    const page = stripe.customers.list({ limit: 1 });
    expect((await page).data).toHaveLength(1);
    expect(await stripe.customers.list({ limit: 1 }).autoPagingToArray({ limit: 10 })).toHaveLength(3);
    const names = new Set<unknown>();
    for await (const customer of stripe.customers.list({ limit: 2 })) names.add(customer.name);
    expect(names).toEqual(new Set(["a", "b", "c"]));
  });

  it("leaves the given client as it was", async () => {
    world.stripe();
    await world.plain.charges.create({ ...CHARGE });
    expect(world.charges()).toBe(1);
    expect(world.plane.calls).toEqual([]);
  });

  it("the vendor's own errors", async () => {
    const error = await rejection(world.stripe().customers.retrieve("cus_missing"));
    expect(error).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError);
  });
});

describe("what the guard refuses", () => {
  it.each([
    [
      "a way around the guard",
      (stripe: Stripe) => stripe.accountLinks.create({ account: "acct_1", type: "account_onboarding" }),
    ],
    [
      "a redirected payout",
      (stripe: Stripe) => stripe.accounts.createExternalAccount("acct_1", { external_account: "b" }),
    ],
    [
      "a new source, which retries invoices",
      (stripe: Stripe) => stripe.customers.update("cus_1", { source: "tok_visa" }),
    ],
    [
      "an endless link",
      (stripe: Stripe) => stripe.paymentLinks.create({ line_items: [{ price: "price_1", quantity: 1 }] }),
    ],
    ["an unstated price", (stripe: Stripe) => stripe.checkout.sessions.create({ mode: "payment" })],
    ["a partial capture", (stripe: Stripe) => stripe.paymentIntents.capture("pi_1", { final_capture: false })],
    ["an unknown write", (stripe: Stripe) => stripe.rawRequest("POST", "/v1/brand_new_thing", {})],
    ["a nested resource", (stripe: Stripe) => stripe.v2.core.eventDestinations.ping("ed_1")],
  ])("%s, with a typed error and no request", async (_, call) => {
    const holdfast = world.holdfast();
    const error = await rejection(holdfast.withSpend(SPEND, () => call(holdfast.stripe(world.plain))));
    expect(error).toBeInstanceOf(SpendUnsupportedError);
    expect((error as Error).cause).toBeInstanceOf(Stripe.errors.StripePermissionError);
    expect((error as Error).message).toMatch(/^Not sent: (POST|DELETE) \/v[12]\//);
    expect(world.simulator.requests()).toEqual([]);
    expect(world.plane.calls).toEqual([]);
  });

  it("a money move without an identity", async () => {
    const error = await rejection(world.stripe().charges.create({ ...CHARGE }));
    expect(error).toBeInstanceOf(SpendIdentityMissingError);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("a denial of the control plane, as a typed error with all figures and one RPC", async () => {
    world.plane.capMajor = 10;
    const error = await rejection(world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND }));
    expect(error).toMatchObject({
      name: "SpendDeniedError",
      code: "holdfast_spend_denied",
      spend: SPEND,
      denial: {
        rule: "CAP_HEADROOM",
        cap: "caps/daily",
        limit: { currency: "usd", amount: "10" },
        headroom: { currency: "usd", amount: "10" },
        shortBy: { currency: "usd", amount: "39" },
        window: "2026-11-30",
      },
    });
    expect((error as SpendDeniedError).denial.windowEndTime).toBeInstanceOf(Date);
    expect(world.plane.names()).toEqual(["authorize"]);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("a denial of a raw request, too", async () => {
    world.plane.capMajor = 10;
    const error = await rejection(world.stripe().rawRequest("POST", "/v1/charges", { ...CHARGE }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastError);
    expect(error).toMatchObject({ code: "holdfast_spend_denied" });
    expect((error as Error).cause).toMatchObject({ statusCode: 403, code: "holdfast_spend_denied" });
  });

  it("a money move of a client made from the guarded one", async () => {
    const stripe = world.stripe().withStripeContext(Stripe.StripeContext.parse("acct_1"));
    const error = await rejection(stripe.charges.create({ ...CHARGE }));
    expect(error).toBeInstanceOf(SpendIdentityMissingError);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("every method of every resource of the client, none of which knows the plain client", () => {
    const stripe = world.stripe();
    const visited = new Set<unknown>();
    const resources: string[] = [];
    const visit = (value: unknown, path: string): void => {
      if (typeof value !== "object" || value === null || visited.has(value) || path.split(".").length > 6) return;
      visited.add(value);
      if ("_stripe" in value) {
        resources.push(path);
        expect(value._stripe, path).not.toBe(world.plain);
      }
      for (const name of Object.getOwnPropertyNames(Object.getPrototypeOf(value) ?? {}).concat(Object.keys(value))) {
        if (/^[a-z]/.test(name) && name !== "constructor") visit(Reflect.get(value, name), `${path}.${name}`);
      }
    };
    for (const name of Object.keys(world.plain)) {
      if (/^[a-z]/.test(name)) visit(Reflect.get(stripe, name), name);
    }
    expect(resources.length).toBeGreaterThan(100);
  });
});

describe("a mistaken call of holdfast.stripe", () => {
  it.each([
    ["a secret instead of a client", (holdfast: Holdfast) => holdfast.stripe("sk_test_1" as never), /new Stripe/],
    [
      "one name instead of a list",
      (holdfast: Holdfast) => holdfast.stripe(world.plain, { allow: "POST /v1/tokens" as never }),
      /must be an array/,
    ],
  ])("says what is needed: %s", (_, call, message) => {
    expect(() => call(world.holdfast())).toThrow(TypeError);
    expect(() => call(world.holdfast())).toThrow(message);
  });
});

describe("who spends", () => {
  it("is the option's spend before the surrounding one", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    await holdfast.withSpend(SPEND, async () => {
      await stripe.charges.create({ ...CHARGE });
      await stripe.charges.create({ ...CHARGE }, { spend: { ...SPEND, purpose: "other" } });
    });
    const { customerId, billingPeriod, purpose } = SPEND;
    expect(world.posts()).toEqual([
      `/v1/charges ${stableKey(customerId, billingPeriod, purpose)}`,
      `/v1/charges ${stableKey(customerId, billingPeriod, "other")}`,
    ]);
  });

  it("includes the connected account, which is stored with the authorization", async () => {
    await world.stripe().charges.create({ ...CHARGE }, { spend: SPEND, stripeAccount: "acct_9" });
    expect(world.plane.authorization().vendorAccount).toBe("acct_9");
    expect(world.simulator.requests()[0]?.account).toBe("acct_9");
  });
});

describe("the strict reading of a body", () => {
  const form = "amount=4900&currency=usd&source=tok_visa";
  const read = (body: string) => {
    const { endpoint, fields } = routeStripeRequest("POST", "/v1/charges", body);
    return bodyMoney({ endpoint: endpoint.endpoint, fields, spend: undefined });
  };
  it.each([
    "amount=1&amount=100&currency=usd",
    "amount[]=1&currency=usd",
    "Amount=1&amount=100&currency=usd",
    "%20amount=1&amount=100&currency=usd",
    "amount=01&currency=usd",
    "amount=0&currency=usd",
    "amount=-1&currency=usd",
    "amount=1e3&currency=usd",
    "amount=1.5&currency=usd",
    "amount=1000000000000000&currency=usd",
    "amount=1&currency=USD",
    "amount=1&currency=",
    "currency=usd",
    "amount=1",
    "amount=4950&currency=isk",
    "amount=1&currency=usd&x=%zz",
    "amount=1&currency=usd&amount%00=5",
    "amount=1&currency=usd&&",
    "amount=1&currency=usd&metadata=",
    "amount=1&currency=usd&metadata[holdfast_authorization]=x",
  ])("refuses %s", (body) => {
    expect(() => read(body)).toThrow(SpendUnsupportedError);
  });

  it("refuses parameters beside the body, and a body that is no text", () => {
    expect(() => routeStripeRequest("POST", "/v1/charges?amount=1", form)).toThrow(SpendUnsupportedError);
    expect(() => routeStripeRequest("POST", "/v1/charges", Buffer.from(form))).toThrow(SpendUnsupportedError);
  });

  it("reads what is plain", () => {
    expect(read(form)).toEqual({ currency: "usd", amount: "49.00" });
  });
});

describe("the metadata that an object of a spend is found by", () => {
  const route = (path: string, body: string, allow?: string) =>
    routeStripeRequest("POST", path, body, new Set(allow === undefined ? [] : [allow])).plan;
  const marked = [
    "/v1/payment_intents/pi_1",
    "/v1/charges/ch_1",
    "/v1/refunds/re_1",
    "/v1/invoices/in_1",
    "/v1/subscriptions/sub_1",
    "/v1/checkout/sessions/cs_1",
    "/v1/payment_links/plink_1",
    "/v1/payouts/po_1",
    "/v1/transfers/tr_1",
    "/v1/transfers/tr_1/reversals/trr_1",
    "/v1/topups/tu_1",
    "/v1/credit_notes/cn_1",
    "/v1/customers/cus_1/balance_transactions/cbtxn_1",
  ];

  it.each(marked)("is not cleared nor set by POST %s, and other metadata is", (path) => {
    for (const body of [
      "metadata=",
      "description=x&metadata=",
      "metadata%5Bholdfast_authorization%5D=",
      "metadata[holdfast_authorization]=x",
      "metadata[holdfast_authorization][x]=",
    ]) {
      expect(() => route(path, body)).toThrow(SpendUnsupportedError);
    }
    expect(route(path, "metadata[mine]=&metadata[holdfast_customer]=c")).toEqual({ flow: "pass" });
  });

  it("is not cleared by a change of an invoice's lines", () => {
    for (const body of ["invoice_metadata=", "invoice_metadata[holdfast_authorization]="]) {
      expect(() => route("/v1/invoices/in_1/add_lines", body)).toThrow(SpendUnsupportedError);
    }
    expect(route("/v1/invoices/in_1/add_lines", "invoice_metadata[mine]=x").flow).toBe("edit");
  });

  it("is not on other objects, nor looked for where the application lets a write past the guard", () => {
    for (const path of ["/v1/customers/cus_1", "/v1/quotes/qt_1", "/v1/products/prod_1"]) {
      expect(route(path, "metadata=")).toEqual({ flow: "pass" });
    }
    expect(route("/v1/invoices/in_1", "metadata=", "POST /v1/invoices/:id")).toEqual({ flow: "pass" });
  });

  it("stays on a payment whose metadata the application wants to clear", async () => {
    const stripe = world.stripe();
    const { id } = await stripe.paymentIntents.create(PAYMENT, { spend: SPEND });
    const refused = await rejection(stripe.paymentIntents.update(id, { metadata: "" }));
    expect(refused).toBeInstanceOf(SpendUnsupportedError);
    await stripe.paymentIntents.update(id, { metadata: { mine: "1" } });
    expect((await stripe.paymentIntents.retrieve(id)).metadata).toMatchObject({
      mine: "1",
      holdfast_authorization: expect.any(String),
    });
  });
});

describe("whether anything left this machine", () => {
  const error = (props: object) => Object.assign(new Error("x"), props);
  it.each([
    [true, error({ code: "ECONNREFUSED", syscall: "connect" })],
    [true, error({ code: "ETIMEDOUT", syscall: "connect" })],
    [true, error({ code: "ENOTFOUND", syscall: "getaddrinfo" })],
    [true, error({ code: "CERT_HAS_EXPIRED" })],
    [true, error({ errors: [error({ syscall: "connect" }), error({ syscall: "connect" })] })],
    [true, error({ cause: error({ code: "ECONNREFUSED" }) })],
    [false, error({ errors: [error({ syscall: "connect" }), error({ code: "ECONNRESET" })] })],
    [false, error({ code: "ETIMEDOUT" })],
    [false, error({ code: "ECONNRESET", syscall: "read" })],
    [false, error({ code: "EPIPE", syscall: "write" })],
    [false, error({ code: "EPROTO", syscall: "write" })],
    [false, "nothing known"],
  ])("%s for %o", (expected, thrown) => {
    expect(nothingLeft(thrown)).toBe(expected);
  });
});

import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendDeniedError, SpendIdentityMissingError, SpendMismatchError, SpendUnsupportedError } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FAMILIES } from "../../sdk/stripe-object.ts";
import { routeStripeRequest } from "../../sdk/stripe-route.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

function moved(): string[] {
  return world.simulator.movements().map(({ kind, amount }) => `${kind} ${amount}`);
}

function usd(amount: string) {
  return { amount, currency: "usd" };
}

describe("a name that a lenient parser would read as another", () => {
  it.each([
    ["POST", "/v1/payment_intents/pi_1", "[amount]=990000"],
    ["POST", "/v1/payment_intents/pi_1", "amount]=990000"],
    ["POST", "/v1/payment_intents/pi_1", "description=x;amount=990000"],
    ["POST", "/v1/customers/cus_1", "[source]=tok_visa"],
    ["POST", "/v1/customers/cus_1", "balance%20=-5000"],
    ["POST", "/v1/customers/cus_1", "Balance=-5000"],
    ["POST", "/v1/customers/cus_1", "account_balance=-5000"],
    ["POST", "/v1/customers/cus_1", "name=x&_method=delete"],
    ["POST", "/v1/charges", "amount=1&currency=usd&metadata[a]b=1"],
    ["POST", "/v1/payment_intents", "amount=1&currency=usd&confirm=1"],
    ["POST", "/v1/payment_intents/pi_1/capture", "final_capture=0"],
    ["POST", "/v2/money_management/outbound_payments", '{"amount[value]":1,"amount":{"value":5000,"currency":"usd"}}'],
    ["POST", "/v2/money_management/outbound_payments", '{"amount":{"value":1,"currency":"usd","value":5000}}'],
  ])("%s %s with %s is not sent", (method, path, body) => {
    expect(() => routeStripeRequest(method, path, body)).toThrow(SpendUnsupportedError);
  });

  it("in a query takes a deletion for one that bills", () => {
    const flow = (query: string) => routeStripeRequest("DELETE", `/v1/subscriptions/sub_1${query}`, "").plan.flow;
    expect(flow("")).toBe("pass");
    expect(flow("?invoice_now=false")).toBe("pass");
    expect(flow("?invoice_now[]=true")).toBe("one_call");
    expect(() => flow("?[invoice_now]=true")).toThrow(SpendUnsupportedError);
  });
});

describe("a new customer", () => {
  it("is no way to give a credit", async () => {
    const error = await rejection(world.stripe().customers.create({ balance: -5000 }));
    expect(error).toBeInstanceOf(SpendUnsupportedError);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("may have everything else, and a balance where the application allows it", async () => {
    const customer = await world.stripe().customers.create({ name: "Ada", source: "tok_visa" });
    expect(customer.object).toBe("customer");
    const allowed = world.holdfast().stripe(world.plain, { allow: ["POST /v1/customers"] });
    await allowed.customers.create({ balance: -5000 });
    expect(world.simulator.requests().at(-1)?.params).toEqual({ balance: "-5000" });
  });
});

describe("an invoice that is voided after a part of it was paid", () => {
  it("keeps that part counted", () => {
    const invoice = (fields: object) => FAMILIES.invoice.judge({ currency: "usd", status: "void", ...fields });
    expect(invoice({ amount_paid: 0 })).toEqual({ kind: "gone", state: "void" });
    expect(invoice({ amount_paid: 2000 })).toEqual({ kind: "charged", minor: 2000n, currency: "usd" });
  });
});

describe("a header that turns a request into another", () => {
  it("is dropped from what is passed on", async () => {
    const seen: Record<string, unknown>[] = [];
    const inner = Stripe.createNodeHttpClient() as unknown as { makeRequest(...args: unknown[]): Promise<unknown> };
    const client = {
      getClientName: () => "spy",
      makeRequest(...args: unknown[]) {
        seen.push(args[4] as Record<string, unknown>);
        return inner.makeRequest(...args);
      },
    };
    const { host, port } = world.simulator;
    const plain = new Stripe("sk_test_1", {
      host,
      port,
      protocol: "http",
      telemetry: false,
      httpClient: client as unknown as Stripe.HttpClient,
    });
    const options = { headers: { "X-HTTP-Method-Override": "DELETE" } } as Stripe.RequestOptions;
    await world.holdfast().stripe(plain).customers.create({ name: "Ada" }, options);
    expect(Object.keys(seen[0] ?? {}).filter((name) => /method/i.test(name))).toEqual([]);
  });
});

describe("a payment link of a spend", () => {
  const link = async () => {
    const stripe = world.stripe();
    const created = await stripe.paymentLinks.create(
      {
        line_items: [{ price_data: { currency: "usd", product: "prod_1", unit_amount: 4900 }, quantity: 1 }],
        restrictions: { completed_sessions: { limit: 1 } },
      },
      { spend: { ...SPEND, upTo: usd("49.00") } },
    );
    return { stripe, id: created.id };
  };

  it("may not be paid more often than was held", async () => {
    const { stripe, id } = await link();
    const more = { restrictions: { completed_sessions: { limit: 3 } } };
    expect(await rejection(stripe.paymentLinks.update(id, more))).toBeInstanceOf(SpendUnsupportedError);
    const endless = { restrictions: "" as const };
    expect(await rejection(stripe.paymentLinks.update(id, endless))).toBeInstanceOf(SpendUnsupportedError);
    world.simulator.payLink(id);
    expect(() => world.simulator.payLink(id)).toThrow();
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("may be paid more often where that much is held first", async () => {
    const { stripe, id } = await link();
    const more = { restrictions: { completed_sessions: { limit: 3 } } };
    await stripe.paymentLinks.update(id, more, { spend: { ...SPEND, upTo: usd("147.00") } });
    expect(world.plane.authorization().heldAmount).toMatchObject({ amount: "147.00" });
  });

  it("stays closed once its spend is settled", async () => {
    const { stripe, id } = await link();
    await stripe.paymentLinks.update(id, { active: false });
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(await rejection(stripe.paymentLinks.update(id, { active: true }))).toBeInstanceOf(SpendIdentityMissingError);
    const more = { active: true, restrictions: { completed_sessions: { limit: 9 } } };
    expect(await rejection(stripe.paymentLinks.update(id, more))).toBeInstanceOf(SpendIdentityMissingError);
    expect(() => world.simulator.payLink(id)).toThrow();
    // Closing it again moves nothing.
    expect((await stripe.paymentLinks.update(id, { active: false })).active).toBe(false);
  });
});

describe("a PaymentIntent of a spend", () => {
  const create = () => world.stripe().paymentIntents.create({ ...PAYMENT, confirm: false }, { spend: SPEND });

  it("does not change its currency, whatever is held", async () => {
    const intent = await create();
    expect(await rejection(world.stripe().paymentIntents.update(intent.id, { currency: "kwd" }))).toBeInstanceOf(Error);
    expect((await world.plain.paymentIntents.retrieve(intent.id)).currency).toBe("usd");
  });

  it("that was made dearer behind the guard is confirmed only where that much can be held", async () => {
    const intent = await create();
    await world.plain.paymentIntents.update(intent.id, { amount: 9900 });
    world.plane.capMajor = 60;
    const pay = () => world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    expect(await rejection(pay())).toBeInstanceOf(SpendDeniedError);
    expect(moved()).toEqual([]);
    world.plane.capMajor = 100;
    expect((await pay()).status).toBe("succeeded");
    expect(world.plane.authorization()).toMatchObject({
      heldAmount: { amount: "99.00" },
      committedAmount: { amount: "99.00" },
    });
  });

  it("is not taken possession of for an amount that is none", async () => {
    const intent = await create();
    const before = world.plane.names().length;
    const confirm = world.stripe().paymentIntents.confirm(intent.id, {
      amount_to_confirm: "49.00" as unknown as number,
    });
    expect(await rejection(confirm)).toBeInstanceOf(SpendUnsupportedError);
    expect(world.plane.names().slice(before)).toEqual([]);
    expect((await world.stripe().paymentIntents.confirm(intent.id)).status).toBe("succeeded");
  });
});

describe("the most that a call may cost", () => {
  const openInvoice = async () => {
    const { id: customer } = await world.plain.customers.create({
      invoice_settings: { default_payment_method: "pm_card_visa" },
    });
    const invoice = await world.plain.invoices.create({ customer, auto_advance: false });
    await world.plain.invoiceItems.create({ customer, invoice: invoice.id, amount: 4900, currency: "usd" });
    await world.plain.invoices.finalizeInvoice(invoice.id, { auto_advance: false });
    return invoice.id;
  };

  it.each([usd("10.00"), { amount: "4900", currency: "jpy" }])("refuses an invoice above %o", async (upTo) => {
    const id = await openInvoice();
    const pay = world.stripe().invoices.pay(id, {}, { spend: { ...SPEND, upTo } });
    expect(await rejection(pay)).toBeInstanceOf(SpendUnsupportedError);
    expect(moved()).toEqual([]);
    expect(world.plane.authorizations()).toEqual([]);
  });

  it("is refused where Stripe's currency cannot carry it, before anything is made", async () => {
    const session = world.stripe().checkout.sessions.create(
      {
        mode: "payment",
        line_items: [{ price_data: { currency: "usd", product: "prod_1", unit_amount: 4900 }, quantity: 1 }],
      },
      { spend: { ...SPEND, upTo: usd("49.005") } },
    );
    expect(await rejection(session)).toBeInstanceOf(SpendUnsupportedError);
    expect(world.plane.authorizations()).toEqual([]);
    expect(world.posts()).toEqual([]);
  });
});

describe("an invoice that is still a draft", () => {
  it("leaves no doubt when it is dearer than what the caps allow", async () => {
    const { id: customer } = await world.plain.customers.create({});
    await world.plain.invoiceItems.create({ customer, amount: 9000, currency: "usd" });
    world.plane.capMajor = 70;
    const create = world
      .stripe()
      .invoices.create(
        { customer, auto_advance: true, pending_invoice_items_behavior: "include" },
        { spend: { ...SPEND, upTo: usd("60.00") } },
      );
    expect(await rejection(create)).toBeInstanceOf(SpendDeniedError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
    world.simulator.advance(7 * 86_400_000);
    expect(moved()).toEqual([]);
  });
});

describe("an invoice that is paid as a draft", () => {
  it("is paid only after its final price was held", async () => {
    const { id: customer } = await world.plain.customers.create({
      invoice_settings: { default_payment_method: "pm_card_visa" },
    });
    // What the customer owes is added when the invoice is finalized.
    await world.plain.customers.createBalanceTransaction(customer, { amount: 3000, currency: "usd" });
    const { id } = await world.plain.invoices.create({ customer, auto_advance: false });
    await world.plain.invoiceItems.create({ customer, invoice: id, amount: 4900, currency: "usd" });
    const pay = () => world.stripe().invoices.pay(id, {}, { spend: SPEND });
    world.plane.capMajor = 60;
    expect(await rejection(pay())).toBeInstanceOf(SpendDeniedError);
    expect(world.charges()).toBe(0);
    world.plane.capMajor = 100;
    expect((await pay()).status).toBe("paid");
    expect(moved()).toContain("charge 7900");
    expect(world.plane.authorization()).toMatchObject({
      heldAmount: { amount: "79.00" },
      committedAmount: { amount: "79.00" },
    });
  });
});

describe("a Checkout Session that an edit makes dearer", () => {
  it("cannot be paid when the caps have no room for it", async () => {
    const stripe = world.stripe();
    const items = (unit_amount: number) => ({
      line_items: [{ price_data: { currency: "usd", product: "prod_1", unit_amount }, quantity: 1 }],
    });
    const session = await stripe.checkout.sessions.create(
      { mode: "payment", ...items(4900) },
      { spend: { ...SPEND, upTo: usd("49.00") } },
    );
    world.plane.capMajor = 60;
    const edit = stripe.checkout.sessions.update(session.id, items(9900) as Stripe.Checkout.SessionUpdateParams);
    expect(await rejection(edit)).toBeInstanceOf(SpendDeniedError);
    const { amount_total: total, status } = await world.plain.checkout.sessions.retrieve(session.id);
    if (total === 9900) {
      expect(status).toBe("expired");
      expect(world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
    }
  });

  it("is not made so that somebody can pay it after it has expired", async () => {
    const create = world.stripe().checkout.sessions.create(
      {
        mode: "payment",
        line_items: [{ price_data: { currency: "usd", product: "prod_1", unit_amount: 4900 }, quantity: 1 }],
        after_expiration: { recovery: { enabled: true } },
      },
      { spend: { ...SPEND, upTo: usd("49.00") } },
    );
    expect(await rejection(create)).toBeInstanceOf(SpendUnsupportedError);
  });
});

describe("a refund", () => {
  const charged = () => world.plain.charges.create({ ...CHARGE });

  it("of another amount under the same spend is another one", async () => {
    const charge = await charged();
    const refund = (amount: number) => world.stripe().refunds.create({ charge: charge.id, amount }, { spend: SPEND });
    await refund(1000);
    expect(await rejection(refund(2000))).toBeInstanceOf(SpendMismatchError);
    expect((await refund(1000)).amount).toBe(1000);
    expect(moved()).toEqual(["charge 4900", "refund 1000"]);
  });

  it("that Stripe refuses at once because everything is refunded is a refusal, not a doubt", async () => {
    const charge = await charged();
    await world.plain.refunds.create({ charge: charge.id });
    const refund = world.stripe().refunds.create({ charge: charge.id, amount: 4900 }, { spend: SPEND });
    expect(await rejection(refund)).toBeInstanceOf(Stripe.errors.StripeInvalidRequestError);
    expect(world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
  });

  it("reads the charge without what only the refund can expand", async () => {
    const charge = await charged();
    await world.stripe().refunds.create({ charge: charge.id, expand: ["charge"] }, { spend: SPEND });
    const read = world.simulator
      .requests()
      .find(({ method, path }) => method === "GET" && path.includes("/v1/charges/"));
    expect(JSON.stringify(read)).not.toContain("expand");
  });
});

describe("one key of a spend", () => {
  it("is not sent under a second API key, where it would be another charge", async () => {
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /charges$/ }, times: 20 });
    const charge = (apiKey: string) => world.stripe().charges.create({ ...CHARGE }, { spend: SPEND, apiKey });
    await rejection(charge("sk_test_1"));
    world.simulator.clearFaults();
    await rejection(charge("sk_test_2"));
    expect(world.charges()).toBe(1);
  });
});

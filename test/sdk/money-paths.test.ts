import { Code } from "@connectrpc/connect";
import { AuthorizationState, Direction, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendDeniedError, SpendIdentityMissingError, SpendUnsupportedError } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, idOf, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
let customer: string;
beforeEach(async () => {
  world = await startWorld();
  customer = (await world.plain.customers.create({ invoice_settings: { default_payment_method: "pm_card_visa" } })).id;
});
afterEach(() => world.close());

const UP_TO = { amount: "60.00", currency: "usd" };

function moved(): string[] {
  return world.simulator.movements().map(({ kind, amount }) => `${kind} ${amount}`);
}

async function openInvoice(amount = 4900): Promise<string> {
  const invoice = await world.plain.invoices.create({ customer, auto_advance: false });
  await world.plain.invoiceItems.create({ customer, invoice: invoice.id, amount, currency: "usd" });
  await world.plain.invoices.finalizeInvoice(invoice.id, { auto_advance: false });
  return invoice.id;
}

describe("an invoice", () => {
  it("is paid once at what remains of it, by however many calls", async () => {
    const id = await openInvoice();
    const pay = () => world.stripe().invoices.pay(id, {}, { spend: SPEND });
    expect((await pay()).status).toBe("paid");
    expect((await pay()).status).toBe("paid");
    expect((await world.stripe().invoices.pay(id)).status).toBe("paid");
    expect(moved()).toEqual(["charge 4900"]);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      vendorReference: id,
      committedAmount: { amount: "49.00" },
    });
  });

  it.each(["drop_after_execute", "error_500_after", "drop_before_execute", "truncate_body"] as const)(
    "is paid once through %s",
    async (mode) => {
      const id = await openInvoice();
      world.simulator.fault({ mode, match: { path: /pay$/ }, times: 1 });
      const pay = () => world.stripe().invoices.pay(id, {}, { spend: SPEND });
      const first = await pay().catch((error: unknown) => error);
      if (first instanceof Error) await pay();
      expect(moved()).toEqual(["charge 4900"]);
      expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    },
  );

  it("keeps its hold after a decline, because Stripe may try again, and is paid by another card", async () => {
    const id = await openInvoice();
    const pay = (payment_method: string) => world.stripe().invoices.pay(id, { payment_method }, { spend: SPEND });
    expect(await rejection(pay("pm_card_chargeDeclined"))).toBeInstanceOf(Stripe.errors.StripeCardError);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: "open" });
    expect((await pay("pm_card_visa")).status).toBe("paid");
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("is held from its finalization on, and its spend ends with it", async () => {
    const draft = await world.plain.invoices.create({ customer, auto_advance: true });
    await world.plain.invoiceItems.create({ customer, invoice: draft.id, amount: 4900, currency: "usd" });
    const id = draft.id;
    const finalized = await world.stripe().invoices.finalizeInvoice(id, {}, { spend: { ...SPEND, upTo: UP_TO } });
    expect(finalized.status).toBe("open");
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorReference: id });
    await world.stripe().invoices.voidInvoice(id);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
    expect(moved()).toEqual([]);
  });

  it("that was made through the guard is filled and paid without naming the spend again", async () => {
    const stripe = world.stripe();
    const spend = { ...SPEND, upTo: UP_TO };
    const invoice = await stripe.invoices.create({ customer, auto_advance: false }, { spend });
    const id = invoice.id;
    await stripe.invoices.addLines(id, { lines: [{ amount: 4900, description: "seat" }] });
    await stripe.invoices.finalizeInvoice(id, { auto_advance: false });
    await stripe.invoices.pay(id);
    expect(moved()).toEqual(["charge 4900"]);
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.COMMITTED, vendorReference: id });
  });

  it("that grew above what the caps allow is not paid", async () => {
    const stripe = world.stripe();
    const invoice = await stripe.invoices.create(
      { customer, auto_advance: false },
      { spend: { ...SPEND, upTo: UP_TO } },
    );
    world.plane.capMajor = 70;
    const id = invoice.id;
    const add = stripe.invoices.addLines(id, { lines: [{ amount: 9000, description: "too much" }] });
    expect(await rejection(add)).toBeInstanceOf(SpendDeniedError);
    expect(await rejection(stripe.invoices.pay(id))).toBeInstanceOf(SpendDeniedError);
    expect(moved()).toEqual([]);
  });

  it("is not taken for another that its spend has paid", async () => {
    const [first, second] = [await openInvoice(), await openInvoice()];
    await world.stripe().invoices.pay(first, {}, { spend: SPEND });
    const mismatch = await rejection(world.stripe().invoices.pay(second, {}, { spend: SPEND }));
    expect(mismatch).toMatchObject({ code: "holdfast_spend_mismatch" });
    expect((mismatch as Error).message).toContain(second);
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("moves nothing when it was paid elsewhere", async () => {
    const id = await openInvoice();
    expect((await world.stripe().invoices.pay(id, { paid_out_of_band: true })).status).toBe("paid");
    expect(moved()).toEqual([]);
    expect(world.plane.calls).toEqual([]);
  });

  it("that was held and then paid elsewhere gives its headroom back", async () => {
    const stripe = world.stripe();
    const create = () =>
      stripe.invoices.create({ customer, auto_advance: false }, { spend: { ...SPEND, upTo: UP_TO } });
    const { id } = await create();
    await stripe.invoices.addLines(id, { lines: [{ amount: 4900, description: "seat" }] });
    await stripe.invoices.finalizeInvoice(id, { auto_advance: false });
    await stripe.invoices.pay(id, { paid_out_of_band: true });
    expect(await rejection(create())).toMatchObject({ code: "holdfast_spend_already_failed" });
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
    expect(moved()).toEqual([]);
  });
});

describe("a subscription", () => {
  const items = () => [
    {
      price_data: { currency: "usd", product: "prod_1", recurring: { interval: "month" as const }, unit_amount: 4900 },
    },
  ];
  const subscribe = (spend: object = SPEND) =>
    world.stripe().subscriptions.create({ customer, items: items() }, { spend: { ...SPEND, ...spend } });

  it("is held at what Stripe's preview says and a margin, and committed at its first invoice", async () => {
    const subscription = await subscribe();
    expect(subscription.object).toBe("subscription");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      spend: { amount: { amount: "53.90" } },
      committedAmount: { amount: "49.00" },
      vendorReference: subscription.id,
    });
    expect((await subscribe()).id).toBe(subscription.id);
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("is held at what the caller states", async () => {
    await subscribe({ upTo: UP_TO });
    expect(world.plane.authorization()).toMatchObject({
      spend: { amount: { amount: "60.00" } },
      committedAmount: { amount: "49.00" },
    });
  });

  it("is refused when the caps have no room for it", async () => {
    world.plane.capMajor = 50;
    expect(await rejection(subscribe())).toBeInstanceOf(SpendDeniedError);
    expect(moved()).toEqual([]);
  });

  it("that waits for the customer is followed, and committed once it was paid", async () => {
    const create = () =>
      world
        .stripe()
        .subscriptions.create({ customer, items: items(), payment_behavior: "default_incomplete" }, { spend: SPEND });
    const subscription = await create();
    expect(subscription.status).toBe("incomplete");
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: "open" });
    await world.plain.invoices.pay(idOf(subscription.latest_invoice));
    expect((await create()).id).toBe(subscription.id);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00" },
    });
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("is created once when the answer is lost", async () => {
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /subscriptions$/ }, times: 1 });
    const subscription = await subscribe();
    expect((await world.plain.subscriptions.list({ customer })).data.map(({ id }) => id)).toEqual([subscription.id]);
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("passes changes that cost nothing, and asks for a spend where they do", async () => {
    const { id } = await subscribe();
    await world.stripe().subscriptions.update(id, { metadata: { a: "b" } });
    await world.stripe().subscriptions.update(id, { cancel_at_period_end: true });
    const change = world.stripe().subscriptions.update(id, { proration_behavior: "always_invoice", items: items() });
    expect(await rejection(change)).toBeInstanceOf(SpendIdentityMissingError);
    expect((await world.stripe().subscriptions.cancel(id)).status).toBe("canceled");
  });
});

describe("a page on which somebody pays", () => {
  const line_items = [
    { quantity: 1, price_data: { currency: "usd", unit_amount: 4900, product_data: { name: "seat" } } },
  ];
  const spend = { ...SPEND, upTo: UP_TO };
  const open = (params: object = {}) =>
    world
      .stripe()
      .checkout.sessions.create(
        { mode: "payment", customer, line_items, success_url: "https://x.test", ...params },
        { spend },
      );

  it("is held until it is paid, and committed at what was paid", async () => {
    const session = await open();
    expect(session.url).toBeTruthy();
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorReference: session.id });
    expect((await open()).id).toBe(session.id);
    world.simulator.completeCheckout(session.id);
    expect((await open()).payment_status).toBe("paid");
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00" },
    });
    expect(moved()).toEqual(["charge 4900"]);
  });

  it("gives its headroom back when it is expired", async () => {
    const session = await open();
    await world.stripe().checkout.sessions.expire(session.id);
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.VOIDED,
      voidEvidence: VoidEvidence.TOMBSTONE,
    });
  });

  it("is ended at once when taxes make it dearer than the caps allow", async () => {
    world.plane.capMajor = 60;
    const denial = await rejection(open({ line_items: [{ ...line_items[0], quantity: 2 }] }));
    expect(denial).toBeInstanceOf(SpendDeniedError);
    const sessions = (await world.plain.checkout.sessions.list()).data;
    expect(sessions.map(({ status }) => status)).toEqual(["expired"]);
    expect(world.plane.authorization().state).toBe(AuthorizationState.VOIDED);
  });

  it("is not ended by a call that another one has superseded: the object is that one's now", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "increaseHold" || rpc === "bind") throw failure(Code.FailedPrecondition, "ATTEMPT_SUPERSEDED");
    };
    await open({ line_items: [{ ...line_items[0], quantity: 2 }] }).catch(() => undefined);
    expect((await world.plain.checkout.sessions.list()).data.map(({ status }) => status)).toEqual(["open"]);
    expect(world.plane.names()).not.toContain("void");
  });

  it("is a link with a limit, held as a whole until it is switched off", async () => {
    const link = await world
      .stripe()
      .paymentLinks.create({ line_items, restrictions: { completed_sessions: { limit: 1 } } }, { spend });
    expect(world.plane.authorization()).toMatchObject({ state: AuthorizationState.HELD, vendorState: "active" });
    world.simulator.payLink(link.id);
    await world.stripe().paymentLinks.update(link.id, { active: false });
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(moved()).toEqual(["charge 4900"]);
  });
});

describe("money that is given back", () => {
  const refund = (params: object) => world.stripe().refunds.create(params, { spend: { ...SPEND, purpose: "refund" } });

  it("is a spend of direction REFUND at what is left, of the charge it names", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    const first = await refund({ payment_intent: intent.id });
    expect(first.amount).toBe(4900);
    expect(world.plane.authorization(1)).toMatchObject({
      state: AuthorizationState.COMMITTED,
      direction: Direction.REFUND,
      refundOf: intent.id,
      committedAmount: { amount: "49.00" },
    });
    // Nothing is left now, and the repeat still is the same refund.
    expect((await refund({ payment_intent: intent.id })).id).toBe(first.id);
    expect(moved()).toEqual(["charge 4900", "refund 4900"]);
  });

  it("names the PaymentIntent's spend where the charge is named, and takes a part", async () => {
    const intent = await world.stripe().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    const { latest_charge: charge } = await world.plain.paymentIntents.retrieve(intent.id);
    await refund({ charge: idOf(charge), amount: 1000 });
    expect(world.plane.authorization(1)).toMatchObject({ refundOf: intent.id, committedAmount: { amount: "10.00" } });
    expect(moved()).toEqual(["charge 4900", "refund 1000"]);
  });

  it("is given back once through lost answers", async () => {
    const charge = await world.stripe().charges.create({ ...CHARGE }, { spend: SPEND });
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /refunds$/ }, times: 2 });
    await refund({ charge: charge.id });
    await refund({ charge: charge.id });
    expect(moved()).toEqual(["charge 4900", "refund 4900"]);
  });

  it("is reversed from a transfer, and noted on an invoice", async () => {
    const transfer = await world
      .stripe()
      .transfers.create({ amount: 2000, currency: "usd", destination: "acct_2" }, { spend: SPEND });
    const reversal = { spend: { ...SPEND, purpose: "reversal" } };
    await world.stripe().transfers.createReversal(transfer.id, { amount: 500 }, reversal);
    expect(world.plane.authorization(1)).toMatchObject({ refundOf: transfer.id, committedAmount: { amount: "5.00" } });
    const invoice = await openInvoice();
    await world.plain.invoices.pay(invoice);
    const note = { spend: { ...SPEND, purpose: "note" } };
    await world.stripe().creditNotes.create({ invoice, amount: 700, refund_amount: 700 }, note);
    expect(world.plane.authorization(2)).toMatchObject({
      direction: Direction.REFUND,
      refundOf: invoice,
      committedAmount: { amount: "7.00" },
    });
  });
});

describe("money that is paid out", () => {
  it.each([
    ["a payout", () => world.stripe().payouts.create({ amount: 4900, currency: "usd" }, { spend: SPEND })],
    [
      "a transfer",
      () => world.stripe().transfers.create({ amount: 4900, currency: "usd", destination: "acct_2" }, { spend: SPEND }),
    ],
    [
      "a topup",
      () => world.stripe().topups.create({ amount: 4900, currency: "usd", description: "d" }, { spend: SPEND }),
    ],
  ])("is %s that happens once, through a lost answer and repeats", async (_, pay) => {
    world.simulator.fault({ mode: "drop_after_execute", match: { method: "POST" }, times: 1 });
    const first = await pay();
    expect((await pay()).id).toBe(first.id);
    expect(moved()).toHaveLength(1);
    expect([AuthorizationState.COMMITTED, AuthorizationState.HELD]).toContain(world.plane.authorization().state);
    expect(world.simulator.movements()[0]?.metadata["holdfast_authorization"]).toBe(
      world.plane.authorization().name.slice("authorizations/".length),
    );
  });

  it("is sent once in the second version of the API, and is in doubt when the answer is lost", async () => {
    const pay = (purpose: string) =>
      world.stripe().rawRequest(
        "POST",
        "/v2/money_management/outbound_payments",
        {
          from: { financial_account: "fa_1", currency: "usd" },
          to: { recipient: "acct_2" },
          amount: { value: 4900, currency: "usd" },
        },
        { spend: { ...SPEND, purpose } },
      );
    await pay("first");
    world.simulator.fault({ mode: "drop_after_execute", match: { path: /outbound_payments/ }, times: 1 });
    expect(await rejection(pay("second"))).toMatchObject({ code: "holdfast_spend_in_doubt" });
    expect(await rejection(pay("second"))).toMatchObject({ code: "holdfast_spend_in_doubt" });
    expect(moved()).toHaveLength(2);
  });
});

describe("what only Stripe prices", () => {
  it("needs a stated maximum", async () => {
    const usage = (spend: object) =>
      world
        .stripe()
        .billing.meterEvents.create(
          { event_name: "calls", payload: { stripe_customer_id: customer, value: "3" } },
          { spend: { ...SPEND, ...spend } },
        );
    expect(await rejection(usage({}))).toBeInstanceOf(SpendUnsupportedError);
    await usage({ upTo: UP_TO });
    expect(world.plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "60.00" },
    });
  });

  it("is let past the guard by name, and only what does not charge by itself", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain, { allow: ["POST /v1/tokens"] });
    await stripe.tokens.create({ pii: { id_number: "000000000" } });
    expect(() => holdfast.stripe(world.plain, { allow: ["POST /v1/charges"] })).toThrow(/moves money/);
    expect(() => holdfast.stripe(world.plain, { allow: ["POST /v1/nothing"] })).toThrow(/no Stripe write/);
  });
});

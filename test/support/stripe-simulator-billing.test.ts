import type Stripe from "stripe";
import { afterEach, beforeEach, expect, test } from "vitest";
import { clientOf, refusalOf } from "./stripe-simulator/client.ts";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";

let simulator: StripeSimulator;
let stripe: Stripe;

beforeEach(async () => {
  simulator = await startStripeSimulator();
  stripe = clientOf(simulator);
});
afterEach(() => simulator.close());

const hour = 3_600_000;
const customer = "cus_1";

function moved(): unknown[] {
  return simulator.movements().map(({ kind, amount, idempotency_key: key }) => [kind, amount, key]);
}

function amounts(): unknown[] {
  return simulator.movements().map(({ kind, amount }) => [kind, amount]);
}

async function openInvoice(amount = 1200, params: Partial<Stripe.InvoiceCreateParams> = {}): Promise<Stripe.Invoice> {
  const { id } = await stripe.invoices.create({ customer, ...params });
  await stripe.invoiceItems.create({ customer, invoice: id, amount, currency: "usd" });
  return stripe.invoices.finalizeInvoice(id);
}

test("an invoice moves nothing until it is paid, and is paid once", async () => {
  const draft = await stripe.invoices.create({ customer, metadata: { holdfast_authorization: "auth_1" } });
  await stripe.invoiceItems.create({ customer, invoice: draft.id, amount: 700, currency: "usd" });
  await stripe.invoices.addLines(draft.id, { lines: [{ amount: 500, description: "More" }] });
  const lines = (await stripe.invoices.retrieve(draft.id)).lines.data;
  await stripe.invoices.updateLines(draft.id, { lines: [{ id: lines[1]?.id ?? "", amount: 600 }] });
  expect(await stripe.invoices.retrieve(draft.id)).toMatchObject({ status: "draft", total: 1300, amount_due: 1300 });
  expect((await stripe.invoices.finalizeInvoice(draft.id)).status).toBe("open");
  expect((await refusalOf(stripe.invoiceItems.create({ customer, invoice: draft.id, amount: 1 }))).code).toBe(
    "invoice_not_editable",
  );
  expect(moved()).toEqual([]);
  const paid = await stripe.invoices.pay(draft.id, {}, { idempotencyKey: "pay-1" });
  expect(paid).toMatchObject({ status: "paid", amount_paid: 1300, amount_remaining: 0 });
  const intent = paid.payments?.data[0]?.payment.payment_intent as string;
  expect(await stripe.paymentIntents.retrieve(intent)).toMatchObject({ status: "succeeded", amount_received: 1300 });
  expect((await refusalOf(stripe.invoices.pay(draft.id))).code).toBe("invoice_already_paid");
  expect(simulator.movements()).toMatchObject([
    { kind: "charge", amount: 1300, customer, cause: draft.id, idempotency_key: "pay-1", payment_intent: intent },
  ]);
  expect(simulator.movements()[0]?.metadata).toEqual({ holdfast_authorization: "auth_1" });
  const [event] = (await stripe.events.list({ type: "invoice.paid" })).data;
  expect(event?.request?.idempotency_key).toBe("pay-1");
  expect((await stripe.invoicePayments.list({ invoice: draft.id })).data).toMatchObject([{ status: "paid" }]);
});

test("a declined invoice stays open for another card", async () => {
  const { id } = await openInvoice();
  const error = await refusalOf(stripe.invoices.pay(id, { payment_method: "pm_card_chargeDeclined" }));
  expect(error).toMatchObject({ statusCode: 402, code: "card_declined" });
  expect(await stripe.invoices.retrieve(id)).toMatchObject({ status: "open", attempt_count: 1 });
  const asked = await refusalOf(stripe.invoices.pay(id, { payment_method: "pm_card_authenticationRequired" }));
  expect(asked.code).toBe("invoice_payment_intent_requires_action");
  simulator.confirmFromBrowser((asked.payment_intent as Stripe.PaymentIntent).id);
  expect(await stripe.invoices.retrieve(id)).toMatchObject({ status: "paid" });
  expect(moved()).toEqual([["charge", 1200, null]]);
});

test("void, uncollectible, deleted and out of band move nothing", async () => {
  const voided = await openInvoice();
  expect((await stripe.invoices.voidInvoice(voided.id)).status).toBe("void");
  expect((await refusalOf(stripe.invoices.pay(voided.id))).code).toBe("invoice_not_payable");
  const lost = await openInvoice();
  expect((await stripe.invoices.markUncollectible(lost.id)).status).toBe("uncollectible");
  const outside = await openInvoice();
  expect(await stripe.invoices.pay(outside.id, { paid_out_of_band: true })).toMatchObject({ status: "paid" });
  const draft = await stripe.invoices.create({ customer });
  expect(await stripe.invoices.del(draft.id)).toMatchObject({ deleted: true });
  expect(moved()).toEqual([]);
});

test("Stripe finalizes and charges an advancing invoice by itself, an hour later", async () => {
  const { id } = await stripe.invoices.create({ customer, auto_advance: true });
  await stripe.invoiceItems.create({ customer, invoice: id, amount: 300, currency: "usd" });
  simulator.advance(hour - 60_000);
  expect((await stripe.invoices.retrieve(id)).status).toBe("draft");
  simulator.advance(60_000);
  expect((await stripe.invoices.retrieve(id)).status).toBe("paid");
  const second = await openInvoice(400);
  await stripe.invoices.update(second.id, { auto_advance: true });
  const third = await openInvoice(500);
  simulator.advance(2 * hour);
  expect((await stripe.invoices.retrieve(third.id)).status).toBe("open");
  expect(moved()).toEqual([
    ["charge", 300, null],
    ["charge", 400, null],
  ]);
});

test("what Stripe charges by itself is tried again after a decline, until it is paid or void", async () => {
  const params = { auto_advance: true, default_payment_method: "pm_card_chargeDeclined" } as const;
  const first = await openInvoice(300, params);
  const second = await openInvoice(400, params);
  simulator.advance(2 * hour);
  expect(await stripe.invoices.retrieve(first.id)).toMatchObject({ status: "open", attempt_count: 1 });
  await stripe.invoices.voidInvoice(second.id);
  await stripe.customers.create({ email: "a@example.com" });
  await stripe.invoices.pay(first.id, { payment_method: "pm_card_visa" });
  simulator.advance(90 * 24 * hour);
  expect(amounts()).toEqual([["charge", 300]]);
});

test("a customer's credit pays first, and a preview moves nothing", async () => {
  const { id: owner } = await stripe.customers.create({ email: "b@example.com" });
  await stripe.customers.createBalanceTransaction(owner, { amount: -500, currency: "usd" });
  const preview = await stripe.invoices.createPreview({ customer: owner, invoice_items: [{ amount: 900 }] });
  expect(preview.total).toBe(900);
  const { id } = await stripe.invoices.create({ customer: owner });
  await stripe.invoiceItems.create({ customer: owner, invoice: id, amount: 800, currency: "usd" });
  expect(await stripe.invoices.pay(id)).toMatchObject({ status: "paid", amount_due: 300, starting_balance: -500 });
  expect(await stripe.customers.retrieve(owner)).toMatchObject({ balance: 0 });
  expect(amounts()).toEqual([
    ["credit", 500],
    ["charge", 300],
  ]);
});

test("a credit note lowers an open invoice, and gives back a paid one", async () => {
  const { id } = await openInvoice(1000);
  const note = await stripe.creditNotes.create({ invoice: id, amount: 300 });
  expect(await stripe.invoices.retrieve(id)).toMatchObject({ amount_remaining: 700 });
  expect(await stripe.creditNotes.voidCreditNote(note.id)).toMatchObject({ status: "void" });
  await stripe.creditNotes.create({ invoice: id, amount: 100 });
  await stripe.invoices.pay(id);
  const parts = { invoice: id, amount: 600, refund_amount: 400, credit_amount: 150, out_of_band_amount: 50 };
  expect(await stripe.creditNotes.preview(parts)).toMatchObject({ amount: 600 });
  expect(await stripe.creditNotes.create(parts)).toMatchObject({
    type: "post_payment",
    refunds: [{ amount_refunded: 400 }],
  });
  expect(
    (await refusalOf(stripe.creditNotes.create({ invoice: id, amount: 401, refund_amount: 401 }))).statusCode,
  ).toBe(400);
  expect(amounts()).toEqual([
    ["charge", 900],
    ["refund", 400],
    ["credit", 150],
  ]);
});

async function monthly(amount: number): Promise<string> {
  const price = await stripe.prices.create({
    currency: "usd",
    unit_amount: amount,
    recurring: { interval: "month" },
    product_data: { name: "Plan" },
  });
  return price.id;
}

test("a subscription charges at once, renews by itself and ends", async () => {
  const price = await monthly(1000);
  const subscription = await stripe.subscriptions.create(
    { customer, items: [{ price, quantity: 2 }], metadata: { holdfast_authorization: "auth_2" } },
    { idempotencyKey: "sub-1" },
  );
  expect(subscription).toMatchObject({ status: "active", items: { data: [{ quantity: 2 }] } });
  expect(simulator.movements()[0]).toMatchObject({ cause: subscription.latest_invoice, idempotency_key: "sub-1" });
  expect(simulator.movements()[0]?.metadata).toEqual({ holdfast_authorization: "auth_2" });
  simulator.advance(32 * 24 * hour);
  expect(moved()).toEqual([
    ["charge", 2000, "sub-1"],
    ["charge", 2000, null],
  ]);
  await stripe.subscriptions.update(subscription.id, { cancel_at_period_end: true });
  simulator.advance(64 * 24 * hour);
  expect(await stripe.subscriptions.retrieve(subscription.id)).toMatchObject({ status: "canceled" });
  expect((await stripe.subscriptions.list({ customer })).data).toEqual([]);
  expect((await stripe.subscriptions.list({ customer, status: "all" })).data).toHaveLength(1);
  expect(amounts()).toHaveLength(2);
});

test("payment_behavior decides what a first decline leaves", async () => {
  const price = await monthly(1000);
  const order = { customer, items: [{ price }], default_payment_method: "pm_card_chargeDeclined" };
  expect(await stripe.subscriptions.create(order)).toMatchObject({ status: "incomplete" });
  const strict = stripe.subscriptions.create({ ...order, payment_behavior: "error_if_incomplete" });
  expect((await refusalOf(strict)).statusCode).toBe(402);
  const waiting = await stripe.subscriptions.create({
    customer,
    items: [{ price }],
    payment_behavior: "default_incomplete",
    expand: ["latest_invoice.payments.data.payment.payment_intent"],
  });
  expect(waiting.status).toBe("incomplete");
  expect(amounts()).toEqual([]);
  const invoice = waiting.latest_invoice as Stripe.Invoice;
  const intent = invoice.payments?.data[0]?.payment.payment_intent as Stripe.PaymentIntent;
  simulator.confirmFromBrowser(intent.id, { paymentMethod: "pm_card_visa" });
  expect(await stripe.subscriptions.retrieve(waiting.id)).toMatchObject({ status: "active" });
  expect(amounts()).toEqual([["charge", 1000]]);
  expect((await stripe.subscriptions.list({ status: "all" })).data).toHaveLength(2);
});

test("a change of plan charges the difference at once only when it is asked to", async () => {
  const [small, large] = [await monthly(1000), await monthly(3000)];
  const { id, items } = await stripe.subscriptions.create({ customer, items: [{ price: small }] });
  const item = items.data[0]?.id ?? "";
  await stripe.subscriptions.update(id, { items: [{ id: item, price: large }], proration_behavior: "always_invoice" });
  expect(amounts().at(-1)).toMatchObject(["charge", expect.any(Number)]);
  const difference = (simulator.movements()[1]?.amount ?? 0) / 2000;
  expect(difference).toBeGreaterThan(0.99);
  await stripe.subscriptionItems.update(item, { quantity: 2 });
  await stripe.subscriptionItems.create({ subscription: id, price: small, proration_behavior: "none" });
  expect(amounts()).toHaveLength(2);
  await stripe.subscriptions.cancel(id, { invoice_now: true });
  expect((simulator.movements()[2]?.amount ?? 0) / 3000).toBeGreaterThan(0.99);
  expect((await refusalOf(stripe.subscriptions.update(id, { description: "x" }))).code).toBe("resource_missing");
});

test("a refused change leaves the subscription as it was", async () => {
  const [small, large] = [await monthly(1000), await monthly(3000)];
  const { id, items } = await stripe.subscriptions.create({ customer, items: [{ price: small }] });
  simulator.fault({ mode: "declined_402", match: { path: "/v1/subscriptions/" } });
  const change = stripe.subscriptions.update(id, {
    items: [{ id: items.data[0]?.id ?? "", price: large }],
    proration_behavior: "always_invoice",
    payment_behavior: "error_if_incomplete",
  });
  expect((await refusalOf(change)).statusCode).toBe(402);
  expect((await stripe.subscriptions.retrieve(id)).items.data[0]?.price.id).toBe(small);
  expect(amounts()).toEqual([["charge", 1000]]);
});

test("a trial is free until it ends; a paused subscription charges when it resumes", async () => {
  const price = await monthly(1000);
  const trial = await stripe.subscriptions.create({ customer, items: [{ price }], trial_period_days: 7 });
  expect(trial.status).toBe("trialing");
  expect(amounts()).toEqual([]);
  simulator.advance(8 * 24 * hour);
  expect(amounts()).toEqual([["charge", 1000]]);
  await stripe.rawRequest("POST", `/v1/subscriptions/${trial.id}/pause`, {});
  simulator.advance(60 * 24 * hour);
  expect(amounts()).toHaveLength(1);
  expect(await stripe.subscriptions.resume(trial.id)).toMatchObject({ status: "active" });
  expect(amounts()).toHaveLength(2);
});

test("a schedule begins its subscription on its date, and ends it", async () => {
  const price = await monthly(1000);
  const start = Math.floor(simulator.now() / 1000) + 86_400;
  const schedule = await stripe.subscriptionSchedules.create({
    customer,
    start_date: start,
    phases: [{ items: [{ price }] }],
  });
  expect(schedule).toMatchObject({ status: "not_started", subscription: null });
  simulator.advance(25 * hour);
  expect(await stripe.subscriptionSchedules.retrieve(schedule.id)).toMatchObject({ status: "active" });
  expect(amounts()).toEqual([["charge", 1000]]);
  await stripe.subscriptionSchedules.cancel(schedule.id, { invoice_now: false, prorate: false });
  expect((await stripe.subscriptions.list({ status: "canceled" })).data).toHaveLength(1);
  const now = await stripe.subscriptionSchedules.create({
    customer,
    start_date: "now",
    phases: [{ items: [{ price }] }],
  });
  expect(await stripe.subscriptionSchedules.release(now.id)).toMatchObject({ status: "released" });
  expect(amounts()).toHaveLength(2);
});

test("an accepted quote begins a subscription, or drafts an invoice", async () => {
  const price = await monthly(1000);
  const { id, amount_total: total } = await stripe.quotes.create({ customer, line_items: [{ price, quantity: 3 }] });
  expect(total).toBe(3000);
  expect((await refusalOf(stripe.quotes.accept(id))).statusCode).toBe(400);
  await stripe.quotes.finalizeQuote(id);
  expect(await stripe.quotes.accept(id)).toMatchObject({ status: "accepted", subscription: expect.any(String) });
  const data = { currency: "usd", product: "prod_1", unit_amount: 50 };
  const once = await stripe.quotes.create({ customer, line_items: [{ price_data: data }] });
  await stripe.quotes.finalizeQuote(once.id);
  const accepted = await stripe.quotes.accept(once.id);
  expect(await stripe.invoices.retrieve(accepted.invoice as string)).toMatchObject({ status: "draft", total: 50 });
  expect(amounts()).toEqual([["charge", 3000]]);
});

test("a new card makes Stripe charge what is past due", async () => {
  const price = await monthly(1000);
  const { id: owner } = await stripe.customers.create({ source: "tok_visa" });
  const { id } = await stripe.subscriptions.create({ customer: owner, items: [{ price }] });
  await stripe.customers.update(owner, { source: "tok_chargeDeclined" });
  simulator.advance(32 * 24 * hour);
  expect(await stripe.subscriptions.retrieve(id)).toMatchObject({ status: "past_due" });
  expect(amounts()).toHaveLength(1);
  await stripe.customers.update(owner, { source: "tok_visa" }, { idempotencyKey: "card-1" });
  expect(moved().at(-1)).toEqual(["charge", 1000, "card-1"]);
  expect(await stripe.subscriptions.retrieve(id)).toMatchObject({ status: "active" });
});

test("search lags behind for every kind that can be searched", async () => {
  await stripe.customers.create({ email: "c@example.com", metadata: { a: "b" } });
  const query = "metadata['a']:'b' AND email:'c@example.com'";
  expect((await stripe.customers.search({ query })).data).toEqual([]);
  simulator.advance(2 * 60_000);
  expect((await stripe.customers.search({ query })).data).toHaveLength(1);
  expect((await stripe.invoices.search({ query: "customer:'cus_1'" })).data).toEqual([]);
});

test("usage with an identifier that was seen is refused for a day", async () => {
  const usage = { event_name: "calls", payload: { stripe_customer_id: customer, value: "1" }, identifier: "u-1" };
  expect(await stripe.billing.meterEvents.create(usage)).toMatchObject({ identifier: "u-1", event_name: "calls" });
  expect((await refusalOf(stripe.billing.meterEvents.create(usage))).message).toMatch(/already exists/);
  simulator.advance(25 * hour);
  await stripe.billing.meterEvents.create(usage);
  await stripe.v2.billing.meterEvents.create(usage);
  expect((await refusalOf(stripe.v2.billing.meterEvents.create(usage))).statusCode).toBe(400);
  expect(amounts()).toEqual([]);
});

test("what belongs to a customer, a subscription or an invoice can be listed", async () => {
  const price = await monthly(1000);
  const { id, latest_invoice: latest } = await stripe.subscriptions.create({ customer, items: [{ price }] });
  await stripe.subscriptions.create({ customer: "cus_2", items: [{ price }] });
  const item = await stripe.invoiceItems.create({ customer, amount: 5, currency: "usd" });
  expect((await stripe.invoices.list({ subscription: id })).data.map((invoice) => invoice.id)).toEqual([latest]);
  expect((await stripe.invoices.list({ customer: "cus_2", status: "paid" })).data).toHaveLength(1);
  expect((await stripe.invoiceItems.list({ pending: true })).data.map((pending) => pending.id)).toEqual([item.id]);
  expect((await stripe.subscriptionItems.list({ subscription: id })).data).toHaveLength(1);
  expect((await stripe.invoices.listLineItems(latest as string)).data).toMatchObject([{ amount: 1000 }]);
  expect((await stripe.charges.list({ customer })).data).toHaveLength(1);
  expect((await stripe.invoices.list({ created: { gt: simulator.now() } })).data).toEqual([]);
});

import type Stripe from "stripe";
import { afterEach, beforeEach, expect, test } from "vitest";
import { clientOf } from "./stripe-simulator/client.ts";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";

let simulator: StripeSimulator;
let stripe: Stripe;

beforeEach(async () => {
  simulator = await startStripeSimulator();
  stripe = clientOf(simulator);
});
afterEach(() => simulator.close());

type Options = Stripe.RequestOptions;
type Send = (options: Options) => Promise<unknown>;

const customer = "cus_1";
const money = { amount: 500, currency: "usd" } as const;

async function heldIntent(): Promise<string> {
  const order = { ...money, payment_method: "pm_card_visa", confirm: true, capture_method: "manual" } as const;
  return (await stripe.paymentIntents.create(order)).id;
}

async function openInvoice(): Promise<string> {
  const { id } = await stripe.invoices.create({ customer });
  await stripe.invoiceItems.create({ ...money, customer, invoice: id });
  await stripe.invoices.finalizeInvoice(id);
  return id;
}

async function paidCharge(): Promise<string> {
  return (await stripe.charges.create({ ...money, source: "tok_visa" })).id;
}

async function monthly(): Promise<string> {
  const recurring = { interval: "month" } as const;
  return (await stripe.prices.create({ currency: "usd", unit_amount: 500, recurring, product: "prod_1" })).id;
}

/** What has to be there, and then the call that moves money. */
const calls: readonly (readonly [string, () => Promise<Send>])[] = [
  [
    "capture of an intent",
    async () => {
      const id = await heldIntent();
      return (options) => stripe.paymentIntents.capture(id, {}, options);
    },
  ],
  [
    "payment of an invoice",
    async () => {
      const id = await openInvoice();
      return (options) => stripe.invoices.pay(id, {}, options);
    },
  ],
  [
    "subscription",
    async () => {
      const price = await monthly();
      return (options) => stripe.subscriptions.create({ customer, items: [{ price }] }, options);
    },
  ],
  [
    "refund",
    async () => {
      const charge = await paidCharge();
      return (options) => stripe.refunds.create({ charge }, options);
    },
  ],
  ["transfer", async () => (options) => stripe.transfers.create({ ...money, destination: "acct_1" }, options)],
  ["payout", async () => (options) => stripe.payouts.create(money, options)],
  ["topup", async () => (options) => stripe.topups.create(money, options)],
  [
    "credit",
    async () => (options) => stripe.customers.createBalanceTransaction(customer, { ...money, amount: -5 }, options),
  ],
  [
    "outbound payment",
    async () => (options) => stripe.treasury.outboundPayments.create({ ...money, financial_account: "fa_1" }, options),
  ],
  ["climate order", async () => (options) => stripe.climate.orders.create({ ...money, product: "climsku_1" }, options)],
];

test.each(calls)("%s: a lost answer is replayed under its key and moves nothing more", async (_name, prepare) => {
  const send = await prepare();
  const before = simulator.movements().length;
  simulator.fault({ mode: "drop_after_execute", times: 2 });
  await expect(send({ idempotencyKey: "lost" })).rejects.toMatchObject({ type: "StripeConnectionError" });
  await send({ idempotencyKey: "lost" });
  expect(simulator.movements().slice(before)).toMatchObject([{ idempotency_key: "lost" }]);
  expect(simulator.requests().filter(({ key, executed }) => key === "lost" && executed)).toHaveLength(1);
});

test.each(calls)("%s: what fails before it is executed moves nothing", async (_name, prepare) => {
  const send = await prepare();
  const before = simulator.movements().length;
  for (const mode of ["drop_before_execute", "rate_limit_429", "html_502"] as const) {
    simulator.fault({ mode, times: 2 });
    await expect(send({ idempotencyKey: "never" })).rejects.toThrow();
    simulator.clearFaults();
  }
  expect(simulator.movements()).toHaveLength(before);
  await send({ idempotencyKey: "never" });
  expect(simulator.movements()).toHaveLength(before + 1);
});

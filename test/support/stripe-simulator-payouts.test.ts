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

const day = 86_400_000;

function moved(): unknown[] {
  return simulator.movements().map(({ kind, amount, currency }) => [kind, amount, currency]);
}

test("a transfer takes the amount of its charge, and is reversed in parts", async () => {
  const charge = await stripe.charges.create({ amount: 900, currency: "eur", source: "tok_visa" });
  const transfer = await stripe.transfers.create(
    {
      currency: "eur",
      destination: "acct_other",
      source_transaction: charge.id,
      metadata: { holdfast_authorization: "a" },
    },
    { idempotencyKey: "t1" },
  );
  expect(transfer).toMatchObject({ amount: 900, destination: "acct_other" });
  expect(simulator.movements()[1]).toMatchObject({
    kind: "transfer",
    id: transfer.id,
    idempotency_key: "t1",
    metadata: { holdfast_authorization: "a" },
  });
  expect(await stripe.transfers.createReversal(transfer.id, { amount: 400 })).toMatchObject({ transfer: transfer.id });
  expect((await refusalOf(stripe.transfers.createReversal(transfer.id, { amount: 501 }))).statusCode).toBe(400);
  expect(await stripe.transfers.createReversal(transfer.id)).toMatchObject({ amount: 500 });
  expect((await stripe.transfers.listReversals(transfer.id)).data).toHaveLength(2);
  expect((await stripe.transfers.list({ destination: "acct_other" })).data).toMatchObject([{ reversed: true }]);
  expect((await stripe.transfers.list({ destination: "acct_none" })).data).toEqual([]);
  expect(moved().slice(1)).toEqual([
    ["transfer", 900, "eur"],
    ["transfer_reversal", 400, "eur"],
    ["transfer_reversal", 500, "eur"],
  ]);
});

test("a payout is canceled while it is pending and reversed when it is paid", async () => {
  const first = await stripe.payouts.create({ amount: 100, currency: "usd" });
  expect(await stripe.payouts.cancel(first.id)).toMatchObject({ status: "canceled" });
  const second = await stripe.payouts.create({ amount: 200, currency: "usd" });
  expect((await refusalOf(stripe.payouts.reverse(second.id))).statusCode).toBe(400);
  simulator.advance(3 * day);
  expect(await stripe.payouts.retrieve(second.id)).toMatchObject({ status: "paid" });
  expect((await refusalOf(stripe.payouts.cancel(second.id))).statusCode).toBe(400);
  expect(await stripe.payouts.reverse(second.id)).toMatchObject({ amount: -200, original_payout: second.id });
  const third = await stripe.payouts.create({ amount: 300, currency: "usd" });
  expect(simulator.settlePayout(third.id, "failed")).toMatchObject({ status: "failed" });
  expect((await refusalOf(stripe.payouts.create({ amount: 150, currency: "huf" }))).param).toBe("amount");
  expect((await stripe.payouts.list({ status: "paid" })).data.map(({ id }) => id)).toEqual([second.id]);
  expect(moved()).toEqual([
    ["payout", 100, "usd"],
    ["payout_return", 100, "usd"],
    ["payout", 200, "usd"],
    ["payout_return", 200, "usd"],
    ["payout", 300, "usd"],
    ["payout_return", 300, "usd"],
  ]);
});

test("a topup is canceled while it is pending", async () => {
  const first = await stripe.topups.create({ amount: 100, currency: "usd" });
  expect(await stripe.topups.cancel(first.id)).toMatchObject({ status: "canceled" });
  const second = await stripe.topups.create({ amount: 200, currency: "usd" });
  simulator.settleTopup(second.id, "succeeded");
  expect((await refusalOf(stripe.topups.cancel(second.id))).statusCode).toBe(400);
  expect((await stripe.topups.list({ amount: { gte: 150 } })).data.map(({ id }) => id)).toEqual([second.id]);
  expect(moved()).toEqual([
    ["topup", 100, "usd"],
    ["topup_return", 100, "usd"],
    ["topup", 200, "usd"],
  ]);
});

test("treasury, issuing, climate and credits move what they say", async () => {
  const treasury = { amount: 10, currency: "usd", financial_account: "fa_1" };
  const payment = await stripe.treasury.outboundPayments.create({ ...treasury, customer: "cus_1" });
  expect(await stripe.treasury.outboundPayments.cancel(payment.id)).toMatchObject({ status: "canceled" });
  await stripe.treasury.outboundTransfers.create(treasury);
  await stripe.treasury.inboundTransfers.create({ ...treasury, origin_payment_method: "pm_1" });
  const asked = await stripe.testHelpers.issuing.authorizations.create({ card: "ic_1", amount: 70 });
  expect(await stripe.issuing.authorizations.approve(asked.id, { amount: 60 })).toMatchObject({ approved: true });
  expect((await refusalOf(stripe.issuing.authorizations.approve(asked.id))).statusCode).toBe(400);
  await stripe.climate.orders.create({ product: "climsku_1", amount: 20_000 });
  await stripe.customers.createBalanceTransaction("cus_1", { amount: -40, currency: "usd" });
  await stripe.billing.creditGrants.create({
    customer: "cus_1",
    category: "paid",
    amount: { type: "monetary", monetary: { value: 80, currency: "eur" } },
    applicability_config: { scope: { price_type: "metered" } },
  });
  expect(moved()).toEqual([
    ["payout", 10, "usd"],
    ["payout_return", 10, "usd"],
    ["payout", 10, "usd"],
    ["inbound_transfer", 10, "usd"],
    ["issuing_approval", 60, "usd"],
    ["charge", 20_000, "usd"],
    ["credit", 40, "usd"],
    ["credit", 80, "eur"],
  ]);
});

const outbound = {
  amount: { value: 500, currency: "usd" },
  from: { financial_account: "fa_1", currency: "usd" },
  to: { recipient: "acct_1" },
};

test("a v2 success is replayed for 30 days, as the object is by then", async () => {
  const pay = () => stripe.v2.moneyManagement.outboundPayments.create(outbound, { idempotencyKey: "v2-1" });
  const first = await pay();
  expect(first).toMatchObject({ object: "v2.money_management.outbound_payment", status: "processing" });
  await stripe.v2.moneyManagement.outboundPayments.cancel(first.id);
  simulator.advance(29 * day);
  expect(await pay()).toMatchObject({ id: first.id, status: "canceled" });
  simulator.advance(2 * day);
  expect((await pay()).id).not.toBe(first.id);
  expect(moved()).toEqual([
    ["payout", 500, "usd"],
    ["payout_return", 500, "usd"],
    ["payout", 500, "usd"],
  ]);
});

test("a v2 failure is executed again under the same key", async () => {
  const pay = () => stripe.v2.moneyManagement.outboundPayments.create(outbound, { idempotencyKey: "v2-2" });
  simulator.fault({ mode: "error_500_after" });
  expect((await refusalOf(pay())).statusCode).toBe(500);
  await pay();
  expect(moved()).toHaveLength(2);
  const other = { ...outbound, amount: { value: 501, currency: "usd" } };
  const misuse = stripe.v2.moneyManagement.outboundPayments.create(other, { idempotencyKey: "v2-2" });
  expect((await refusalOf(misuse)).statusCode).toBe(400);
});

test("a payout intent moves nothing before it is confirmed, once; v2 lists have pages", async () => {
  const intents = stripe.v2.moneyManagement.payoutIntents;
  const { id } = await intents.create({ ...outbound, confirmation_method: "manual" });
  const path = `/v2/money_management/payout_intents/${id}`;
  await stripe.rawRequest("POST", path, { amount: { value: 600, currency: "usd" } });
  expect(moved()).toEqual([]);
  expect(await intents.confirm(id)).toMatchObject({
    status: "processing",
    latest_payout: { type: "outbound_payment" },
  });
  await expect(intents.confirm(id)).rejects.toMatchObject({ statusCode: 400 });
  const canceled = await intents.create({ ...outbound, confirmation_method: "manual" });
  expect(await intents.cancel(canceled.id)).toMatchObject({ status: "canceled" });
  await stripe.v2.moneyManagement.inboundTransfers.create({
    amount: { value: 7, currency: "usd" },
    from: { currency: "usd", payment_method: "pm_1" },
    to: { currency: "usd", financial_account: "fa_1" },
  });
  expect(moved()).toEqual([
    ["payout", 600, "usd"],
    ["inbound_transfer", 7, "usd"],
  ]);
  const listed: string[] = [];
  for await (const intent of intents.list({ limit: 1 })) listed.push(intent.id);
  expect(listed).toEqual([canceled.id, id]);
});

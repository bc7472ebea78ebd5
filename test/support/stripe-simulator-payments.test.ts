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

const order = { amount: 5000, currency: "usd", customer: "cus_1" } as const;
const card = { ...order, payment_method: "pm_card_visa", confirm: true } as const;

function amounts(): unknown[] {
  return simulator.movements().map(({ kind, amount }) => [kind, amount]);
}

function moved(): unknown[] {
  return simulator.movements().map(({ kind, amount, idempotency_key: key }) => [kind, amount, key]);
}

test("a manual capture moves money in as many parts as it is captured in", async () => {
  const { id } = await stripe.paymentIntents.create({ ...card, capture_method: "manual" });
  expect(moved()).toEqual([]);
  const first = await stripe.paymentIntents.capture(
    id,
    { amount_to_capture: 2000, final_capture: false },
    { idempotencyKey: "c1" },
  );
  expect(first).toMatchObject({ status: "requires_capture", amount_capturable: 3000, amount_received: 2000 });
  expect(await refusalOf(stripe.paymentIntents.capture(id, { amount_to_capture: 3001 }))).toMatchObject({
    code: "amount_too_large",
  });
  const last = await stripe.paymentIntents.capture(id, { amount_to_capture: 1000 }, { idempotencyKey: "c2" });
  expect(last).toMatchObject({ status: "succeeded", amount_capturable: 0, amount_received: 3000 });
  expect(moved()).toEqual([
    ["capture", 2000, "c1"],
    ["capture", 1000, "c2"],
  ]);
  expect((await refusalOf(stripe.paymentIntents.capture(id))).code).toBe("payment_intent_unexpected_state");
});

test("what nobody captures within a week is given back", async () => {
  const { id } = await stripe.paymentIntents.create({ ...card, capture_method: "manual" });
  const held = await stripe.charges.create({ ...order, source: "tok_visa", capture: false });
  simulator.advance(7 * 86_400_000);
  expect(await stripe.paymentIntents.retrieve(id)).toMatchObject({ status: "canceled", amount_capturable: 0 });
  expect((await refusalOf(stripe.paymentIntents.capture(id))).code).toBe("payment_intent_unexpected_state");
  expect((await refusalOf(stripe.charges.capture(held.id))).statusCode).toBe(400);
  expect(moved()).toEqual([]);
});

test("an increment names the new total; a decline leaves the old one", async () => {
  const { id } = await stripe.paymentIntents.create({ ...card, capture_method: "manual" });
  expect(await stripe.paymentIntents.incrementAuthorization(id, { amount: 7000 })).toMatchObject({
    amount: 7000,
    amount_capturable: 7000,
  });
  simulator.fault({ mode: "declined_402" });
  expect(await refusalOf(stripe.paymentIntents.incrementAuthorization(id, { amount: 9000 }))).toMatchObject({
    statusCode: 402,
  });
  expect((await refusalOf(stripe.paymentIntents.incrementAuthorization(id, { amount: 7000 }))).statusCode).toBe(400);
  expect(await stripe.paymentIntents.capture(id)).toMatchObject({ amount_received: 7000 });
  expect(moved()).toEqual([["capture", 7000, expect.any(String)]]);
  expect((await refusalOf(stripe.paymentIntents.incrementAuthorization(id, { amount: 8000 }))).code).toBe(
    "payment_intent_unexpected_state",
  );
});

test("an amount can be changed before, and confirmed differently", async () => {
  const { id } = await stripe.paymentIntents.create({ ...order, payment_method: "pm_card_visa" });
  expect(await stripe.paymentIntents.update(id, { amount: 6000 })).toMatchObject({ amount: 6000 });
  const confirmed = await stripe.rawRequest("POST", `/v1/payment_intents/${id}/confirm`, { amount_to_confirm: 4000 });
  expect(confirmed).toMatchObject({ status: "succeeded", amount_received: 4000 });
});

test("a customer who fails the bank's check leaves the intent waiting for another card", async () => {
  const { id, status } = await stripe.paymentIntents.create({
    ...card,
    payment_method: "pm_card_authenticationRequired",
  });
  expect(status).toBe("requires_action");
  expect(simulator.failFromBrowser(id)).toMatchObject({
    status: "requires_payment_method",
    last_payment_error: { code: "payment_intent_authentication_failure" },
  });
  expect(() => simulator.failFromBrowser(id)).toThrow(/not requires_action/);
  expect(moved()).toEqual([]);
});

test("cash of a bank transfer pays an intent in parts", async () => {
  await stripe.testHelpers.customers.fundCashBalance("cus_1", { amount: 6000, currency: "usd" });
  const { id } = await stripe.paymentIntents.create(order);
  expect(await stripe.paymentIntents.applyCustomerBalance(id, { amount: 2000 })).toMatchObject({
    amount_received: 2000,
  });
  expect(await stripe.paymentIntents.applyCustomerBalance(id)).toMatchObject({
    status: "succeeded",
    amount_received: 5000,
  });
  expect(await stripe.customers.retrieveCashBalance("cus_1")).toMatchObject({ available: { usd: 1000 } });
  const poor = await stripe.paymentIntents.create({ ...order, customer: "cus_2" });
  expect((await refusalOf(stripe.paymentIntents.applyCustomerBalance(poor.id))).statusCode).toBe(400);
  expect(amounts()).toEqual([
    ["charge", 2000],
    ["charge", 3000],
  ]);
});

test("a bank account is verified by its small deposits, and debited when the bank says so", async () => {
  const { id, next_action: action } = await stripe.paymentIntents.create({
    ...card,
    payment_method: "pm_usBankAccount_microdeposits",
  });
  expect(action?.type).toBe("verify_with_microdeposits");
  expect((await refusalOf(stripe.paymentIntents.verifyMicrodeposits(id, { amounts: [1, 2] }))).code).toMatch(
    /mismatch/,
  );
  expect((await stripe.paymentIntents.verifyMicrodeposits(id, { amounts: [32, 45] })).status).toBe("processing");
  expect(moved()).toEqual([]);
  expect(simulator.settleProcessing(id, "succeeded").status).toBe("succeeded");
  expect(moved()).toEqual([["charge", 5000, null]]);
});

test("a refund without an amount is all that is left, by every path", async () => {
  const intent = await stripe.paymentIntents.create(card);
  const charge = intent.latest_charge as string;
  await stripe.refunds.create({ payment_intent: intent.id, amount: 1000 });
  await stripe.rawRequest("POST", `/v1/charges/${charge}/refunds`, { amount: 500 });
  expect(await stripe.rawRequest("POST", `/v1/charges/${charge}/refund`, { amount: 300 })).toMatchObject({
    object: "charge",
    amount_refunded: 1800,
  });
  expect(await stripe.refunds.create({ charge })).toMatchObject({ amount: 3200 });
  expect((await refusalOf(stripe.refunds.create({ charge }))).code).toBe("charge_already_refunded");
  expect(amounts()).toEqual([
    ["charge", 5000],
    ["refund", 1000],
    ["refund", 500],
    ["refund", 300],
    ["refund", 3200],
  ]);
});

test("a pending refund moves when the bank does, can be canceled, and a done one can come back", async () => {
  const { id } = await stripe.paymentIntents.create({ ...card, payment_method: "pm_card_pendingRefund" });
  const first = await stripe.refunds.create({ payment_intent: id, amount: 1000 });
  expect(first.status).toBe("pending");
  expect((await stripe.refunds.cancel(first.id)).status).toBe("canceled");
  const second = await stripe.refunds.create({ payment_intent: id });
  expect(second.amount).toBe(5000);
  expect(simulator.movements()).toHaveLength(1);
  simulator.settleRefund(second.id, "succeeded");
  expect((await refusalOf(stripe.refunds.cancel(second.id))).statusCode).toBe(400);
  simulator.settleRefund(second.id, "failed");
  expect((await stripe.refunds.retrieve(second.id)).status).toBe("failed");
  expect(moved()).toEqual([
    ["charge", 5000, expect.any(String)],
    ["refund", 5000, null],
    ["refund_return", 5000, null],
  ]);
});

test("a reader in a shop charges the intent, and says what the card said", async () => {
  const paid = await stripe.paymentIntents.create(order);
  const reader = await stripe.terminal.readers.processPaymentIntent("tmr_1", { payment_intent: paid.id });
  expect(reader.action).toMatchObject({ type: "process_payment_intent", status: "succeeded" });
  expect(await stripe.paymentIntents.retrieve(paid.id)).toMatchObject({ status: "succeeded" });
  const declined = await stripe.paymentIntents.create({ ...order, payment_method: "pm_card_chargeDeclined" });
  const other = await stripe.terminal.readers.processPaymentIntent("tmr_1", { payment_intent: declined.id });
  expect(other.action).toMatchObject({ status: "failed", failure_code: "card_declined" });
  const back = await stripe.terminal.readers.refundPayment("tmr_1", { payment_intent: paid.id, amount: 100 });
  expect(back.action).toMatchObject({ type: "refund_payment" });
  expect(amounts()).toEqual([
    ["charge", 5000],
    ["refund", 100],
  ]);
});

test("a dispute is conceded once", async () => {
  const { latest_charge: charge } = await stripe.paymentIntents.create({
    ...card,
    payment_method: "pm_card_createDispute",
  });
  const [dispute] = (await stripe.disputes.list({ charge: charge as string })).data;
  expect(dispute).toMatchObject({ status: "needs_response", amount: 5000 });
  expect(await stripe.disputes.close(dispute?.id ?? "")).toMatchObject({ status: "lost" });
  expect((await refusalOf(stripe.disputes.close(dispute?.id ?? ""))).statusCode).toBe(400);
});

test("an application fee is given back in parts", async () => {
  const charge = await stripe.charges.create({ ...order, source: "tok_visa", application_fee_amount: 500 });
  const fee = charge.application_fee as string;
  expect(await stripe.applicationFees.createRefund(fee, { amount: 200 })).toMatchObject({ object: "fee_refund", fee });
  expect(await stripe.applicationFees.createRefund(fee)).toMatchObject({ amount: 300 });
  expect((await refusalOf(stripe.applicationFees.createRefund(fee))).statusCode).toBe(400);
  expect(amounts()).toEqual([
    ["charge", 5000],
    ["refund", 200],
    ["refund", 300],
  ]);
});

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

const item = { price_data: { currency: "usd", unit_amount: 2000, product_data: { name: "Book" } }, quantity: 2 };

function session(params: Partial<Stripe.Checkout.SessionCreateParams> = {}): Promise<Stripe.Checkout.Session> {
  return stripe.checkout.sessions.create({ mode: "payment", line_items: [item], ...params });
}

function amounts(): unknown[] {
  return simulator.movements().map(({ kind, amount }) => [kind, amount]);
}

test("a page moves nothing until somebody pays, and is paid once", async () => {
  const open = await session({
    customer: "cus_1",
    metadata: { holdfast_authorization: "auth_1" },
    payment_intent_data: { metadata: { from: "page" } },
  });
  expect(open).toMatchObject({ status: "open", payment_status: "unpaid", amount_total: 4000, payment_intent: null });
  expect(amounts()).toEqual([]);
  expect(() => simulator.completeCheckout(open.id, { paymentMethod: "pm_card_chargeDeclined" })).toThrow(/declined/);
  expect(simulator.completeCheckout(open.id)).toMatchObject({ status: "complete", payment_status: "paid" });
  expect(() => simulator.completeCheckout(open.id)).toThrow(/complete/);
  expect((await refusalOf(stripe.checkout.sessions.expire(open.id))).statusCode).toBe(400);
  expect(simulator.movements()).toMatchObject([
    { kind: "charge", amount: 4000, customer: "cus_1", cause: open.id, idempotency_key: null },
  ]);
  expect(simulator.movements()[0]?.metadata).toEqual({ holdfast_authorization: "auth_1", from: "page" });
  const done = await stripe.checkout.sessions.retrieve(open.id, { expand: ["payment_intent"] });
  expect(done.payment_intent).toMatchObject({ status: "succeeded", amount_received: 4000 });
  expect(
    (await stripe.checkout.sessions.list({ payment_intent: (done.payment_intent as Stripe.PaymentIntent).id })).data,
  ).toHaveLength(1);
  expect((await stripe.checkout.sessions.listLineItems(open.id)).data).toMatchObject([{ quantity: 2 }]);
});

test("tax and discounts make a total that no caller computed", async () => {
  const coupon = await stripe.coupons.create({ percent_off: 25 });
  expect(await session({ automatic_tax: { enabled: true }, discounts: [{ coupon: coupon.id }] })).toMatchObject({
    amount_subtotal: 4000,
    amount_total: 3300,
    total_details: { amount_discount: 1000, amount_tax: 300 },
  });
});

test("an expired page is paid by nobody, whether it was told to expire or its time came", async () => {
  const first = await session();
  expect(await stripe.checkout.sessions.expire(first.id)).toMatchObject({ status: "expired", url: null });
  const second = await session({ expires_at: Math.floor(simulator.now() / 1000) + 3600 });
  const third = await session();
  simulator.advance(2 * 3_600_000);
  expect((await stripe.checkout.sessions.retrieve(second.id)).status).toBe("expired");
  expect(() => simulator.completeCheckout(first.id)).toThrow(/expired/);
  expect(() => simulator.completeCheckout(second.id)).toThrow(/expired/);
  simulator.advance(23 * 3_600_000);
  expect(() => simulator.completeCheckout(third.id)).toThrow(/expired/);
  expect((await refusalOf(session({ expires_at: Math.floor(simulator.now() / 1000) + 60 }))).param).toBe("expires_at");
  expect(amounts()).toEqual([]);
});

test("a bank debit completes the page before the money comes", async () => {
  const { id } = await session();
  const done = simulator.completeCheckout(id, { paymentMethod: "pm_processing" });
  expect(done).toMatchObject({ status: "complete", payment_status: "unpaid" });
  expect(amounts()).toEqual([]);
  simulator.settleProcessing(done.payment_intent ?? "", "succeeded");
  expect(await stripe.checkout.sessions.retrieve(id)).toMatchObject({ payment_status: "paid" });
  expect(amounts()).toEqual([["charge", 4000]]);
});

test("a page of a subscription begins it", async () => {
  const data = { ...item.price_data, recurring: { interval: "month" as const } };
  const { id } = await session({ mode: "subscription", line_items: [{ price_data: data, quantity: 1 }] });
  const done = simulator.completeCheckout(id);
  expect(await stripe.subscriptions.retrieve(done.subscription ?? "")).toMatchObject({ status: "active" });
  expect(amounts()).toEqual([["charge", 2000]]);
});

test("a link is paid as often as it allows", async () => {
  const { id } = await stripe.paymentLinks.create({
    line_items: [item],
    metadata: { holdfast_authorization: "auth_2" },
    restrictions: { completed_sessions: { limit: 2 } },
  });
  const paid = simulator.payLink(id, { customer: "cus_1" });
  expect(paid).toMatchObject({ status: "complete", payment_link: id, metadata: { holdfast_authorization: "auth_2" } });
  expect(() => simulator.payLink(id, { paymentMethod: "pm_card_chargeDeclined" })).toThrow(/declined/);
  simulator.payLink(id);
  expect(() => simulator.payLink(id)).toThrow(/no longer active/);
  expect(await stripe.paymentLinks.update(id, { restrictions: "" })).toMatchObject({ restrictions: null });
  simulator.payLink(id);
  await stripe.paymentLinks.update(id, { active: false });
  expect(() => simulator.payLink(id)).toThrow(/no longer active/);
  expect(simulator.movements().map(({ amount, cause }) => [amount, cause])).toEqual([
    [4000, id],
    [4000, id],
    [4000, id],
  ]);
  expect((await stripe.checkout.sessions.list({ payment_link: id, status: "complete" })).data).toHaveLength(3);
});

test("who is on the page of a link can pay when it was closed meanwhile, but not when it was used up", async () => {
  const { id } = await stripe.paymentLinks.create({
    line_items: [item],
    restrictions: { completed_sessions: { limit: 2 } },
  });
  const pages = [simulator.openLink(id), simulator.openLink(id), simulator.openLink(id)].map((page) => page.id);
  await stripe.paymentLinks.update(id, { active: false });
  expect(() => simulator.openLink(id)).toThrow(/no longer active/);
  expect(pages.slice(0, 2).map((page) => simulator.completeCheckout(page).status)).toEqual(["complete", "complete"]);
  expect(() => simulator.completeCheckout(pages[2] ?? "")).toThrow(/no longer active/);
  expect(amounts()).toHaveLength(2);
  await stripe.checkout.sessions.expire(pages[2] ?? "");
});

import { type Authorization, AuthorizationState, Direction, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { createHoldfast, type GuardedStripe, type Holdfast, SpendDeniedError } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

// What the SDK does with a vendor object in several calls, on a real server: each call is a client of its own.
let server: TestServer;
let simulator: StripeSimulator;
let token: string;
const opened: Holdfast[] = [];

beforeAll(async () => {
  server = await startTestServer();
  simulator = await startStripeSimulator();
  const allowedEndpoints = [
    "POST /v1/payment_intents",
    "POST /v1/payment_intents/:id/confirm",
    "POST /v1/charges",
    "POST /v1/refunds",
    "POST /v1/checkout/sessions",
    "POST /v1/invoices/:id/pay",
  ];
  token = await server.vaultKey("billing", { allowedEndpoints });
  await server.cap("spent", "100.00", { refundsRestoreHeadroom: true });
  await server.cap("refunded", "30.00", { direction: Direction.REFUND });
});
afterAll(async () => {
  await Promise.all(opened.map((holdfast) => holdfast.close()));
  await simulator.close();
  await server.close();
});

function plain(): Stripe {
  const { host, port } = simulator;
  return new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false });
}

function stripe(): GuardedStripe {
  const holdfast = createHoldfast({ baseUrl: "http://unused", vaultKey: token, transport: server.transport(token) });
  opened.push(holdfast);
  return holdfast.stripe(plain());
}

function spendOf(purpose: string) {
  return { customerId: "cust_1", billingPeriod: "2026-11", purpose };
}

async function authorization(purpose: string): Promise<Authorization> {
  const { authorizations } = await server.admin.listAuthorizations({ pageSize: 100 });
  const found = authorizations.find(({ spend }) => spend?.purpose === purpose);
  if (found === undefined) throw new Error(`no spend ${purpose}`);
  return found;
}

async function usage(cap: string) {
  const { usage: now } = await server.admin.getCap({ name: `caps/${cap}` });
  return { committed: now?.committed?.amount, held: now?.held?.amount };
}

const PAYMENT = { amount: 4900, currency: "usd", payment_method: "pm_card_visa", confirm: true } as const;

test("a raised and captured authorization is committed at the whole, and refunds give headroom back", async () => {
  const spend = spendOf("raised");
  const intent = await stripe().paymentIntents.create({ ...PAYMENT, capture_method: "manual" }, { spend });
  expect(await usage("spent")).toEqual({ committed: "0", held: "49" });
  await stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 6000 });
  expect(await usage("spent")).toEqual({ committed: "0", held: "60" });
  const tooMuch = stripe().paymentIntents.incrementAuthorization(intent.id, { amount: 10_100 });
  await expect(tooMuch).rejects.toBeInstanceOf(SpendDeniedError);
  await stripe().paymentIntents.capture(intent.id);
  expect(await usage("spent")).toEqual({ committed: "60", held: "0" });
  expect(await authorization("raised")).toMatchObject({ state: AuthorizationState.COMMITTED });

  const refund = { payment_intent: intent.id, amount: 2000 };
  await stripe().refunds.create(refund, { spend: spendOf("refund") });
  await stripe().refunds.create(refund, { spend: spendOf("refund") });
  expect(await usage("spent")).toEqual({ committed: "40", held: "0" });
  expect(await usage("refunded")).toEqual({ committed: "20", held: "0" });
  expect((await authorization("raised")).refundedAmount).toMatchObject({ amount: "20" });
  const second = stripe().refunds.create(refund, { spend: spendOf("second_refund") });
  await expect(second).rejects.toMatchObject({ denial: { cap: "caps/refunded" } });
  expect(simulator.movements().map(({ kind, amount }) => `${kind} ${amount}`)).toEqual(["capture 6000", "refund 2000"]);
});

test("a cancelled object gives its headroom back, whoever cancels it", async () => {
  const before = await usage("spent");
  const intent = await stripe().paymentIntents.create(
    { ...PAYMENT, amount: 1000, confirm: false },
    { spend: spendOf("cancelled") },
  );
  expect((await authorization("cancelled")).vendorState).toBe("requires_confirmation");
  await stripe().paymentIntents.cancel(intent.id);
  expect(await authorization("cancelled")).toMatchObject({
    state: AuthorizationState.VOIDED,
    voidEvidence: VoidEvidence.TOMBSTONE,
  });
  expect(await usage("spent")).toEqual(before);
});

test("an object that is followed is found, confirmed and committed by another process", async () => {
  const spend = spendOf("confirmed");
  const intent = await stripe().paymentIntents.create({ ...PAYMENT, amount: 1000, confirm: false }, { spend });
  expect((await stripe().paymentIntents.confirm(intent.id)).status).toBe("succeeded");
  expect((await stripe().paymentIntents.confirm(intent.id)).status).toBe("succeeded");
  expect(await authorization("confirmed")).toMatchObject({ state: AuthorizationState.COMMITTED });
});

test("a charge that is captured later, and a page, are followed and committed", async () => {
  const charge = await stripe().charges.create(
    { amount: 500, currency: "usd", source: "tok_visa", capture: false },
    { spend: spendOf("charge") },
  );
  expect(await authorization("charge")).toMatchObject({ state: AuthorizationState.HELD, vendorState: "uncaptured" });
  await stripe().charges.capture(charge.id);
  expect(await authorization("charge")).toMatchObject({ state: AuthorizationState.COMMITTED });

  const spend = { ...spendOf("page"), upTo: { amount: "10.00", currency: "usd" } };
  const price_data = { currency: "usd", unit_amount: 500, product_data: { name: "seat" } };
  const open = () =>
    stripe().checkout.sessions.create(
      { mode: "payment", success_url: "https://x.test", line_items: [{ quantity: 1, price_data }] },
      { spend },
    );
  const session = await open();
  expect((await open()).id).toBe(session.id);
  simulator.completeCheckout(session.id);
  expect((await open()).payment_status).toBe("paid");
  expect(await authorization("page")).toMatchObject({
    state: AuthorizationState.COMMITTED,
    committedAmount: { amount: "5" },
  });
});

test("a kept decline is continued at once with another card", async () => {
  const holdfast = createHoldfast({ baseUrl: "http://unused", vaultKey: token, transport: server.transport(token) });
  opened.push(holdfast);
  const pay = (payment_method: string) =>
    holdfast
      .stripe(plain(), { onDecline: "keep" })
      .paymentIntents.create({ ...PAYMENT, amount: 1000, payment_method }, { spend: spendOf("two_cards") });
  await expect(pay("pm_card_chargeDeclined")).rejects.toBeInstanceOf(Stripe.errors.StripeCardError);
  expect((await pay("pm_card_visa")).status).toBe("succeeded");
});

test("a revoked key captures nothing", async () => {
  const spend = spendOf("revoked");
  const intent = await stripe().paymentIntents.create(
    { ...PAYMENT, amount: 1000, capture_method: "manual" },
    { spend },
  );
  await server.admin.revokeVaultKey({ name: "vaultKeys/billing" });
  const before = simulator.movements().length;
  await expect(stripe().paymentIntents.capture(intent.id)).rejects.toMatchObject({
    denial: { rule: "VAULT_KEY_REVOKED" },
  });
  expect(simulator.movements()).toHaveLength(before);
  // What was granted may still be let go.
  await stripe().paymentIntents.cancel(intent.id);
  expect(await authorization("revoked")).toMatchObject({ state: AuthorizationState.VOIDED });
});

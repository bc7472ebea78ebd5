import { existsSync } from "node:fs";
import Stripe from "stripe";
import { afterEach, beforeEach, expect, test } from "vitest";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";
import { chargesPerSpend } from "./stripe-simulator/movements.ts";

let simulator: StripeSimulator;
let stripe: Stripe;

beforeEach(async () => {
  simulator = await startStripeSimulator();
  stripe = client();
});
afterEach(() => simulator.close());

function client(secret = "sk_test_1", to = simulator): Stripe {
  return new Stripe(secret, {
    host: to.host,
    port: to.port,
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
  });
}

/** The error a call ends with; fails when it succeeds. */
async function refusal(call: Promise<unknown>): Promise<Stripe.errors.StripeError> {
  const error: unknown = await call.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof Stripe.errors.StripeError)) throw new Error("The call was not refused.", { cause: error });
  return error;
}

const order = { amount: 4900, currency: "usd", customer: "cus_1" } as const;
const card = { ...order, payment_method: "pm_card_visa" } as const;

test("a charge moves money once and writes it down", async () => {
  const charge = await stripe.charges.create(
    { ...order, source: "tok_visa", metadata: { holdfast_authorization: "auth_1" } },
    { idempotencyKey: "key-1" },
  );
  expect(charge).toMatchObject({ object: "charge", amount: 4900, paid: true, captured: true, status: "succeeded" });
  expect(await stripe.charges.retrieve(charge.id)).toMatchObject({ id: charge.id, customer: "cus_1" });
  expect(simulator.movements()).toEqual([
    {
      at: expect.any(Number),
      kind: "charge",
      id: charge.id,
      amount: 4900,
      currency: "usd",
      customer: "cus_1",
      account: "acct_simulator",
      idempotency_key: "key-1",
      metadata: { holdfast_authorization: "auth_1" },
    },
  ]);
});

test("a declined charge answers 402, leaves a failed charge and moves nothing", async () => {
  const error = await refusal(stripe.charges.create({ ...order, source: "tok_chargeDeclinedInsufficientFunds" }));
  expect(error).toBeInstanceOf(Stripe.errors.StripeCardError);
  expect(error).toMatchObject({ statusCode: 402, code: "card_declined", decline_code: "insufficient_funds" });
  const { charge } = error as Stripe.errors.StripeCardError & { charge: string };
  expect(await stripe.charges.retrieve(charge)).toMatchObject({ status: "failed", paid: false });
  expect(simulator.movements()).toEqual([]);
});

test("the customer's id or default source chooses the outcome too", async () => {
  expect(await refusal(stripe.charges.create({ ...order, customer: "cus_chargeDeclined_7" }))).toMatchObject({
    statusCode: 402,
  });
  const customer = await stripe.customers.create({ email: "a@example.com", source: "tok_chargeDeclined" });
  expect(await refusal(stripe.charges.create({ ...order, customer: customer.id }))).toMatchObject({ statusCode: 402 });
  expect(simulator.movements()).toEqual([]);
});

test("an authorized charge moves money only when captured, and only what is captured", async () => {
  const held = await stripe.charges.create({ ...order, source: "tok_visa", capture: false });
  expect(simulator.movements()).toEqual([]);
  await stripe.charges.capture(held.id, { amount: 3000 });
  expect(simulator.movements()).toMatchObject([{ id: held.id, amount: 3000 }]);
  expect(await refusal(stripe.charges.capture(held.id))).toMatchObject({ code: "charge_already_captured" });
});

test("an unconfirmed intent moves nothing until it is confirmed, and confirms once", async () => {
  const bare = await stripe.paymentIntents.create(order);
  expect(bare.status).toBe("requires_payment_method");
  const intent = await stripe.paymentIntents.create({ ...card, confirmation_method: "manual" });
  expect(intent.status).toBe("requires_confirmation");
  expect(simulator.movements()).toEqual([]);
  const confirmed = await stripe.paymentIntents.confirm(intent.id, {}, { idempotencyKey: "key-confirm-1" });
  expect(confirmed).toMatchObject({ status: "succeeded", amount_received: 4900 });
  const again = await refusal(stripe.paymentIntents.confirm(intent.id));
  expect(again).toMatchObject({ statusCode: 400, code: "payment_intent_unexpected_state" });
  expect(again.payment_intent).toMatchObject({ id: intent.id, status: "succeeded" });
  expect(simulator.movements()).toMatchObject([
    { id: confirmed.latest_charge, payment_intent: intent.id, idempotency_key: "key-confirm-1" },
  ]);
});

test("a canceled intent refuses everything", async () => {
  const { id } = await stripe.paymentIntents.create(card);
  const canceled = await stripe.paymentIntents.cancel(id, { cancellation_reason: "abandoned" });
  expect(canceled).toMatchObject({ status: "canceled", cancellation_reason: "abandoned" });
  for (const call of [
    () => stripe.paymentIntents.confirm(id),
    () => stripe.paymentIntents.cancel(id),
    () => stripe.paymentIntents.capture(id),
    () => stripe.paymentIntents.update(id, { metadata: { a: "b" } }),
  ]) {
    expect(await refusal(call())).toMatchObject({ statusCode: 400, code: "payment_intent_unexpected_state" });
  }
  expect(() => simulator.confirmFromBrowser(id)).toThrow(/status of canceled/);
  expect(simulator.movements()).toEqual([]);
});

test("a decline puts the intent back to waiting for another card, which may then succeed", async () => {
  const { id } = await stripe.paymentIntents.create({ ...order, payment_method: "pm_card_chargeDeclined" });
  const error = await refusal(stripe.paymentIntents.confirm(id));
  expect(error).toMatchObject({ statusCode: 402, code: "card_declined", payment_intent: { id } });
  const waiting = await stripe.paymentIntents.retrieve(id);
  expect(waiting).toMatchObject({ status: "requires_payment_method", payment_method: null });
  expect(waiting.last_payment_error).toMatchObject({ code: "card_declined", charge: waiting.latest_charge });
  expect(await stripe.charges.list({ payment_intent: id })).toMatchObject({ data: [{ status: "failed" }] });
  await stripe.paymentIntents.confirm(id, { payment_method: "pm_card_visa" });
  expect(simulator.movements()).toHaveLength(1);
});

test("an intent captured by hand holds the money, gives the rest back, or is canceled", async () => {
  const held = await stripe.paymentIntents.create({ ...card, capture_method: "manual", confirm: true });
  expect(held).toMatchObject({ status: "requires_capture", amount_capturable: 4900, amount_received: 0 });
  expect(simulator.movements()).toEqual([]);
  const taken = await stripe.paymentIntents.capture(held.id, { amount_to_capture: 4000 });
  expect(taken).toMatchObject({ status: "succeeded", amount_received: 4000, amount_capturable: 0 });
  const dropped = await stripe.paymentIntents.create({ ...card, capture_method: "manual", confirm: true });
  await stripe.paymentIntents.cancel(dropped.id);
  expect(await refusal(stripe.paymentIntents.capture(dropped.id))).toMatchObject({
    code: "payment_intent_unexpected_state",
  });
  expect(simulator.movements().map(({ amount }) => amount)).toEqual([4000]);
});

test("a card that wants its owner asks, or is declined off session", async () => {
  const asking = { ...order, payment_method: "pm_card_authenticationRequired", confirm: true } as const;
  const intent = await stripe.paymentIntents.create(asking);
  expect(intent.status).toBe("requires_action");
  expect(simulator.confirmFromBrowser(intent.id).status).toBe("succeeded");
  expect(await refusal(stripe.paymentIntents.create({ ...asking, off_session: true }))).toMatchObject({
    statusCode: 402,
    code: "authentication_required",
  });
  expect(simulator.movements()).toMatchObject([{ payment_intent: intent.id, idempotency_key: null }]);
});

test("a browser confirms an armed intent, but not one of manual confirmation", async () => {
  const armed = await stripe.paymentIntents.create(order);
  expect(simulator.confirmFromBrowser(armed.id, { paymentMethod: "pm_card_visa" }).status).toBe("succeeded");
  const manual = await stripe.paymentIntents.create({
    ...order,
    payment_method: "pm_card_authenticationRequired",
    confirmation_method: "manual",
  });
  expect(() => simulator.confirmFromBrowser(manual.id)).toThrow(/manual confirmation/);
  expect((await stripe.paymentIntents.confirm(manual.id)).status).toBe("requires_action");
  expect(simulator.confirmFromBrowser(manual.id).status).toBe("requires_confirmation");
  expect(simulator.movements()).toHaveLength(1);
  expect((await stripe.paymentIntents.confirm(manual.id)).status).toBe("succeeded");
  expect(simulator.movements()).toHaveLength(2);
});

test("a processing intent moves money when it settles, or fails", async () => {
  const slow = { ...order, payment_method: "pm_processing", confirm: true } as const;
  const [first, second] = [await stripe.paymentIntents.create(slow), await stripe.paymentIntents.create(slow)];
  expect(first.status).toBe("processing");
  expect(await refusal(stripe.paymentIntents.confirm(first.id))).toMatchObject({
    code: "payment_intent_unexpected_state",
  });
  expect(simulator.movements()).toEqual([]);
  expect(simulator.settleProcessing(first.id, "succeeded").status).toBe("succeeded");
  expect(simulator.settleProcessing(second.id, "failed").status).toBe("requires_payment_method");
  expect(simulator.movements()).toMatchObject([{ payment_intent: first.id }]);
});

test("an update changes the amount only while no money can move", async () => {
  const { id } = await stripe.paymentIntents.create({ ...card, metadata: { a: "1", b: "2" } });
  const updated = await stripe.paymentIntents.update(id, { amount: 5000, metadata: { a: "", c: "3" } });
  expect(updated).toMatchObject({ amount: 5000, metadata: { b: "2", c: "3" } });
  expect(updated.metadata).not.toHaveProperty("a");
  await stripe.paymentIntents.confirm(id);
  expect(await refusal(stripe.paymentIntents.update(id, { amount: 6000 }))).toMatchObject({
    code: "payment_intent_unexpected_state",
  });
  expect(simulator.movements()).toMatchObject([{ amount: 5000 }]);
});

test("customers are created, updated, read and listed", async () => {
  const { id } = await stripe.customers.create({ email: "a@example.com", metadata: { tier: "gold" } });
  await stripe.customers.update(id, { name: "Ada" });
  expect(await stripe.customers.retrieve(id)).toMatchObject({ name: "Ada", email: "a@example.com" });
  await stripe.customers.create({ email: "b@example.com" });
  expect((await stripe.customers.list({ email: "a@example.com" })).data.map((customer) => customer.id)).toEqual([id]);
  expect(await refusal(stripe.customers.retrieve("cus_none"))).toMatchObject({
    statusCode: 404,
    code: "resource_missing",
  });
});

test("a refund gives back what is left, once", async () => {
  const intent = await stripe.paymentIntents.create({ ...card, confirm: true });
  await stripe.refunds.create({ payment_intent: intent.id, amount: 900 });
  const rest = await stripe.refunds.create({ charge: intent.latest_charge as string });
  expect(rest.amount).toBe(4000);
  expect(await refusal(stripe.refunds.create({ payment_intent: intent.id }))).toMatchObject({
    code: "charge_already_refunded",
  });
  expect((await stripe.refunds.list({ payment_intent: intent.id })).data).toHaveLength(2);
  expect(simulator.movements().map(({ kind, amount }) => [kind, amount])).toEqual([
    ["charge", 4900],
    ["refund", 900],
    ["refund", 4000],
  ]);
});

test("lists show at once what was created, newest first, by customer and time, page by page", async () => {
  const ids: string[] = [];
  for (let n = 0; n < 7; n += 1) {
    ids.unshift((await stripe.paymentIntents.create({ ...order, customer: n === 3 ? "cus_2" : "cus_1" })).id);
  }
  const ones = ids.filter((_, index) => index !== 3);
  const page = await stripe.paymentIntents.list({ customer: "cus_1", limit: 4 });
  expect(page.data.map(({ id }) => id)).toEqual(ones.slice(0, 4));
  expect(page.has_more).toBe(true);
  const last = await stripe.paymentIntents.list({ customer: "cus_1", limit: 4, starting_after: ones[3] ?? "" });
  expect(last.data.map(({ id }) => id)).toEqual(ones.slice(4));
  expect(last.has_more).toBe(false);
  const before = await stripe.paymentIntents.list({ customer: "cus_1", limit: 2, ending_before: ones[3] ?? "" });
  expect(before.data.map(({ id }) => id)).toEqual(ones.slice(1, 3));
  const all: string[] = [];
  for await (const intent of stripe.paymentIntents.list({ limit: 2 })) all.push(intent.id);
  expect(all).toEqual(ids);

  simulator.advance(3_600_000);
  const since = Math.floor(simulator.now() / 1000) - 60;
  const late = await stripe.charges.create({ ...order, source: "tok_visa" });
  await stripe.paymentIntents.create(order);
  expect((await stripe.charges.list({ customer: "cus_1", created: { gte: since } })).data[0]?.id).toBe(late.id);
  expect((await stripe.paymentIntents.list({ created: { gte: since } })).data).toHaveLength(1);
  expect((await stripe.paymentIntents.list({ created: { lt: since }, limit: 100 })).data).toHaveLength(7);
  expect(await refusal(stripe.paymentIntents.list({ starting_after: "pi_none" }))).toMatchObject({ statusCode: 400 });
});

test("events name the key of the request behind them", async () => {
  const intent = await stripe.paymentIntents.create({ ...card, confirm: true }, { idempotencyKey: "key-1" });
  await stripe.charges.create({ ...order, source: "tok_visa" }, { idempotencyKey: "key-2" });
  const { data } = await stripe.events.list({
    types: ["charge.succeeded", "payment_intent.succeeded"],
    created: { gte: Math.floor(simulator.now() / 1000) - 60 },
  });
  expect(data.map((event) => [event.type, event.request?.idempotency_key])).toEqual([
    ["charge.succeeded", "key-2"],
    ["payment_intent.succeeded", "key-1"],
    ["charge.succeeded", "key-1"],
  ]);
  expect(data[1]?.data.object).toMatchObject({ id: intent.id, status: "succeeded" });
  expect(await stripe.events.retrieve(data[0]?.id ?? "")).toMatchObject({ type: "charge.succeeded" });
  const created = await stripe.events.list({ type: "payment_intent.created" });
  expect(created.data.map((event) => event.data.object)).toMatchObject([
    { id: intent.id, status: "requires_confirmation" },
  ]);
  simulator.advance(31 * 24 * 3_600_000);
  expect((await stripe.events.list()).data).toEqual([]);
});

test("search lags behind what lists already show", async () => {
  await stripe.paymentIntents.create({ ...card, metadata: { holdfast_authorization: "auth_1" } });
  const query = "metadata['holdfast_authorization']:'auth_1' AND customer:'cus_1'";
  expect((await stripe.paymentIntents.search({ query })).data).toHaveLength(0);
  simulator.advance(61_000);
  expect((await stripe.paymentIntents.search({ query })).data).toHaveLength(1);
});

test("lists can be made to lag", async () => {
  const stale = await startStripeSimulator({ lag: { lists: 60_000 } });
  try {
    const other = client("sk_test_1", stale);
    await other.charges.create({ ...order, source: "tok_visa" });
    expect((await other.charges.list()).data).toEqual([]);
    stale.advance(61_000);
    expect((await other.charges.list()).data).toHaveLength(1);
  } finally {
    await stale.close();
  }
});

test("accounts do not see each other, and only known secrets open one", async () => {
  const shared = await startStripeSimulator({ secrets: { sk_test_a: "acct_a", sk_test_b: "acct_b" } });
  try {
    const { id } = await client("sk_test_a", shared).charges.create({ ...order, source: "tok_visa" });
    expect(await refusal(client("sk_test_b", shared).charges.retrieve(id))).toMatchObject({ statusCode: 404 });
    expect(await refusal(client("sk_test_c", shared).charges.retrieve(id))).toBeInstanceOf(
      Stripe.errors.StripeAuthenticationError,
    );
    expect(shared.movements()).toMatchObject([{ account: "acct_a" }]);
  } finally {
    await shared.close();
  }
  expect(await refusal(client("vk_default_1_secret").charges.list())).toMatchObject({ statusCode: 401 });
});

test("charges are grouped by the spend that the caller names", async () => {
  for (const period of ["2026-10", "2026-11", "2026-11"]) {
    await stripe.charges.create({ ...order, source: "tok_visa", metadata: { period } });
  }
  await stripe.charges.create({ ...order, source: "tok_visa" });
  const groups = chargesPerSpend(simulator.movements(), ({ metadata }) => metadata["period"]);
  expect([...groups].map(([period, charges]) => [period, charges.length])).toEqual([
    ["2026-10", 1],
    ["2026-11", 2],
  ]);
});

test("closing removes the temporary file of movements", async () => {
  const other = await startStripeSimulator();
  expect(existsSync(other.movementsFile)).toBe(true);
  await other.close();
  expect(existsSync(other.movementsFile)).toBe(false);
});

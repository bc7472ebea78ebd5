import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";
import { type MoneyEndpoint, moneyEndpoints } from "./stripe-simulator/money-endpoints.ts";

let simulator: StripeSimulator;
let stripe: Stripe;

beforeAll(async () => {
  simulator = await startStripeSimulator();
  stripe = new Stripe("sk_test_1", {
    host: simulator.host,
    port: simulator.port,
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
  });
});
afterAll(() => simulator.close());

interface Answered {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>> & { readonly error?: { readonly message: string } };
}

async function call(
  method: string,
  path: string,
  key?: string,
  fields: Record<string, string> = {},
): Promise<Answered> {
  const isV2 = path.startsWith("/v2/");
  const response = await fetch(`${simulator.url}${path}`, {
    method,
    headers: {
      authorization: "Bearer sk_test_1",
      "content-type": isV2 ? "application/json" : "application/x-www-form-urlencoded",
      ...(key === undefined ? {} : { "idempotency-key": key }),
    },
    ...(method === "POST" ? { body: isV2 ? JSON.stringify(fields) : new URLSearchParams(fields).toString() } : {}),
  });
  return { status: response.status, body: (await response.json()) as Answered["body"] };
}

function pathOf({ pattern }: MoneyEndpoint, count: number): string {
  let position = 0;
  return pattern.replaceAll(":id", () => `obj_${count}n${(position += 1)}`);
}

test("every write of the table is answered by an object, or refused for what is missing", async () => {
  const unknown: string[] = [];
  for (const [count, endpoint] of moneyEndpoints.entries()) {
    const { status, body } = await call(endpoint.method, pathOf(endpoint, count), `write-${count}`);
    const name = `${endpoint.method} ${endpoint.pattern}`;
    if (status === 200) {
      if (typeof body["object"] !== "string") unknown.push(`${name}: no object`);
    } else if (![400, 404].includes(status) || body.error?.message.startsWith("Unrecognized") === true) {
      unknown.push(`${name}: ${status} ${body.error?.message}`);
    }
  }
  expect(unknown).toEqual([]);
  const keys = new Set<unknown>();
  for await (const event of stripe.events.list({ limit: 100 })) keys.add(event.request?.idempotency_key);
  const silent = simulator.movements().filter(({ idempotency_key: key }) => !keys.has(key));
  expect(simulator.movements().length).toBeGreaterThan(5);
  expect(silent).toEqual([]);
});

test("a write with no endpoint of its own is executed once under its key, and moves the amount it names", async () => {
  const before = simulator.movements().length;
  const fields = { amount: "700", currency: "eur", customer: "cus_1", "metadata[holdfast_authorization]": "auth_1" };
  const first = await call("POST", "/v1/forwarding/requests", "generic-1", fields);
  const again = await call("POST", "/v1/forwarding/requests", "generic-1", fields);
  expect(again).toEqual(first);
  expect(simulator.movements().slice(before)).toEqual([
    {
      at: expect.any(Number),
      kind: "charge",
      id: first.body["id"],
      amount: 700,
      currency: "eur",
      customer: "cus_1",
      account: "acct_simulator",
      idempotency_key: "generic-1",
      metadata: { holdfast_authorization: "auth_1" },
    },
  ]);
  expect(
    (await stripe.events.list({ types: ["forwarding.request.created"], limit: 1 })).data[0]?.request,
  ).toMatchObject({
    idempotency_key: "generic-1",
  });
});

test("faults meet generic writes too", async () => {
  const before = simulator.movements().length;
  simulator.fault({ mode: "error_500_after", match: { path: "/v1/treasury/credit_reversals" } });
  const fields = { amount: "5", currency: "usd", received_credit: "rc_1" };
  expect((await call("POST", "/v1/treasury/credit_reversals", "generic-2", fields)).status).toBe(500);
  expect((await call("POST", "/v1/treasury/credit_reversals", "generic-2", fields)).status).toBe(500);
  expect(simulator.movements().slice(before)).toMatchObject([{ kind: "refund", amount: 5 }]);
});

test("what was made can be read, listed with filters, changed, acted on and deleted", async () => {
  const product = await stripe.products.create({ name: "Plan", metadata: { a: "b" } });
  expect(product).toMatchObject({ object: "product", name: "Plan", metadata: { a: "b" } });
  const price = await stripe.prices.create({ currency: "usd", unit_amount: 1500, product: product.id });
  const other = await stripe.prices.create({ currency: "eur", unit_amount: 1, product: "prod_other" });
  expect(await stripe.prices.retrieve(price.id)).toMatchObject({ unit_amount: 1500, product: product.id });
  expect((await stripe.prices.list({ product: product.id })).data.map(({ id }) => id)).toEqual([price.id]);
  const all = await stripe.prices.list({ limit: 1 });
  expect(all).toMatchObject({ has_more: true, data: [{ id: other.id }] });
  expect((await stripe.prices.list({ starting_after: other.id, limit: 1 })).data.map(({ id }) => id)).toEqual([
    price.id,
  ]);
  expect(await stripe.prices.update(price.id, { active: false })).toMatchObject({ id: price.id, active: false });
  expect(await stripe.products.del(product.id)).toEqual({ id: product.id, object: "product", deleted: true });
  await expect(stripe.products.retrieve(product.id)).rejects.toMatchObject({ statusCode: 404 });
  const method = await stripe.paymentMethods.attach("pm_1", { customer: "cus_1" });
  expect(method).toMatchObject({ id: "pm_1", object: "payment_method", customer: "cus_1" });
  const card = await stripe.customers.createSource("cus_7", { source: "tok_visa" });
  expect((await stripe.customers.listSources("cus_7")).data.map(({ id }) => id)).toEqual([card.id]);
});

test("expanded ids become their objects", async () => {
  const intent = await stripe.paymentIntents.create({
    amount: 10,
    currency: "usd",
    payment_method: "pm_card_visa",
    confirm: true,
    expand: ["latest_charge"],
  });
  expect(intent.latest_charge).toMatchObject({ object: "charge", amount: 10 });
  const listed = await stripe.paymentIntents.list({ limit: 1, expand: ["data.latest_charge"] });
  expect(listed.data[0]?.latest_charge).toMatchObject({ object: "charge" });
});

test("a URL that nobody knows is refused", async () => {
  expect(await call("POST", "/v1/nothing")).toMatchObject({ status: 404 });
  expect(await call("GET", "/v1/nothing")).toMatchObject({ status: 404 });
  expect(await call("GET", "/v1/payouts/po_missing1")).toMatchObject({ status: 404 });
  expect(await call("POST", "/v1/charges/%/capture")).toMatchObject({ status: 404 });
});

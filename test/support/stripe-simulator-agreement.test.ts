import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { type RequestListener, type Server, createServer } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clientOf } from "./stripe-simulator/client.ts";
import { type StripeSimulator, startStripeSimulator } from "./stripe-simulator/index.ts";

// Other people wrote two fakes of Stripe. Where they model a call, they and our simulator must say the same of it.

const host = "127.0.0.1";
let simulator: StripeSimulator;
let ours: Stripe;
let emulate: Stripe;
let stateful: Stripe;
let child: ChildProcess;
let server: Server;

beforeAll(async () => {
  simulator = await startStripeSimulator();
  ours = clientOf(simulator);
  const main = join(import.meta.dirname, "stripe-simulator/emulate-process.ts");
  child = spawn(process.execPath, [main], { stdio: ["ignore", "pipe", "inherit"] });
  if (child.stdout === null) throw new Error("The emulator has no output.");
  const [line] = (await once(createInterface(child.stdout), "line")) as [string];
  emulate = clientOf({ host, port: Number(line) });
  process.env["LOG_LEVEL"] = "silent";
  const { createExpressApp } = createRequire(import.meta.url)("stripe-stateful-mock") as {
    createExpressApp(this: void): RequestListener;
  };
  server = createServer(createExpressApp()).listen(0, host);
  await once(server, "listening");
  stateful = clientOf({ host, port: (server.address() as AddressInfo).port });
});
afterAll(async () => {
  child.kill("SIGKILL");
  server.closeAllConnections();
  server.close();
  await simulator.close();
});

/** What a call ended with, without what differs by nature: ids, times and words. */
async function outcome(call: Promise<object>, fields: readonly string[]): Promise<unknown> {
  try {
    const answer = (await call) as Readonly<Record<string, unknown>>;
    return Object.fromEntries(fields.map((name) => [name, answer[name]]));
  } catch (error) {
    if (!(error instanceof Stripe.errors.StripeError)) throw error;
    const { statusCode, code, rawType, decline_code: declineCode } = error;
    return { statusCode, code, rawType, declineCode };
  }
}

type Script = (stripe: Stripe) => Promise<unknown>;

const intent = { amount: 4900, currency: "usd" } as const;
const intentFields = ["object", "amount", "currency", "status", "payment_method", "metadata"];

const withEmulate: readonly (readonly [string, Script])[] = [
  ["an intent without a card", (stripe) => outcome(stripe.paymentIntents.create(intent), intentFields)],
  [
    "an intent with a card",
    (stripe) =>
      outcome(
        stripe.paymentIntents.create({ ...intent, payment_method: "pm_card_visa", metadata: { a: "b" } }),
        intentFields,
      ),
  ],
  [
    "an intent from creation to its second confirmation",
    async (stripe) => {
      const { id } = await stripe.paymentIntents.create(intent);
      const steps = [
        () => stripe.paymentIntents.update(id, { amount: 5000, payment_method: "pm_card_visa" }),
        () => stripe.paymentIntents.confirm(id),
        () => stripe.paymentIntents.confirm(id),
        () => stripe.paymentIntents.cancel(id),
        () => stripe.paymentIntents.retrieve(id),
      ];
      const seen: unknown[] = [];
      for (const step of steps) seen.push(await outcome(step(), ["object", "amount", "currency", "status"]));
      return seen;
    },
  ],
  [
    "an intent that is canceled",
    async (stripe) => {
      const { id } = await stripe.paymentIntents.create({ ...intent, payment_method: "pm_card_visa" });
      const seen = [await outcome(stripe.paymentIntents.cancel(id), ["status"])];
      seen.push(await outcome(stripe.paymentIntents.confirm(id), ["status"]));
      return seen;
    },
  ],
  ["an intent that nobody made", (stripe) => outcome(stripe.paymentIntents.retrieve("pi_0missing"), ["id"])],
  [
    "the charge of an intent",
    async (stripe) => {
      const { id } = await stripe.paymentIntents.create({ ...intent, payment_method: "pm_card_visa" });
      await stripe.paymentIntents.confirm(id);
      const { data } = await stripe.charges.list({ payment_intent: id });
      return data
        .filter(({ payment_intent: owner }) => owner === id)
        .map(({ object, amount, currency, status }) => ({ object, amount, currency, status }));
    },
  ],
  [
    "a checkout session from a price to its end",
    async (stripe) => {
      const product = await stripe.products.create({ name: "Book" });
      const price = await stripe.prices.create({ product: product.id, currency: "usd", unit_amount: 700 });
      const { id, status, mode } = await stripe.checkout.sessions.create({
        mode: "payment",
        line_items: [{ price: price.id, quantity: 2 }],
        success_url: "https://example.invalid",
      });
      const expired = await outcome(stripe.checkout.sessions.expire(id), ["object", "status"]);
      const again = await outcome(stripe.checkout.sessions.expire(id), ["status"]);
      const statusCode = (again as { statusCode?: number }).statusCode;
      return [product.name, price.unit_amount, price.currency, status, mode, expired, statusCode];
    },
  ],
  [
    "a customer",
    async (stripe) => {
      const { id } = await stripe.customers.create({ email: "a@example.com", metadata: { a: "b" } });
      const fields = ["object", "email", "name"];
      const seen = [await outcome(stripe.customers.update(id, { name: "A" }), fields)];
      seen.push(await outcome(stripe.customers.del(id), ["object", "deleted"]));
      return seen;
    },
  ],
];

test.each(withEmulate)("emulate agrees: %s", async (_name, script) => {
  expect(await script(ours)).toEqual(await script(emulate));
});

const charge = { amount: 4900, currency: "usd", source: "tok_visa" } as const;
const chargeFields = ["object", "amount", "amount_refunded", "captured", "currency", "paid", "refunded", "status"];

const withStateful: readonly (readonly [string, Script])[] = [
  ["a charge", (stripe) => outcome(stripe.charges.create(charge), chargeFields)],
  [
    "a declined charge, and its repetition under the same key",
    async (stripe) => {
      const create = () =>
        outcome(stripe.charges.create({ ...charge, source: "tok_chargeDeclined" }, { idempotencyKey: "declined" }), []);
      return [await create(), await create()];
    },
  ],
  [
    "insufficient funds",
    (stripe) => outcome(stripe.charges.create({ ...charge, source: "tok_chargeDeclinedInsufficientFunds" }), []),
  ],
  [
    "an authorized charge, captured in part and once",
    async (stripe) => {
      const { id, captured } = await stripe.charges.create({ ...charge, capture: false });
      const first = await outcome(stripe.charges.capture(id, { amount: 3000 }), ["captured", "status"]);
      return [captured, first, await outcome(stripe.charges.capture(id), [])];
    },
  ],
  [
    "a charge that is refunded in parts",
    async (stripe) => {
      const { id } = await stripe.charges.create(charge);
      const fields = ["object", "amount", "currency", "status"];
      const seen = [await outcome(stripe.refunds.create({ charge: id, amount: 900 }), fields)];
      seen.push(await outcome(stripe.refunds.create({ charge: id }), fields));
      seen.push(await outcome(stripe.charges.retrieve(id), ["amount_refunded", "refunded"]));
      seen.push(await outcome(stripe.refunds.create({ charge: id }), []));
      return seen;
    },
  ],
  [
    "a key that is used twice, and then for something else",
    async (stripe) => {
      const create = (amount: number) => stripe.charges.create({ ...charge, amount }, { idempotencyKey: "twice" });
      const [first, second] = [await create(100), await create(100)];
      return [first.id === second.id, await outcome(create(101), [])];
    },
  ],
];

test.each(withStateful)("stripe-stateful-mock agrees: %s", async (_name, script) => {
  expect(await script(ours)).toEqual(await script(stateful));
});

test("without idempotency a repeated key is a second intent: only the simulator keeps the promise", async () => {
  const create = (stripe: Stripe) =>
    stripe.paymentIntents.create({ ...intent, payment_method: "pm_card_visa" }, { idempotencyKey: "same" });
  expect((await create(ours)).id).toBe((await create(ours)).id);
  expect((await create(emulate)).id).not.toBe((await create(emulate)).id);
});

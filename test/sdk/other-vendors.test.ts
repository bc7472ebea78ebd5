import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type RequestListener, type Server } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { createHoldfast, type GuardedStripe, type Holdfast } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { createFakeControlPlane, type FakeControlPlane } from "../support/fake-control-plane.ts";

// The guard against Stripes that other people wrote. One remembers keys; the other does not, and is the worse case: only
// the bound object keeps two attempts from charging twice there.

const host = "127.0.0.1";
const SPEND = { customerId: "cust_123", billingPeriod: "2026-11", purpose: "subscription" };

let child: ChildProcess;
let server: Server;
let emulate: Stripe;
let stateful: Stripe;
let plane: FakeControlPlane;
const opened: Holdfast[] = [];

function client(port: number, httpClient?: Stripe.HttpClient): Stripe {
  const options = { host, port, protocol: "http", telemetry: false } as const;
  return new Stripe("sk_test_1", httpClient === undefined ? options : { ...options, httpClient });
}

/** The emulator leaves out what a PaymentIntent received, without which the guard commits nothing. */
function withAmountReceived(): Stripe.HttpClient {
  const inner = Stripe.createNodeHttpClient();
  const makeRequest: Stripe.HttpClient["makeRequest"] = async (...args) => {
    const response = await inner.makeRequest(...args);
    const body: unknown = await response.toJSON();
    const isIntent = typeof body === "object" && body !== null && "status" in body && "amount" in body;
    const answer = isIntent ? { ...body, amount_received: body.status === "succeeded" ? body.amount : 0 } : body;
    return Object.assign(Object.create(response) as typeof response, {
      getStatusCode: () => response.getStatusCode(),
      getHeaders: () => response.getHeaders(),
      getRawResponse: () => response.getRawResponse(),
      toJSON: () => Promise.resolve(answer),
    });
  };
  return { getClientName: () => inner.getClientName(), makeRequest };
}

beforeAll(async () => {
  const main = join(import.meta.dirname, "../support/stripe-simulator/emulate-process.ts");
  child = spawn(process.execPath, [main], { stdio: ["ignore", "pipe", "inherit"] });
  if (child.stdout === null) throw new Error("The emulator has no output.");
  const [line] = (await once(createInterface(child.stdout), "line")) as [string];
  emulate = client(Number(line), withAmountReceived());
  process.env["LOG_LEVEL"] = "silent";
  const { createExpressApp } = createRequire(import.meta.url)("stripe-stateful-mock") as {
    createExpressApp(this: void): RequestListener;
  };
  server = createServer(createExpressApp()).listen(0, host);
  await once(server, "listening");
  stateful = client((server.address() as AddressInfo).port);
});
beforeEach(() => {
  plane = createFakeControlPlane();
});
afterAll(async () => {
  await Promise.all(opened.map((holdfast) => holdfast.close()));
  child.kill("SIGKILL");
  server.closeAllConnections();
  server.close();
});

/** A guarded client of its own, as every process has one. */
function guarded(stripe: Stripe): GuardedStripe {
  const holdfast = createHoldfast({ vaultKey: "vk_main_k_s", baseUrl: "http://unused", transport: plane.transport });
  opened.push(holdfast);
  return holdfast.stripe(stripe);
}

describe("a Stripe without idempotency", () => {
  const PAYMENT = { amount: 4900, currency: "usd", payment_method: "pm_card_visa", confirm: true } as const;

  async function succeeded(): Promise<string[]> {
    const { data } = await emulate.paymentIntents.list({ limit: 100 });
    return data.filter(({ status }) => status === "succeeded").map(({ id }) => id);
  }

  test("charges once through repeats, concurrent attempts and an attempt that took over before the bind", async () => {
    const before = await succeeded();
    // The first attempt stops between creation and bind; its hold runs out and others create an object of their own.
    const stopped = Promise.withResolvers<void>();
    const resumed = Promise.withResolvers<void>();
    let first = true;
    plane.intercept = async (rpc) => {
      if (rpc !== "bind" || !first) return;
      first = false;
      stopped.resolve();
      await resumed.promise;
    };
    const slow = guarded(emulate).paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    await stopped.promise;
    plane.advance(601_000);
    const others = await Promise.all(
      [1, 2, 3].map(() => guarded(emulate).paymentIntents.create({ ...PAYMENT }, { spend: SPEND })),
    );
    resumed.resolve();
    const all = [await slow, ...others, await guarded(emulate).paymentIntents.create({ ...PAYMENT }, { spend: SPEND })];
    expect(new Set(all.map(({ id }) => id)).size).toBe(1);
    expect((await succeeded()).filter((id) => !before.includes(id))).toEqual([all[0]?.id]);
    expect(plane.authorization()).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00" },
    });
  });
});

describe("another Stripe with idempotency", () => {
  test("charges once through repeats and concurrent attempts, and refunds once", async () => {
    const charge = () =>
      guarded(stateful).charges.create({ amount: 4900, currency: "usd", source: "tok_visa" }, { spend: SPEND });
    const all = [...(await Promise.all([charge(), charge(), charge()])), await charge()];
    expect(new Set(all.map(({ id }) => id)).size).toBe(1);
    const [first] = all;
    const refund = () =>
      guarded(stateful).refunds.create({ charge: first?.id ?? "" }, { spend: { ...SPEND, purpose: "refund" } });
    await refund();
    const now = await stateful.charges.retrieve(first?.id ?? "");
    expect(now.amount_refunded).toBe(4900);
    expect(plane.authorization(1)).toMatchObject({
      state: AuthorizationState.COMMITTED,
      committedAmount: { amount: "49.00" },
    });
  });

  test("declines once, and charges the next generation", async () => {
    const pay = (source: string, retry = {}) =>
      guarded(stateful).charges.create(
        { amount: 4900, currency: "usd", source },
        { spend: { ...SPEND, purpose: "declined", ...retry } },
      );
    await expect(pay("tok_chargeDeclined")).rejects.toBeInstanceOf(Stripe.errors.StripeCardError);
    await expect(pay("tok_visa")).rejects.toMatchObject({ code: "holdfast_spend_already_failed" });
    expect((await pay("tok_visa", { retryAfterGeneration: 1 })).status).toBe("succeeded");
  });
});

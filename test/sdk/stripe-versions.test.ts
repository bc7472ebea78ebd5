import { text } from "node:stream/consumers";
import { type GuardedStripe, stableKey } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";
import { recordingClient, stripeMajors } from "./stripe-majors.ts";

const KEY = stableKey(SPEND.customerId, SPEND.billingPeriod, SPEND.purpose);

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

describe.each(stripeMajors)("with version %s of Stripe's client", (major, StripeClient) => {
  function plain(config: Stripe.StripeConfig = {}): Stripe {
    const { host, port } = world.simulator;
    const address = { host, port, protocol: "http" as const };
    return new StripeClient("sk_test_1", { ...address, telemetry: false, maxNetworkRetries: 0, ...config });
  }

  function guarded(config: Stripe.StripeConfig = {}): GuardedStripe {
    return world.holdfast().stripe(plain(config));
  }

  /** The keys of the POSTs of a path, one per request on the wire; null for a request without a key. */
  function keysOf(path: string): (string | null)[] {
    const posts = world.simulator.requests().filter((request) => request.method === "POST" && request.path === path);
    return posts.map(({ key }) => key);
  }

  it("is that version", () => {
    expect(Reflect.get(StripeClient, "PACKAGE_VERSION")).toMatch(new RegExp(`^${major}\\.`));
  });

  it("charges once with the stable key, and gives a repeat the same charge", async () => {
    const stripe = guarded();
    const first = await stripe.charges.create({ ...CHARGE }, { spend: SPEND });
    const again = await guarded().charges.create({ ...CHARGE }, { spend: SPEND });
    expect(first.paid).toBe(true);
    expect(again.id).toBe(first.id);
    expect(keysOf("/v1/charges")).toEqual([KEY]);
    expect(world.charges()).toBe(1);
  });

  it("confirms a PaymentIntent in two steps, and gives its last response", async () => {
    const intent = await guarded().paymentIntents.create({ ...PAYMENT }, { spend: SPEND });
    expect(intent.status).toBe("succeeded");
    expect(intent.lastResponse.statusCode).toBe(200);
    expect(world.posts()).toEqual([`/v1/payment_intents ${KEY}`, `/v1/payment_intents/:id/confirm ${KEY}-confirm-1`]);
    expect(world.charges()).toBe(1);
  });

  it.each([
    [
      "charge",
      (stripe: GuardedStripe) => stripe.charges.create({ ...CHARGE, source: "tok_chargeDeclined" }, { spend: SPEND }),
    ],
    [
      "PaymentIntent",
      (stripe: GuardedStripe) =>
        stripe.paymentIntents.create({ ...PAYMENT, payment_method: "pm_card_chargeDeclined" }, { spend: SPEND }),
    ],
  ])("hands on a decline of a %s as the StripeCardError of that version", async (_, call) => {
    const error = await rejection(call(guarded()));
    expect(error).toBeInstanceOf(StripeClient.errors.StripeCardError);
    expect(error).toMatchObject({ type: "StripeCardError", code: "card_declined", statusCode: 402 });
    expect(world.charges()).toBe(0);
  });

  it.each([0, 2])("makes a denial a typed error, with one call and no request (%i retries)", async (retries) => {
    world.plane.capMajor = 10;
    const error = await rejection(
      guarded({ maxNetworkRetries: retries }).charges.create({ ...CHARGE }, { spend: SPEND }),
    );
    expect(error).toMatchObject({ name: "SpendDeniedError", denial: { rule: "CAP_HEADROOM" } });
    expect((error as Error).cause).toBeInstanceOf(StripeClient.errors.StripePermissionError);
    expect(world.plane.names()).toEqual(["authorize"]);
    expect(world.simulator.requests()).toEqual([]);
  });

  it.each([0, 2])("sends a broken connection again with the same key only (%i retries)", async (retries) => {
    world.simulator.fault({ match: { method: "POST" }, mode: "drop_after_execute", times: 2 });
    const charge = await guarded({ maxNetworkRetries: retries }).charges.create({ ...CHARGE }, { spend: SPEND });
    expect(charge.paid).toBe(true);
    expect(keysOf("/v1/charges")).toEqual([KEY, KEY, KEY]);
    expect(world.charges()).toBe(1);
  });

  it("never sends a raw money move without a key, also when the connection breaks", async () => {
    world.simulator.fault({ match: { method: "POST" }, mode: "drop_before_execute" });
    const charge = await guarded().rawRequest("POST", "/v1/charges", { ...CHARGE }, { spend: SPEND });
    expect(charge).toMatchObject({ object: "charge", paid: true });
    expect(keysOf("/v1/charges")).toEqual([KEY, KEY]);
  });

  it("honours maxNetworkRetries where it lets a request through", async () => {
    world.simulator.fault({ match: { path: "/v1/customers" }, mode: "error_500_before", times: 9 });
    const options = { idempotencyKey: "mine" };
    await rejection(guarded({ maxNetworkRetries: 0 }).customers.create({ name: "Ada" }, options));
    expect(keysOf("/v1/customers")).toEqual(["mine"]);
    await rejection(guarded({ maxNetworkRetries: 1 }).customers.create({ name: "Ada" }, options));
    expect(keysOf("/v1/customers")).toEqual(["mine", "mine", "mine"]);
    await rejection(guarded().customers.create({ name: "Ada" }, { ...options, maxNetworkRetries: 1 }));
    expect(keysOf("/v1/customers")).toHaveLength(5);
  });

  it("never sends a harmless write twice without a key", async () => {
    world.simulator.fault({ match: { method: "POST" }, mode: "drop_after_execute" });
    await guarded().customers.create({ name: "Ada" });
    const keys = keysOf("/v1/customers");
    expect(keys).toHaveLength(2);
    expect(keys[0]).not.toBeNull();
    expect(keys[1]).toBe(keys[0]);
  });

  it("pages in each of the three ways", async () => {
    const stripe = guarded();
    for (const name of ["a", "b", "c"]) await stripe.customers.create({ name });
    const iterated: unknown[] = [];
    for await (const customer of stripe.customers.list({ limit: 2 })) iterated.push(customer.name);
    const each: unknown[] = [];
    await stripe.customers.list({ limit: 2 }).autoPagingEach((customer) => {
      each.push(customer.name);
    });
    const array = await stripe.customers.list({ limit: 2 }).autoPagingToArray({ limit: 10 });
    expect(iterated).toEqual(["c", "b", "a"]);
    expect(each).toEqual(iterated);
    expect(array.map(({ name }) => name)).toEqual(iterated);
  });

  it("keeps the vendor account of a call with the spend, and another key of the call on the wire", async () => {
    await guarded().charges.create({ ...CHARGE }, { spend: SPEND, stripeAccount: "acct_9", apiKey: "sk_test_2" });
    expect(world.plane.authorization().vendorAccount).toBe("acct_9");
    expect(world.simulator.requests()[0]).toMatchObject({ account: "acct_9", key: KEY });
  });

  const hasContexts = "withStripeContext" in StripeClient.prototype;
  it.runIf(hasContexts)("lets a client of another context charge only as a spend, in its account", async () => {
    const clone = guarded().withStripeContext(Stripe.StripeContext.parse("acct_7")) as GuardedStripe;
    expect(await rejection(clone.charges.create({ ...CHARGE }))).toMatchObject({ name: "SpendIdentityMissingError" });
    await clone.charges.create({ ...CHARGE }, { spend: SPEND });
    expect(world.plane.authorization().vendorAccount).toBe("acct_7");
    expect(keysOf("/v1/charges")).toEqual([KEY]);
  });

  it("lets an upload through as it is", async () => {
    const { client, recorded } = recordingClient(StripeClient);
    const file = { name: "proof.png", type: "application/octet-stream", data: Buffer.from([0, 255, 13, 10, 45, 45]) };
    await guarded({ httpClient: client }).files.create({ purpose: "dispute_evidence", file });
    const [upload] = recorded;
    expect(recorded).toHaveLength(1);
    expect(upload).toMatchObject({ method: "POST", path: "/v1/files" });
    expect(upload?.headers["Content-Type"]).toMatch(/^multipart\/form-data; boundary=/);
    expect(upload?.body).toBeInstanceOf(Uint8Array);
    expect(Buffer.from(upload?.body as Uint8Array).includes(file.data)).toBe(true);
    expect(world.plane.calls).toEqual([]);
  });

  it("streams a read, and the answer of a guarded charge", async () => {
    const stripe = guarded();
    const { id } = await stripe.customers.create({ name: "Ada" });
    const streaming = { streaming: true } as Stripe.RequestOptions;
    const read = (await stripe.customers.retrieve(id, undefined, streaming)) as unknown as NodeJS.ReadableStream;
    expect(JSON.parse(await text(read))).toMatchObject({ id, name: "Ada" });
    const charged = await stripe.charges.create({ ...CHARGE }, { ...streaming, spend: SPEND });
    expect(JSON.parse(await text(charged as unknown as NodeJS.ReadableStream))).toMatchObject({ paid: true });
    expect(world.charges()).toBe(1);
  });

  it("emits the events of the requests that leave, on the client it was made from", async () => {
    const client = plain();
    const seen: string[] = [];
    client.on("request", ({ method, path }: Stripe.RequestEvent) => seen.push(`${method} ${path}`));
    client.on("response", ({ status }: Stripe.ResponseEvent) => seen.push(String(status)));
    const stripe = world.holdfast().stripe(client);
    await stripe.customers.create({ name: "Ada" });
    await stripe.charges.create({ ...CHARGE }, { spend: SPEND });
    expect(seen).toEqual(["POST /v1/customers", "200", "POST /v1/charges", "200"]);
  });

  it("sends what its v2 API could move as a spend only, with the stable key", async () => {
    const stripe = guarded();
    const event = { event_name: "calls", payload: { stripe_customer_id: "cus_1", value: "1" } };
    const error = await rejection(stripe.v2.billing.meterEvents.create(event));
    expect(error).toMatchObject({ name: "SpendIdentityMissingError" });
    expect(world.simulator.requests()).toEqual([]);
    const spend = { ...SPEND, upTo: { amount: "1.00", currency: "usd" } };
    await stripe.v2.billing.meterEvents.create(event, { spend });
    expect(keysOf("/v2/billing/meter_events")).toEqual([KEY]);
  });

  it("gives money back as a spend, once", async () => {
    const stripe = guarded();
    const { id } = await stripe.charges.create({ ...CHARGE }, { spend: SPEND });
    const back = { ...SPEND, purpose: "refund" };
    world.simulator.fault({ match: { path: "/v1/refunds" }, mode: "drop_after_execute" });
    const refund = await stripe.refunds.create({ charge: id, amount: 900 }, { spend: back });
    const again = await guarded().refunds.create({ charge: id, amount: 900 }, { spend: back });
    expect([refund.amount, again.id]).toEqual([900, refund.id]);
    const key = stableKey(back.customerId, back.billingPeriod, back.purpose);
    expect(keysOf("/v1/refunds")).toEqual([key, key]);
    expect(world.simulator.movements().filter(({ kind }) => kind === "refund")).toHaveLength(1);
  });
});

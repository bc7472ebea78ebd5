import { createHoldfast, type Holdfast, type SpendOption } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { charge, payment, type ProxyWorld, secret, startProxyWorld } from "./world.ts";

let world: ProxyWorld;
const opened: Holdfast[] = [];

beforeAll(async () => {
  world = await startProxyWorld();
});
afterAll(async () => {
  await Promise.all(opened.map((holdfast) => holdfast.close()));
  await world.close();
});

/** A client of the SDK with the vault key that a client of the proxy has too, and a spend that both speak of. */
async function both(vaultKey: string, proxy: Parameters<ProxyWorld["key"]>[1] = {}) {
  const token = await world.key(vaultKey, proxy);
  const holdfast = createHoldfast({ baseUrl: world.server.apps[0]?.url ?? "", vaultKey: token });
  opened.push(holdfast);
  const { hostname: host, port } = new URL(world.simulator.url);
  const stripe = holdfast.stripe(new Stripe(secret, { host, port: Number(port), protocol: "http" }));
  const spend: SpendOption = { customerId: vaultKey, billingPeriod: "2026-11", purpose: "subscription" };
  return {
    stripe,
    spend,
    ask: (path: string, fields: Readonly<Record<string, string>>) =>
      world.ask("POST", path, {
        token,
        fields,
        headers: { "holdfast-spend": `customer=${vaultKey}; period=2026-11; purpose=subscription` },
      }),
  };
}

const writes = () => world.simulator.requests().filter(({ method }) => method !== "GET").length;
const idempotencyError = {
  status: 400,
  body: { error: { type: "idempotency_error", message: expect.stringContaining("other parameters") as unknown } },
};

describe("a spend that the SDK has made, asked for through the proxy", () => {
  test("in one call: another body is refused and sends nothing, the same one gets the object", async () => {
    const { stripe, spend, ask } = await both("onecall");
    const made = await stripe.charges.create({ amount: 4900, currency: "usd", source: "tok_visa" }, { spend });
    const before = writes();
    expect(await ask("/v1/charges", { ...charge, source: "tok_mastercard" })).toMatchObject(idempotencyError);
    expect(await ask("/v1/charges", { ...charge, description: "another customer" })).toMatchObject(idempotencyError);
    expect(await ask("/v1/charges", charge)).toMatchObject({ status: 200, body: { id: made.id } });
    expect(writes()).toBe(before);
  });

  test("in two steps: another body is refused and sends nothing, the same one gets the object", async () => {
    const { stripe, spend, ask } = await both("twostep");
    const made = await stripe.paymentIntents.create(
      { amount: 4900, currency: "usd", payment_method: "pm_card_visa", confirm: true },
      { spend },
    );
    expect(made.status).toBe("succeeded");
    const before = writes();
    expect(await ask("/v1/payment_intents", { ...payment, payment_method: "pm_card_mastercard" })).toMatchObject(
      idempotencyError,
    );
    expect(await ask("/v1/payment_intents", payment)).toMatchObject({ status: 200, body: { id: made.id } });
    expect(writes()).toBe(before);
  });

  test("and not confirmed yet: another body does not get or confirm its object", async () => {
    const { stripe, spend, ask } = await both("unconfirmed");
    const made = await stripe.paymentIntents.create(
      { amount: 4900, currency: "usd", payment_method: "pm_card_visa" },
      { spend },
    );
    const before = writes();
    const { confirm: _, ...unconfirmed } = payment;
    expect(await ask("/v1/payment_intents", payment)).toMatchObject(idempotencyError);
    expect(await ask("/v1/payment_intents", unconfirmed)).toMatchObject({
      status: 200,
      body: { id: made.id, status: "requires_confirmation" },
    });
    expect(writes()).toBe(before);
  });

  test("the other way round, the SDK is answered with the object whatever the body says", async () => {
    const { stripe, spend, ask } = await both("reverse");
    const made = await ask("/v1/charges", charge);
    expect(made.status).toBe(200);
    const again = await stripe.charges.create({ amount: 4900, currency: "usd", source: "tok_mastercard" }, { spend });
    expect(again.id).toBe(made.body.id);
  });
});

describe("a declined payment that is kept", () => {
  test("is paid with another card under the same spend, and its repeat is told of that", async () => {
    const { ask } = await both("kept", { proxy: { keepDeclined: true } });
    const declined = await ask("/v1/payment_intents", { ...payment, payment_method: "pm_card_chargeDeclined" });
    expect(declined.status).toBe(402);
    const paid = await ask("/v1/payment_intents", payment);
    expect(paid).toMatchObject({ status: 200, body: { status: "succeeded" } });
    await world.server.database.pool.query(
      `update holdfast.proxied_requests set key_id = null, nonce = null, ciphertext = null, answer_omitted = true
       where vault_key_id = 'kept' and ciphertext is not null`,
    );
    expect(await ask("/v1/payment_intents", payment)).toMatchObject({ status: 200, body: { id: paid.body.id } });
    expect(await ask("/v1/payment_intents", { ...payment, payment_method: "pm_card_mastercard" })).toMatchObject(
      idempotencyError,
    );
  });
});

import { stableKey } from "@holdfast/sdk";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

// Stripe's client repeats a request by itself when the connection was reset, also with maxNetworkRetries 0.
test.each<[BillingKind, "drop_before_execute" | "drop_after_execute"]>([
  ["one_call", "drop_before_execute"],
  ["one_call", "drop_after_execute"],
  ["two_step", "drop_before_execute"],
  ["two_step", "drop_after_execute"],
])("%s, the first send is reset (%s): every repeat has the spend's own key, one charge", async (kind, mode) => {
  const customerId = `${kind}-${mode}`;
  const key = stableKey(customerId, billingPeriod, purpose);
  const moving = kind === "two_step" ? `${key}-confirm-1` : key;
  till.simulator.fault({ mode, match: { key: moving } });
  const clerk = till.clerk();
  const { host, port } = till.simulator;
  const stripe = clerk.holdfast.stripe(
    new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false, maxNetworkRetries: 0 }),
  );
  const spend = { customerId, billingPeriod, purpose };
  const body = { amount, currency: "usd", customer: customerId };
  const { status } =
    kind === "two_step"
      ? await stripe.paymentIntents.create({ ...body, payment_method: "pm_card_visa", confirm: true }, { spend })
      : await stripe.charges.create({ ...body, source: "tok_visa" }, { spend });
  expect(status).toBe("succeeded");
  const sent = till.simulator.requests().filter((one) => one.method === "POST" && one.key?.startsWith(key));
  expect(sent.map((one) => one.key)).toEqual(kind === "two_step" ? [key, moving, moving] : [key, key]);
  expect(till.charges(customerId)).toHaveLength(1);
  const events = await till.events(customerId);
  expect(events.filter(({ kind: what }) => what === "spend.granted")).toHaveLength(1);
});

test("a write that is passed on is repeated with one key, though the application gave none", async () => {
  till.simulator.fault({ mode: "drop_before_execute", match: { path: /customers$/ } });
  const { host, port } = till.simulator;
  const plain = new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false, maxNetworkRetries: 0 });
  const stripe = till.clerk().holdfast.stripe(plain) as Stripe;
  const customer = await stripe.customers.create({ name: "Ada" }).catch((error: unknown) => error);
  const keys = till.simulator.requests().flatMap(({ path, key }) => (path === "/v1/customers" ? [key] : []));
  expect(keys.length).toBeGreaterThan(1);
  expect(keys[0]).toBeTruthy();
  expect(new Set(keys).size).toBe(1);
  expect(customer).toMatchObject({ object: "customer" });
});

test("settings under which a vendor call would outlive its hold are refused", () => {
  expect(() => till.clerk({ holdMs: 60_000, vendorDeadlineMs: 30_000 })).toThrow(TypeError);
});

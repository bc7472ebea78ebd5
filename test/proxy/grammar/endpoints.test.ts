import { join } from "node:path";
import { findStripeEndpoint, planOf } from "@holdfast/sdk/stripe-vendor";
import { expect, test } from "vitest";
import { findEndpoint } from "../../../server/proxy/stripe-endpoints.ts";
import { STRIPE_PARAMETERS } from "../../../server/proxy/stripe-parameters.ts";
import { readKind, stripeWrites } from "../../../server/proxy/stripe-reads.ts";
import { readParameters, readReads } from "../../../tools/stripe-parameters.ts";
import { read, request, verdict } from "./requests.ts";

const majors = ["stripe", "stripe20", "stripe18"].map((name) =>
  join(import.meta.dirname, "../../../node_modules", name),
);

function targetOf(endpoint: string): string {
  return endpoint.slice(endpoint.indexOf("/")).replaceAll(":id", "x_1");
}

/** Of other hosts, or with a card's number in the answer. */
const leftOut = new Set(["GET /v1/quotes/:id/pdf", "GET /v1/issuing/cards/:id/details"]);

test("every read that stripe-node has is known, and known as what it is", () => {
  const known = majors.flatMap((folder) => [...readReads(folder)]);
  expect(known.length).toBeGreaterThan(700);
  for (const [endpoint, lists] of known) {
    if (leftOut.has(endpoint)) continue;
    expect(findEndpoint("GET", targetOf(endpoint)), endpoint).toBe(endpoint);
    if (lists) expect(readKind(endpoint), endpoint).toBe("list");
    if (readKind(endpoint) === "retrieve") expect(endpoint).toContain(":id");
  }
  for (const endpoint of leftOut) expect(findEndpoint("GET", targetOf(endpoint)), endpoint).toBeUndefined();
});

test.each([
  ["/v1/charges/ch_1", "retrieve"],
  ["/v1/customers/cus_1/cash_balance", "retrieve"],
  ["/v1/subscriptions/sub_1", "retrieve"],
  ["/v1/charges", "list"],
  ["/v1/charges/search", "list"],
  ["/v1/invoices/upcoming", "list"],
  ["/v1/invoices/in_1/lines", "list"],
  ["/v1/customers/cus_1/subscriptions", "list"],
  ["/v1/account", "list"],
  ["/v1/balance", "list"],
  ["/v1/events", "list"],
  ["/v1/tax_codes/txcd_1", "list"],
])("GET %s is a %s", (path, kind) => {
  expect(readKind(read(request("GET", path)).endpoint)).toBe(kind);
});

test.each([
  "/v1/payment_intents/:id",
  "/v1/test_helpers/refunds",
  "/v1/invoices/create_preview",
  "/oauth/token",
  "/v1",
])("GET %s is none", (path) => {
  expect(findEndpoint("GET", path)).toBeUndefined();
});

test.each([
  "/v1/payment_intents/search",
  "/v1/invoices/upcoming",
  "/v1/invoices/search/pay",
  "/v1/credit_notes/preview",
])("POST %s is none", (path) => {
  expect(verdict(request("POST", path))).toBe("404 unknown_endpoint");
});

test("every write of the SDK's table is read as the SDK reads it", () => {
  expect(stripeWrites.length).toBeGreaterThan(400);
  for (const endpoint of stripeWrites) {
    const method = endpoint.slice(0, endpoint.indexOf(" "));
    const found = read(request(method, targetOf(endpoint)));
    expect(found.endpoint).toBe(endpoint);
    expect(findStripeEndpoint(method, found.path)?.endpoint).toBe(endpoint);
  }
});

test("every write that is guarded takes a closed list of parameters, and no other does", () => {
  const guarded = stripeWrites.filter((endpoint) => {
    const [method = "", path = ""] = endpoint.split(" ");
    const known = findStripeEndpoint(method, path.replaceAll(":id", "x"));
    return known !== undefined && !["pass", "named"].includes(planOf(known).flow);
  });
  expect(Object.keys(STRIPE_PARAMETERS).toSorted()).toEqual(guarded.toSorted());
  for (const endpoint of guarded) {
    const [method = ""] = endpoint.split(" ");
    const isJson = endpoint.includes(" /v2/");
    const target = targetOf(endpoint);
    const whole =
      method === "DELETE"
        ? request(method, `${target}?holdfast_unknown=1`)
        : request(method, target, isJson ? '{"holdfast_unknown":1}' : "holdfast_unknown=1");
    expect(verdict(whole), endpoint).toBe("400 unknown_parameter holdfast_unknown");
  }
});

test("every parameter that stripe-node has for a guarded write is known", () => {
  for (const folder of majors) {
    for (const [endpoint, names] of readParameters(folder)) {
      const known = STRIPE_PARAMETERS[endpoint]?.split(/\s+/);
      if (known === undefined) continue;
      expect(
        [...names].filter((name) => !known.includes(name)),
        endpoint,
      ).toEqual([]);
    }
  }
});

test.each([
  ["POST /v1/charges", ["amount", "application_fee", "capture", "card", "currency", "customer", "source", "metadata"]],
  [
    "POST /v1/payment_intents",
    ["amount", "confirm", "payment_method", "payment_method_types", "source", "off_session"],
  ],
  ["POST /v1/payment_intents/:id/confirm", ["amount_to_confirm", "payment_method", "return_url"]],
  ["POST /v1/refunds", ["amount", "charge", "payment_intent", "reason", "metadata"]],
  ["POST /v1/subscriptions", ["customer", "items", "coupon", "payment_behavior", "trial_period_days"]],
  ["POST /v1/invoiceitems", ["amount", "currency", "customer", "price", "pricing", "unit_amount"]],
])("%s knows what clients have sent for years", (endpoint, names) => {
  expect(STRIPE_PARAMETERS[endpoint]?.split(/\s+/)).toEqual(expect.arrayContaining(names));
});

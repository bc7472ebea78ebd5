import { captureCharge, createCharge, listCharges, retrieveCharge, updateCharge } from "./charges.ts";
import { createCustomer, listCustomers, retrieveCustomer, updateCustomer } from "./customers.ts";
import { StripeRefusal } from "./errors.ts";
import { listEvents, retrieveEvent } from "./events.ts";
import {
  cancelPaymentIntent,
  createPaymentIntent,
  listPaymentIntents,
  retrievePaymentIntent,
  updatePaymentIntent,
} from "./payment-intents.ts";
import { capturePaymentIntent, confirmPaymentIntent } from "./payment-intent-confirm.ts";
import { createRefund, listRefunds, retrieveRefund } from "./refunds.ts";
import { searchCharges, searchPaymentIntents } from "./search.ts";
import type { Endpoint } from "./state.ts";

/** `:id` stands for one segment; literal routes come before those that would swallow them. */
const routes: readonly (readonly [method: "GET" | "POST", pattern: string, endpoint: Endpoint])[] = [
  ["POST", "/v1/charges", createCharge],
  ["GET", "/v1/charges", listCharges],
  ["GET", "/v1/charges/search", searchCharges],
  ["GET", "/v1/charges/:id", retrieveCharge],
  ["POST", "/v1/charges/:id", updateCharge],
  ["POST", "/v1/charges/:id/capture", captureCharge],
  ["POST", "/v1/payment_intents", createPaymentIntent],
  ["GET", "/v1/payment_intents", listPaymentIntents],
  ["GET", "/v1/payment_intents/search", searchPaymentIntents],
  ["GET", "/v1/payment_intents/:id", retrievePaymentIntent],
  ["POST", "/v1/payment_intents/:id", updatePaymentIntent],
  ["POST", "/v1/payment_intents/:id/confirm", confirmPaymentIntent],
  ["POST", "/v1/payment_intents/:id/cancel", cancelPaymentIntent],
  ["POST", "/v1/payment_intents/:id/capture", capturePaymentIntent],
  ["POST", "/v1/customers", createCustomer],
  ["GET", "/v1/customers", listCustomers],
  ["GET", "/v1/customers/:id", retrieveCustomer],
  ["POST", "/v1/customers/:id", updateCustomer],
  ["POST", "/v1/refunds", createRefund],
  ["GET", "/v1/refunds", listRefunds],
  ["GET", "/v1/refunds/:id", retrieveRefund],
  ["GET", "/v1/events", listEvents],
  ["GET", "/v1/events/:id", retrieveEvent],
];

const compiled = routes.map(([method, pattern, endpoint]) => ({
  method,
  pattern: new RegExp(`^${pattern.replaceAll(":id", "([A-Za-z0-9_]+)")}$`),
  endpoint,
}));

/** The endpoint of a request and the ids in its path. Throws Stripe's 404 for a URL that it does not know. */
export function routeOf(method: string, path: string): { endpoint: Endpoint; ids: string[] } {
  for (const route of compiled) {
    const match = route.method === method ? route.pattern.exec(path) : null;
    if (match !== null) return { endpoint: route.endpoint, ids: match.slice(1) };
  }
  throw new StripeRefusal(404, {
    type: "invalid_request_error",
    message: `Unrecognized request URL (${method}: ${path}).`,
  });
}

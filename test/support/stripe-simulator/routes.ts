import { captureCharge, createCharge, listCharges, retrieveCharge, updateCharge } from "./charges.ts";
import { checkoutRoutes } from "./checkout.ts";
import { climateRoutes } from "./climate.ts";
import { creditNoteRoutes } from "./credit-notes.ts";
import { creditRoutes } from "./credits.ts";
import { createCustomer, listCustomers, retrieveCustomer, updateCustomer } from "./customers.ts";
import { disputeRoutes } from "./disputes.ts";
import { unknownUrl } from "./errors.ts";
import { listEvents, retrieveEvent } from "./events.ts";
import { feeRoutes } from "./fees.ts";
import { genericEndpoint } from "./generic.ts";
import { genericRead } from "./generic-read.ts";
import { invoiceItemRoutes } from "./invoice-items.ts";
import { previewRoutes } from "./invoice-preview.ts";
import { invoiceRoutes } from "./invoices.ts";
import { issuingRoutes } from "./issuing.ts";
import { meterEventRoutes } from "./meter-events.ts";
import { moneyEndpoints } from "./money-endpoints.ts";
import {
  applyCustomerBalance,
  fundCashBalance,
  retrieveCashBalance,
  verifyMicrodeposits,
} from "./payment-intent-bank.ts";
import { capturePaymentIntent, incrementAuthorization } from "./payment-intent-capture.ts";
import { confirmPaymentIntent } from "./payment-intent-confirm.ts";
import {
  cancelPaymentIntent,
  createPaymentIntent,
  listPaymentIntents,
  retrievePaymentIntent,
  updatePaymentIntent,
} from "./payment-intents.ts";
import { paymentLinkRoutes } from "./payment-links.ts";
import { payoutRoutes } from "./payouts.ts";
import { quoteRoutes } from "./quotes.ts";
import { refundRoutes } from "./refunds.ts";
import { searchRoutes } from "./search.ts";
import type { Endpoint, Routes } from "./state.ts";
import { scheduleRoutes } from "./subscription-schedules.ts";
import { subscriptionRoutes } from "./subscriptions.ts";
import { terminalRoutes } from "./terminal.ts";
import { topupRoutes } from "./topups.ts";
import { transferRoutes } from "./transfers.ts";
import { treasuryRoutes } from "./treasury.ts";
import { v2MoneyRoutes } from "./v2-money.ts";

const paymentRoutes: Routes = [
  ["POST", "/v1/charges", createCharge],
  ["GET", "/v1/charges", listCharges],
  ["GET", "/v1/charges/:id", retrieveCharge],
  ["POST", "/v1/charges/:id", updateCharge],
  ["POST", "/v1/charges/:id/capture", captureCharge],
  ["POST", "/v1/payment_intents", createPaymentIntent],
  ["GET", "/v1/payment_intents", listPaymentIntents],
  ["GET", "/v1/payment_intents/:id", retrievePaymentIntent],
  ["POST", "/v1/payment_intents/:id", updatePaymentIntent],
  ["POST", "/v1/payment_intents/:id/confirm", confirmPaymentIntent],
  ["POST", "/v1/payment_intents/:id/cancel", cancelPaymentIntent],
  ["POST", "/v1/payment_intents/:id/capture", capturePaymentIntent],
  ["POST", "/v1/payment_intents/:id/increment_authorization", incrementAuthorization],
  ["POST", "/v1/payment_intents/:id/apply_customer_balance", applyCustomerBalance],
  ["POST", "/v1/payment_intents/:id/verify_microdeposits", verifyMicrodeposits],
];

/** Whose secret it is. */
const retrieveAccount: Endpoint = ({ account }) => ({ run: () => ({ id: account.id, object: "account" }) });

const customerRoutes: Routes = [
  ["GET", "/v1/account", retrieveAccount],
  ["POST", "/v1/customers", createCustomer],
  ["GET", "/v1/customers", listCustomers],
  ["GET", "/v1/customers/:id", retrieveCustomer],
  ["POST", "/v1/customers/:id", updateCustomer],
  ["GET", "/v1/customers/:id/cash_balance", retrieveCashBalance],
  ["POST", "/v1/test_helpers/customers/:id/fund_cash_balance", fundCashBalance],
];

const eventRoutes: Routes = [
  ["GET", "/v1/events", listEvents],
  ["GET", "/v1/events/:id", retrieveEvent],
];

/** The rest of the writes: those with fewer placeholders first, so that a name is not taken for an id. */
const genericRoutes: Routes = moneyEndpoints
  .toSorted((a, b) => placeholders(a.pattern) - placeholders(b.pattern))
  .map((endpoint) => [endpoint.method, endpoint.pattern, genericEndpoint(endpoint)] as const);

const compiled = [
  ...searchRoutes,
  ...paymentRoutes,
  ...customerRoutes,
  ...eventRoutes,
  ...refundRoutes,
  ...disputeRoutes,
  ...feeRoutes,
  ...transferRoutes,
  ...payoutRoutes,
  ...topupRoutes,
  ...creditRoutes,
  ...creditNoteRoutes,
  ...meterEventRoutes,
  ...previewRoutes,
  ...invoiceRoutes,
  ...invoiceItemRoutes,
  ...subscriptionRoutes,
  ...scheduleRoutes,
  ...quoteRoutes,
  ...checkoutRoutes,
  ...paymentLinkRoutes,
  ...treasuryRoutes,
  ...issuingRoutes,
  ...climateRoutes,
  ...terminalRoutes,
  ...v2MoneyRoutes,
  ...genericRoutes,
].map(([method, pattern, endpoint]) => ({
  method,
  pattern: new RegExp(`^${pattern.replaceAll(":id", "([^/]+)")}$`),
  endpoint,
}));

/** The endpoint of a request and the ids in its path. Throws Stripe's 404 for a URL that it does not know. */
export function routeOf(method: string, path: string): { endpoint: Endpoint; ids: string[] } {
  for (const route of compiled) {
    const match = route.method === method ? route.pattern.exec(path) : null;
    if (match !== null) return { endpoint: route.endpoint, ids: match.slice(1).map((id) => decoded(method, path, id)) };
  }
  if (method === "GET") return { endpoint: genericRead(path), ids: [] };
  throw unknownUrl(method, path);
}

function decoded(method: string, path: string, id: string): string {
  try {
    return decodeURIComponent(id);
  } catch {
    throw unknownUrl(method, path);
  }
}

function placeholders(pattern: string): number {
  return pattern.split(":id").length;
}

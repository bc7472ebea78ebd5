import { createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { Direction } from "@holdfast/api/holdfast/v1/spend_pb";

/** Tokens of the two vault keys of a run. */
export interface Policy {
  readonly stripe: string;
  readonly plain: string;
}

const stripeEndpoints = [
  "POST /v1/payment_intents",
  "POST /v1/payment_intents/:id/:step",
  "POST /v1/charges",
  "POST /v1/charges/:id/capture",
  "POST /v1/invoices/:id/:step",
  "POST /v1/subscriptions",
  "POST /v1/checkout/sessions",
  "POST /v1/payment_links",
  "POST /v1/refunds",
  "POST /v1/transfers",
  "POST /v1/transfers/:id/reversals",
  "POST /v1/credit_notes",
  "POST /v1/payouts",
  "POST /v1/topups",
  "POST /v1/customers/:id/balance_transactions",
  "POST /v2/money_management/outbound_payments",
];

/**
 * Caps of every kind. The day and the customer of one are small enough to deny, now and then, what asks for the last
 * of them.
 */
export async function createPolicy(url: string, operatorToken: string): Promise<Policy> {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${operatorToken}`);
    return next(request);
  };
  const transport = createConnectTransport({ baseUrl: url, httpVersion: "2", interceptors: [authorize] });
  const admin = createClient(AdminService, transport);
  const usd = (amount: string) => ({ currency: "usd", amount });
  const caps = {
    everything: { limit: usd("10000000"), window: CapWindow.LIFETIME },
    day: { limit: usd("6000"), window: CapWindow.DAY },
    customer: { limit: usd("450"), window: CapWindow.LIFETIME, perCustomer: true },
    refunds: { limit: usd("10000000"), window: CapWindow.LIFETIME, direction: Direction.REFUND },
    refundday: { limit: usd("1500"), window: CapWindow.DAY, direction: Direction.REFUND },
  };
  for (const [capId, cap] of Object.entries(caps)) await admin.createCap({ capId, cap });
  const key = async (vaultKeyId: string, vendor: string, allowedEndpoints: string[]) =>
    (await admin.createVaultKey({ vaultKeyId, vaultKey: { vendor, allowedEndpoints } })).token;
  return {
    stripe: await key("stripe", "stripe", stripeEndpoints),
    plain: await key("plain", "messages", ["POST /messages"]),
  };
}

import Stripe from "stripe";

export interface StubRequest {
  readonly method: string;
  readonly path: string;
  readonly body: string;
  readonly key: string | undefined;
}

/**
 * A vendor that has every object: reads answer one with money on it, writes carry out what they are asked. `before` is
 * what reads answer for a collection, where it matters how far its objects are.
 */
export function createStubVendor(before: Readonly<Record<string, object>> = {}) {
  const requests: StubRequest[] = [];
  const client = {
    getClientName: () => "stub",
    makeRequest(...args: [string, unknown, string, string, Record<string, unknown>, unknown]) {
      const [, , path, method, headers, data] = args;
      const key = Object.entries(headers).find(([name]) => name.toLowerCase() === "idempotency-key")?.[1];
      const request = {
        method,
        path,
        body: typeof data === "string" ? data : "",
        key: typeof key === "string" ? key : undefined,
      };
      requests.push(request);
      const body = answerTo(request, before);
      return Promise.resolve({
        getStatusCode: () => 200,
        getHeaders: () => ({ "request-id": "req_1" }),
        getRawResponse: () => ({}),
        toStream: () => undefined,
        toJSON: () => Promise.resolve(body),
      });
    },
  };
  const stripe = new Stripe("sk_test_1", { httpClient: client as unknown as Stripe.HttpClient, telemetry: false });
  return { requests, stripe };
}

const MONEY = { amount: 5000, currency: "usd" };

// What an object looks like before and after it has moved its money; everything else simply exists.
const OPEN: Readonly<Record<string, object>> = {
  payment_intents: { status: "requires_capture", amount_capturable: 5000, amount_received: 0, latest_charge: "ch_1" },
  invoices: { status: "open", amount_due: 5000, amount_remaining: 5000, amount_paid: 0 },
  charges: { status: "succeeded", captured: true, amount_captured: 5000, payment_intent: null },
  subscriptions: { latest_invoice: { status: "paid", amount_paid: 5000, currency: "usd" } },
  sessions: { status: "open", payment_status: "unpaid", amount_total: 5000 },
  payment_links: { active: true },
  quotes: { amount_total: 5000 },
};
const DONE: Readonly<Record<string, object>> = {
  ...OPEN,
  payment_intents: { status: "succeeded", amount_received: 5000 },
  invoices: { status: "paid", amount_paid: 5000, amount_due: 5000, amount_remaining: 0 },
  payouts: { status: "paid" },
  refunds: { status: "succeeded" },
  topups: { status: "succeeded" },
  inbound_transfers: { status: "succeeded" },
  outbound_payments: { status: "posted" },
  outbound_transfers: { status: "posted" },
};
const ENDED: Readonly<Record<string, object>> = {
  cancel: { status: "canceled" },
  void: { status: "void", amount_paid: 0 },
  expire: { status: "expired" },
};
const STILL_OPEN_AFTER = new Set([
  "add_lines",
  "finalize",
  "increment_authorization",
  "remove_lines",
  "send",
  "update_lines",
]);

function answerTo({ method, path }: StubRequest, before: Readonly<Record<string, object>>): object {
  const [bare = ""] = path.split("?");
  const segments = bare.split("/");
  const id = segments.findLast((segment) => segment.startsWith("obj_"));
  const collection = id === undefined ? segments.at(-1) : segments[segments.lastIndexOf(id) - 1];
  const last = segments.at(-1) ?? "";
  const v2 = bare.startsWith("/v2/");
  const open = method === "GET" || STILL_OPEN_AFTER.has(last) || (last === id && method === "POST");
  const given = method === "GET" ? before[collection ?? ""] : undefined;
  const state = given ?? (open ? OPEN : DONE)[collection ?? ""] ?? { status: v2 ? "posted" : "succeeded" };
  const money = v2 ? { amount: { value: 5000, currency: "usd" } } : MONEY;
  const ended = method === "POST" ? (ENDED[last] ?? {}) : method === "DELETE" ? { deleted: true } : {};
  if (bare === "/v1/invoices/create_preview") return { object: "invoice", ...MONEY, amount_due: 5000 };
  return { id: id ?? "new_1", object: "object", ...money, ...state, ...ended };
}

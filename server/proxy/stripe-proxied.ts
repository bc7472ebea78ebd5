import { findStripeEndpoint, isHarmless, planOf } from "@holdfast/sdk/stripe-vendor";
import type { StripeCarrier } from "./stripe-carrier.ts";
import { writeForm } from "./form.ts";
import { stripeDialect } from "./stripe-dialect.ts";
import { readKind } from "./stripe-reads.ts";
import type { Flow, Pair, ProxiedVendor, ProxyRequest, RequestHead } from "./vendor.ts";

/** Stripe, as the proxy's core sees it. */
export function proxiedStripe(carrier: StripeCarrier): ProxiedVendor {
  return {
    dialect: stripeDialect,
    keysRememberedForMs: carrier.resendSafeForMs,
    declinedState: "requires_payment_method",
    flowOf,
    isHarmless: ({ endpoint, query, fields }) =>
      isHarmless(
        endpoint,
        [...query, ...fields].map((pair) => ({ ...pair, raw: "" })),
      ),
    objectsIn,
    objectsOf,
    readOf,
    isPaymentMethod: (parameter) => paymentMethod.test(parameter),
    isDecline: (status) => status === 402,
    answerHeaders,
    carry({ request, token, secret, apiVersion, proxy, spend, sameBodyRequired, passedKey, beforeMoney }) {
      const { method, path, query, body, endpoint, account, contentType = "" } = request;
      return carrier.carry({
        method,
        path: query.length === 0 ? path : `${path}?${writeForm(query)}`,
        body,
        contentType,
        endpoint,
        token,
        secret,
        apiVersion,
        account,
        spend,
        sameBodyRequired,
        allow: new Set(proxy.unguardedEndpoints),
        onDecline: proxy.keepDeclined ? "keep" : "cancel",
        upstreamKey: passedKey,
        beforeMoney,
      });
    },
    close: (graceMs) => carrier.close(graceMs),
  };
}

function flowOf({ method, path, endpoint }: RequestHead): Flow {
  if (method === "GET") return readKind(endpoint);
  const known = findStripeEndpoint(method, path);
  // The dialect lets none through that the table does not know.
  if (known === undefined) return "named";
  const { flow } = planOf(known);
  switch (flow) {
    case "pass":
    case "named":
    case "edit":
      return flow;
    case "one_call":
    case "intent":
      return "begin";
    case "step":
    case "release":
      return "continue";
  }
}

/** Parameters, also within a group, that name an object whose money a write is about. */
const referring: ReadonlySet<string> = new Set([
  "charge",
  "credit_note",
  "dispute",
  "from_subscription",
  "invoice",
  "invoice_item",
  "invoice_line_item",
  "original_source",
  "payment_intent",
  "payment_record",
  "payout",
  "quote",
  "received_credit",
  "received_debit",
  "refund",
  "setup_intent",
  "source_transaction",
  "subscription",
  "subscription_item",
  "subscription_schedule",
  "transaction",
]);
// What stands in these is the client's own, whatever it is called.
const freeGroup = /(?:^|\[)(?:[a-z_]+_)?metadata\]?\[|^payload\[/;

function refers({ key, value }: Pair): boolean {
  const name = /\[([^[\]]*)\]$/.exec(key)?.[1] ?? key;
  return value !== "" && referring.has(name) && !freeGroup.test(key);
}

// What belongs to an object stands behind it in the path, and Stripe looks for it there only.
function objectsIn({ endpoint, ids, query, fields, body }: ProxyRequest): readonly string[] {
  const named = [...query, ...fields, ...membersOf(endpoint, body)].filter(refers).map(({ value }) => value);
  return [...ids.slice(0, 1).map((id) => placed(endpoint, id)), ...named];
}

/** The texts of a JSON body, at any depth, by names as those of a form. */
function membersOf(endpoint: string, body: string): readonly Pair[] {
  return body !== "" && endpoint.includes(" /v2/") ? textsIn("", JSON.parse(body)) : [];
}

function textsIn(key: string, value: unknown): readonly Pair[] {
  if (typeof value === "string") return [{ key, value }];
  if (typeof value !== "object" || value === null) return [];
  return Object.entries(value).flatMap(([name, member]) =>
    // What stands in a list is called as the list is.
    textsIn(Array.isArray(value) ? key : key === "" ? name : `${key}[${name}]`, member),
  );
}

function readOf(request: ProxyRequest): ProxyRequest {
  const { endpoint, path } = request;
  const template = endpoint.slice(endpoint.indexOf("/")).split("/");
  const end = template.lastIndexOf(":id") + 1;
  return {
    ...request,
    method: "GET",
    endpoint: `GET ${template.slice(0, end).join("/")}`,
    path: path.split("/").slice(0, end).join("/"),
    query: [],
    contentType: undefined,
    fields: [],
    body: "",
  };
}

/** A client may give any id to an object of these collections, also one that another object has elsewhere. */
const chosen = /^[A-Z]+ \/v1\/(coupons|plans|products|skus)(?:\/|$)/;

function placed(endpoint: string, id: string): string {
  const collection = chosen.exec(endpoint)?.[1];
  return collection === undefined ? id : `${collection}/${id}`;
}

/** Members of an object that are objects of their own, made together with it. */
const made = [
  "id",
  "charge",
  "invoice",
  "latest_charge",
  "latest_invoice",
  "payment_intent",
  "pending_setup_intent",
  "setup_intent",
  "subscription",
  "refund",
] as const;

function objectsOf({ endpoint, fields, body: asked }: ProxyRequest, text: string): readonly string[] {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return [];
  }
  // A decline tells of the object that was made for it.
  const { id, error } = Object(body) as { id?: unknown; error?: unknown };
  const ids = idsIn(id === undefined ? (error ?? body) : body, 0);
  if (chosen.test(endpoint)) return ids.slice(0, 1).map((id) => placed(endpoint, id));
  // What the client has named was there before.
  const named = new Set([...fields, ...membersOf(endpoint, asked)].map(({ value }) => value));
  return [...ids, ...itemsIn(body)].filter((id) => !named.has(id));
}

/** The items of a subscription have paths of their own, and are nobody's but the subscription's. */
function itemsIn(body: unknown): readonly string[] {
  const { object, items } = Object(body) as { object?: unknown; items?: { data?: unknown } | null };
  const data: unknown = object === "subscription" ? items?.data : undefined;
  return (Array.isArray(data) ? data : []).flatMap((item) => {
    const { id } = Object(item) as { id?: unknown };
    return typeof id === "string" && idPattern.test(id) ? [id] : [];
  });
}

const depthMax = 3;
const idPattern = /^[A-Za-z0-9_.-]{1,255}$/;

function idsIn(value: unknown, depth: number): readonly string[] {
  if (typeof value !== "object" || value === null || depth > depthMax) return [];
  const members = value as Readonly<Record<string, unknown>>;
  return made.flatMap((name) => {
    const member = members[name];
    if (typeof member === "string") return idPattern.test(member) ? [member] : [];
    return idsIn(member, depth + 1);
  });
}

const paymentMethod =
  /^(?:payment_method|payment_method_data|default_payment_method|confirmation_token|source|default_source|card)(?:\[|$)/;

const answerHeaders: ReadonlySet<string> = new Set([
  "idempotent-replayed",
  "original-request",
  "retry-after",
  "stripe-account",
  "stripe-rate-limited-reason",
  "stripe-should-retry",
  "stripe-version",
]);

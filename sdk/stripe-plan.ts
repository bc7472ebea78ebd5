import type { FamilyName } from "./stripe-object.ts";
import { findStripeEndpoint, type StripeEffect, type StripeEndpoint } from "./stripe-endpoints.ts";

/** Where the amount of a spend comes from, before the vendor is asked to move it. */
export type AmountSource =
  /** `amount` and `currency` of the request; where they are missing, what the caller states as `upTo`. */
  | "body"
  /** Of an object at the vendor, or the part of it that the request names. */
  | "object"
  /** A preview of the invoice, unless the caller states `upTo`. */
  | "preview"
  /** What the caller states as `upTo`: only the vendor computes the real price. */
  | "up_to";

/** What the guard does with one write. */
export type Plan =
  /** Nothing: it moves no money. */
  | { readonly flow: "pass" }
  /** Sends it only if the application allowed the endpoint by name. */
  | { readonly flow: "named" }
  /** Passes on, and gives the headroom back if the bound object has come to an end without moving money. */
  | { readonly flow: "release"; readonly family: FamilyName }
  /** Passes on, after the hold of the bound object was raised to what it will cost. */
  | { readonly flow: "edit"; readonly family: FamilyName; readonly otherwise: OneCallPlan }
  /** Creates an unconfirmed PaymentIntent, binds it, and confirms it if the caller asked for that. */
  | { readonly flow: "intent" }
  /** A step of an object that is bound, or is bound first: confirm, capture, increment, pay, finalize. */
  | { readonly flow: "step"; readonly step: StepName; readonly family: FamilyName }
  | OneCallPlan;

export type StepName =
  | "confirm"
  | "capture"
  | "increment"
  | "apply"
  | "verify"
  | "collect"
  | "process"
  | "pay"
  | "finalize";

/** One request under one key, judged by the object it answers with. */
export interface OneCallPlan {
  readonly flow: "one_call";
  readonly amount: AmountSource;
  readonly direction: "spend" | "refund";
  /** False where the vendor gives no guarantee about a repeated key: it is sent once. */
  readonly resendSafe: boolean;
  /** The kind of object in the answer; undefined where the hold itself is what is committed. */
  readonly family?: FamilyName;
  /** Our metadata may be added to the request. */
  readonly metadata: boolean;
}

function oneCall(
  amount: AmountSource,
  options: { readonly family?: FamilyName; readonly metadata?: boolean; readonly refund?: boolean } = {},
): OneCallPlan {
  return {
    flow: "one_call",
    amount,
    direction: options.refund === true ? "refund" : "spend",
    resendSafe: true,
    ...(options.family === undefined ? {} : { family: options.family }),
    metadata: options.metadata ?? false,
  };
}

function step(name: StepName, family: FamilyName): Plan {
  return { flow: "step", step: name, family };
}

function edit(family: FamilyName): Plan {
  return { flow: "edit", family, otherwise: oneCall("up_to") };
}

const REFUND = oneCall("object", { family: "refund", metadata: true, refund: true });
const REVERSAL = oneCall("object", { metadata: true, refund: true });

// Whatever is not listed follows from the effect.
const PLANS: Readonly<Record<string, Plan>> = {
  "POST /v1/payment_intents": { flow: "intent" },
  "POST /v1/payment_intents/:id": edit("payment_intent"),
  "POST /v1/payment_intents/:id/confirm": step("confirm", "payment_intent"),
  "POST /v1/payment_intents/:id/capture": step("capture", "payment_intent"),
  "POST /v1/payment_intents/:id/increment_authorization": step("increment", "payment_intent"),
  "POST /v1/payment_intents/:id/apply_customer_balance": step("apply", "payment_intent"),
  "POST /v1/payment_intents/:id/verify_microdeposits": step("verify", "payment_intent"),
  "POST /v1/payment_intents/:id/cancel": { flow: "release", family: "payment_intent" },
  "POST /v1/terminal/readers/:id/collect_payment_method": step("collect", "payment_intent"),
  "POST /v1/terminal/readers/:id/confirm_payment_intent": step("process", "payment_intent"),
  "POST /v1/terminal/readers/:id/process_payment_intent": step("process", "payment_intent"),

  "POST /v1/charges": oneCall("body", { family: "charge", metadata: true }),
  "POST /v1/charges/:id/capture": step("capture", "charge"),

  "POST /v1/invoices/:id/pay": step("pay", "invoice"),
  "POST /v1/invoices/:id/finalize": step("finalize", "invoice"),
  "POST /v1/invoices/:id/send": step("finalize", "invoice"),
  "POST /v1/invoices/:id/void": { flow: "release", family: "invoice" },
  "DELETE /v1/invoices/:id": { flow: "release", family: "invoice" },
  "POST /v1/invoices": oneCall("up_to", { family: "invoice", metadata: true }),
  "POST /v1/invoices/:id": edit("invoice"),
  "POST /v1/invoices/:id/add_lines": edit("invoice"),
  "POST /v1/invoices/:id/update_lines": edit("invoice"),
  "POST /v1/invoices/:id/remove_lines": edit("invoice"),
  "POST /v1/invoices/:id/lines/:id": edit("invoice"),
  "POST /v1/invoiceitems": oneCall("body", { metadata: true }),

  "POST /v1/subscriptions": oneCall("preview", { family: "subscription", metadata: true }),
  "POST /v1/subscriptions/:id": oneCall("preview"),
  "POST /v1/subscription_items": oneCall("preview"),
  "POST /v1/subscription_items/:id": oneCall("preview"),

  "POST /v1/checkout/sessions": oneCall("up_to", { family: "checkout_session", metadata: true }),
  "POST /v1/checkout/sessions/:id": edit("checkout_session"),
  "POST /v1/checkout/sessions/:id/expire": { flow: "release", family: "checkout_session" },
  "POST /v1/payment_links": oneCall("up_to", { family: "payment_link", metadata: true }),
  "POST /v1/payment_links/:id": edit("payment_link"),

  "POST /v1/payouts": oneCall("body", { family: "payout", metadata: true }),
  "POST /v1/transfers": oneCall("object", { family: "transfer", metadata: true }),
  "POST /v1/topups": oneCall("body", { family: "topup", metadata: true }),
  "POST /v1/treasury/inbound_transfers": oneCall("body", { family: "inbound_transfer", metadata: true }),
  "POST /v1/treasury/outbound_payments": oneCall("body", { family: "outbound_payment", metadata: true }),
  "POST /v1/treasury/outbound_transfers": oneCall("body", { family: "outbound_transfer", metadata: true }),
  "POST /v1/issuing/authorizations/:id/approve": oneCall("object"),
  "POST /v1/climate/orders": oneCall("body", { metadata: true }),
  "POST /v1/forwarding/requests": oneCall("up_to"),
  "POST /v1/quotes/:id/accept": oneCall("object"),
  "POST /v1/disputes/:id/close": oneCall("object"),
  "POST /v1/refunds/:id/cancel": oneCall("object"),
  "POST /v1/sources": oneCall("body", { metadata: true }),
  "POST /v1/customers/:id/balance_transactions": oneCall("body", { metadata: true }),
  "POST /v1/billing/credit_grants": oneCall("body", { metadata: true }),
  "POST /v1/credit_notes/:id/void": oneCall("object"),

  "POST /v1/refunds": REFUND,
  "POST /v1/charges/:id/refund": oneCall("object", { refund: true }),
  "POST /v1/charges/:id/refunds": REFUND,
  "POST /v1/credit_notes": oneCall("object", { family: "credit_note", metadata: true, refund: true }),
  "POST /v1/transfers/:id/reversals": REVERSAL,
  "POST /v1/application_fees/:id/refunds": REVERSAL,
  "POST /v1/application_fees/:id/refund": oneCall("object", { refund: true }),
  "POST /v1/payouts/:id/reverse": REVERSAL,
  "POST /v1/payouts/:id/cancel": oneCall("object", { refund: true }),
  "POST /v1/topups/:id/cancel": oneCall("object", { refund: true }),
  "POST /v1/terminal/readers/:id/refund_payment": oneCall("object", { refund: true }),
  "POST /v1/treasury/credit_reversals": oneCall("object", { metadata: true, refund: true }),
  "POST /v1/treasury/debit_reversals": oneCall("object", { metadata: true, refund: true }),

  "POST /v2/money_management/outbound_payments": v2("v2_outbound_payment"),
  "POST /v2/money_management/inbound_transfers": v2("v2_inbound_transfer"),
  "POST /v2/money_management/payout_intents": v2("v2_payout_intent"),

  // Harmless but for single fields.
  "POST /v1/customers": { flow: "named" },
  "POST /v1/treasury/financial_accounts/:id": { flow: "named" },
  "POST /v1/treasury/financial_accounts/:id/close": { flow: "named" },

  // It can send what a webhook tells, client secrets among it, to somebody else.
  "POST /v1/webhook_endpoints/:id": { flow: "named" },

  // A saved payment method is no money: whatever is charged to it later comes by here.
  "POST /v1/setup_intents": { flow: "pass" },
  "POST /v1/setup_intents/:id/confirm": { flow: "pass" },
};

// `/v2/` executes a failed request again under the same key, so it is sent once.
function v2(family: FamilyName): OneCallPlan {
  return { ...oneCall("body", { family }), resendSafe: false };
}

// Endpoints of these effects whose amount nobody can state: they hand out credentials or ways around the guard.
const WITHOUT_AMOUNT =
  /^POST (?:\/oauth\/|\/v2\/core\/|\/v1\/(?:account_links|account_sessions|accounts\/:id\/login_links|customer_sessions|customers\/:id\/funding_instructions|ephemeral_keys|issuing\/cards|terminal\/connection_tokens|tokens|webhook_endpoints)$)/;

/** What the guard does with a known write. */
export function planOf({ endpoint, effect }: StripeEndpoint): Plan {
  const plan = PLANS[endpoint];
  if (plan !== undefined) return plan;
  switch (effect) {
    case "none":
      return { flow: "pass" };
    case "config":
      return { flow: "named" };
    case "mint":
    case "commit":
    case "credit":
      return WITHOUT_AMOUNT.test(endpoint) ? { flow: "named" } : safely(endpoint, oneCall("up_to"));
    case "charge":
    case "payout":
      return safely(endpoint, oneCall("up_to"));
    case "refund":
      return safely(endpoint, oneCall("up_to", { refund: true }));
  }
}

function safely(endpoint: string, plan: OneCallPlan): OneCallPlan {
  return endpoint.includes(" /v2/") ? { ...plan, resendSafe: false } : plan;
}

// A way to charge, pay out or refund is never let past the guard.
const NEVER_BY_NAME: ReadonlySet<StripeEffect> = new Set(["charge", "payout", "refund"]);

/**
 * The endpoints that an application lets past the guard on purpose. Throws a TypeError on one that is unknown, needs
 * no permission, or moves money by itself.
 */
export function checkAllowed(allow: readonly string[]): ReadonlySet<string> {
  if (!Array.isArray(allow)) throw new TypeError('allow must be an array, for example ["POST /v1/account_links"].');
  for (const name of allow) {
    const problem = problemOfAllowing(name);
    if (problem !== undefined) throw new TypeError(`allow: ${JSON.stringify(name)} ${problem}`);
  }
  return new Set(allow);
}

/** Why a write cannot be let past the guard by its name, as words that follow the name. */
export function problemOfAllowing(name: string): string | undefined {
  const found = namedWrite(name);
  if (found === undefined) {
    return (
      "is no Stripe write this version knows. Write its method and path as in the table of endpoints, for example " +
      '"POST /v1/account_links" or "POST /v1/accounts/:id".'
    );
  }
  if (found.effect === "none" && planOf(found).flow !== "named") return "moves no money and needs no permission.";
  if (NEVER_BY_NAME.has(found.effect)) {
    return "moves money and cannot be let past the guard. Give it a spend instead.";
  }
  return undefined;
}

/** Whether a spend can be asked for with a write of exactly this name: not where it is passed on, or only by name. */
export function takesSpend(name: string): boolean {
  const found = namedWrite(name);
  return found !== undefined && !["pass", "named", "release"].includes(planOf(found).flow);
}

/** The row of the table with exactly this name. */
function namedWrite(name: string): StripeEndpoint | undefined {
  const [method = "", path = ""] = name.split(" ", 2);
  const found = findStripeEndpoint(method, path.replaceAll(":id", "x"));
  return found?.endpoint === name ? found : undefined;
}

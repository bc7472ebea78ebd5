import type { FormRules, MoneyKind } from "./form.ts";
import { STRIPE_PARAMETERS } from "./stripe-parameters.ts";

const money: readonly (readonly [string, MoneyKind])[] = [
  ["amount", "amount"],
  ["amount_to_capture", "amount"],
  ["amount_to_confirm", "amount"],
  ["unit_amount", "signed_amount"],
  ["application_fee", "part"],
  ["application_fee_amount", "part"],
  ["transfer_data[amount]", "part"],
  ["destination[amount]", "part"],
  ["currency", "currency"],
  ["auto_advance", "flag"],
  ["capture", "flag"],
  ["confirm", "flag"],
  ["error_on_requires_action", "flag"],
  ["final_capture", "flag"],
  ["invoice_now", "flag"],
  ["paid_out_of_band", "flag"],
  ["prorate", "flag"],
  ["refund_application_fee", "flag"],
  ["reverse_transfer", "flag"],
  ["capture_method", "word"],
  ["charge", "word"],
  ["confirmation_method", "word"],
  ["customer", "word"],
  ["customer_account", "word"],
  ["destination[account]", "word"],
  ["invoice", "word"],
  ["on_behalf_of", "word"],
  ["payment_intent", "word"],
  ["payment_method", "word"],
  ["price", "word"],
  ["quantity", "word"],
  ["source_transaction", "word"],
  ["subscription", "word"],
  ["transfer_data[destination]", "word"],
  ["payment_method_data", "group"],
  ["payment_method_options", "group"],
  ["transfer_data", "group"],
  ["payment_method_types", "list"],
];

// An amount below zero is the customer's.
const signed: ReadonlySet<string> = new Set([
  "POST /v1/customers/:id/balance_transactions",
  "POST /v1/invoiceitems",
  "POST /v1/invoiceitems/:id",
]);

const asUsual = new Map(money);
const withSign = new Map(money).set("amount", "signed_amount");
// The only amount in a form that is a group.
const creditGrant = new Map(money)
  .set("amount", "group")
  .set("amount[monetary][value]", "amount")
  .set("amount[monetary][currency]", "currency");

function moneyOf(endpoint: string): ReadonlyMap<string, MoneyKind> {
  if (endpoint === "POST /v1/billing/credit_grants") return creditGrant;
  return signed.has(endpoint) ? withSign : asUsual;
}

// Whose object a request is about must be read in one way also where no money moves: wherever Stripe takes these, it
// takes them as plain values.
const free: FormRules = {
  closed: undefined,
  money: new Map(
    [
      "charge",
      "confirm",
      "currency",
      "customer",
      "customer_account",
      "from_subscription",
      "invoice",
      "on_behalf_of",
      "payment_intent",
      "payment_method",
      "quote",
      "refund",
      "setup_intent",
      "source_transaction",
      "subscription",
      "subscription_item",
    ].map((name) => [name, "word"]),
  ),
};
const guarded = new Map<string, FormRules>(
  Object.entries(STRIPE_PARAMETERS).map(([endpoint, names]) => [
    endpoint,
    { closed: new Set(names.split(/\s+/).filter((name) => name !== "")), money: moneyOf(endpoint) },
  ]),
);

/** How the parameters of a Stripe endpoint are read. Those of a write that is guarded are a closed list. */
export function stripeRules(endpoint: string): FormRules {
  return guarded.get(endpoint) ?? free;
}

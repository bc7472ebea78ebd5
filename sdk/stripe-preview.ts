import { SpendUnsupportedError } from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { fromStripeAmount } from "./money.ts";
import type { StripeCall } from "./stripe-call.ts";
import { minor, text } from "./stripe-object.ts";
import { type FormField, joinForm, newField } from "./stripe-request.ts";
import { isRecord, sendToStripe } from "./stripe-send.ts";

// What a preview can be asked about in the words of a subscription; other fields change the price in ways it cannot.
const PREVIEWED = new Set([
  "billing_cycle_anchor",
  "cancel_at",
  "cancel_at_period_end",
  "default_tax_rates",
  "items",
  "proration_behavior",
  "proration_date",
  "start_date",
  "trial_end",
]);
const SHARED = new Set(["automatic_tax", "currency", "customer", "discounts"]);
// They say nothing about the price.
const IRRELEVANT = new Set([
  "collection_method",
  "days_until_due",
  "default_payment_method",
  "default_source",
  "description",
  "expand",
  "metadata",
  "off_session",
  "payment_behavior",
  "payment_settings",
]);

// The price may move between the preview and the real invoice, for example by a proration's seconds.
const MARGIN_PERCENT = 10n;

/** What Stripe's preview says that the subscription's next invoice will ask for, with a margin. */
export async function previewAmount(call: StripeCall): Promise<DecimalMoney> {
  const fields = previewFields(call);
  const { answer } = await sendToStripe(call.runtime, call.target, {
    method: "POST",
    path: "/v1/invoices/create_preview",
    endpoint: "POST /v1/invoices/create_preview",
    body: joinForm(fields),
    timeoutMs: call.vendorDeadlineMs,
  });
  const body = answer?.status === 200 && isRecord(answer.body) ? answer.body : {};
  const due = minor(body, "amount_due");
  const currency = text(body, "currency");
  if (due === undefined || currency === "") throw unknownPrice(call, "and Stripe's preview gave no amount");
  // A trial asks for nothing yet, but a spend must hold something.
  const held = due <= 0n ? 1n : due + (due * MARGIN_PERCENT + 99n) / 100n;
  return fromStripeAmount(held, currency);
}

function previewFields(call: StripeCall): FormField[] {
  const subscription = call.endpoint === "POST /v1/subscriptions/:id" ? call.ids[0] : undefined;
  if (subscription === undefined && call.endpoint !== "POST /v1/subscriptions") {
    throw unknownPrice(call, "and it has no preview");
  }
  const fields = subscription === undefined ? [] : [newField("subscription", subscription)];
  for (const field of call.fields) {
    const [name = "", ...rest] = field.key.split("[");
    if (SHARED.has(name)) fields.push(field);
    else if (PREVIEWED.has(name)) {
      const inner = [`${name}]`, ...rest].join("[");
      fields.push(newField(`subscription_details[${inner}`, field.value));
    } else if (!IRRELEVANT.has(name)) throw unknownPrice(call, `and its field ${name} cannot be previewed`);
  }
  return fields;
}

function unknownPrice(call: StripeCall, why: string): SpendUnsupportedError {
  return new SpendUnsupportedError(
    call.endpoint,
    `has a price that only Stripe computes, ${why}`,
    'State the most it may cost: spend: { …, upTo: { amount: "49.00", currency: "usd" } }.',
  );
}

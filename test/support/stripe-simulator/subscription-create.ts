import { invalidRequest } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { addItem } from "./invoice-items.ts";
import { pricingOf } from "./invoice-object.ts";
import { finalize, intentOfInvoice } from "./invoice-pay.ts";
import {
  choiceParam,
  flagParam,
  groupParam,
  groupsParam,
  integerParam,
  mergedMetadata,
  requiredParam,
  textParam,
} from "./params.ts";
import { type Priced, costOf, pricedItem } from "./pricing.ts";
import { type Context, type Endpoint, collectionOf, keep, newId } from "./state.ts";
import { chargeNow, invoiceSubscription, periodEnd, renewLater } from "./subscription-billing.ts";
import type { Subscription, SubscriptionItem } from "./subscription-object.ts";

const paymentBehaviors = [
  "allow_incomplete",
  "default_incomplete",
  "error_if_incomplete",
  "pending_if_incomplete",
] as const;

export type PaymentBehavior = (typeof paymentBehaviors)[number];

export function paymentBehaviorParam(params: Params): PaymentBehavior {
  return choiceParam(params, "payment_behavior", paymentBehaviors) ?? "allow_incomplete";
}

/**
 * POST /v1/subscriptions: the first invoice is finalized at once, and charged unless `payment_behavior` is
 * `default_incomplete`. With `error_if_incomplete` a decline leaves no subscription.
 */
export const createSubscription: Endpoint = (context) => {
  const customer = textParam(context.params, "customer") ?? context.ids[0];
  return startSubscription(context, context.params, requiredParam(customer, "customer"));
};

/** As `createSubscription`, with parameters that may come from elsewhere. */
export function startSubscription(context: Context, params: Params, customer: string) {
  const items = groupsParam(params, "items");
  const single = textParam(params, "plan") ?? textParam(params, "price");
  const priced = (items.length > 0 ? items : single === undefined ? [] : [params]).map((item) =>
    pricedOf(context, item),
  );
  const [first] = priced;
  if (first === undefined) throw invalidRequest("Missing required param: items.", { param: "items" });
  const extra = groupsParam(params, "add_invoice_items").map((item) => pricedOf(context, item));
  const behavior = paymentBehaviorParam(params);
  const isManual = textParam(params, "collection_method") === "send_invoice";
  const draft: Partial<Subscription> = {
    automatic_tax: { enabled: textParam(groupParam(params, "automatic_tax"), "enabled") === "true" },
    cancel_at_period_end: flagParam(params, "cancel_at_period_end") ?? false,
    collection_method: isManual ? "send_invoice" : "charge_automatically",
    days_until_due: integerParam(params, "days_until_due") ?? null,
    default_payment_method: textParam(params, "default_payment_method") ?? null,
    description: textParam(params, "description") ?? null,
    metadata: mergedMetadata(params),
  };
  const trialDays = integerParam(params, "trial_period_days");
  const trialEnd = /^[0-9]+$/.test(textParam(params, "trial_end") ?? "")
    ? integerParam(params, "trial_end")
    : undefined;
  return {
    lock: customer,
    run: () => {
      const subscription = blankSubscription(context, { ...draft, currency: first.currency, customer });
      subscription.items.data = priced.map((item) => newItem(context, subscription, item));
      const end = trialEnd ?? (trialDays === undefined ? undefined : context.clock.seconds() + trialDays * 86_400);
      if (end !== undefined) startTrial(context, subscription, end);
      keep(context.account, subscription);
      for (const item of extra) bill(context, subscription, item);
      emit(context, "customer.subscription.created", subscription);
      chargeFirst(context, subscription, behavior);
      renewLater(context, subscription);
      return subscription;
    },
  };
}

function startTrial(context: Context, subscription: Subscription, end: number): void {
  subscription.status = "trialing";
  subscription.trial_start = context.clock.seconds();
  subscription.trial_end = end;
  for (const item of subscription.items.data) item.current_period_end = end;
}

function chargeFirst(context: Context, subscription: Subscription, behavior: PaymentBehavior): void {
  const isTrial = subscription.status === "trialing";
  const invoice = invoiceSubscription(context, subscription, { reason: "subscription_create", withItems: true });
  if (!isTrial && subscription.collection_method === "charge_automatically") subscription.status = "incomplete";
  if (behavior === "default_incomplete") {
    finalize(context, invoice);
    invoice.auto_advance = false;
    return;
  }
  try {
    chargeNow(context, invoice, behavior === "error_if_incomplete");
  } catch (error) {
    collectionOf(context.account, "subscription").delete(subscription.id);
    subscription.status = "incomplete_expired";
    const intent = intentOfInvoice(context, invoice);
    if (intent !== undefined) intent.status = "canceled";
    invoice.status = "void";
    throw error;
  }
  // A first invoice that was declined is not tried again by itself.
  if (invoice.status === "open" && subscription.collection_method === "charge_automatically")
    invoice.auto_advance = false;
}

function pricedOf(context: Context, params: Params): Priced {
  return requiredParam(pricedItem(context, params), "items[price]");
}

function bill(context: Context, subscription: Subscription, priced: Priced): void {
  addItem(context, {
    amount: costOf(priced),
    currency: priced.currency,
    customer: subscription.customer,
    description: null,
    metadata: {},
    quantity: priced.quantity,
    pricing: pricingOf(priced),
    subscription: subscription.id,
    isProration: false,
  });
}

export function newItem(context: Context, subscription: Subscription, priced: Priced): SubscriptionItem {
  const now = context.clock.seconds();
  const present = subscription.items.data[0];
  return keep<SubscriptionItem>(context.account, {
    id: newId("si"),
    object: "subscription_item",
    created: now,
    current_period_start: present?.current_period_start ?? now,
    current_period_end: present?.current_period_end ?? periodEnd(now, priced.recurring),
    metadata: {},
    price: {
      id: priced.price,
      object: "price",
      currency: priced.currency,
      unit_amount: priced.unitAmount,
      recurring: priced.recurring,
    },
    quantity: priced.quantity,
    subscription: subscription.id,
  });
}

function blankSubscription(
  context: Context,
  order: Partial<Subscription> & Pick<Subscription, "currency" | "customer">,
): Subscription {
  const now = context.clock.seconds();
  const id = newId("sub");
  return {
    id,
    object: "subscription",
    automatic_tax: { enabled: false },
    billing_cycle_anchor: now,
    cancel_at: null,
    cancel_at_period_end: false,
    canceled_at: null,
    collection_method: "charge_automatically",
    created: now,
    days_until_due: null,
    default_payment_method: null,
    description: null,
    ended_at: null,
    items: { object: "list", url: `/v1/subscription_items?subscription=${id}`, has_more: false, data: [] },
    latest_invoice: null,
    livemode: false,
    metadata: {},
    pause_collection: null,
    schedule: null,
    start_date: now,
    status: "active",
    trial_end: null,
    trial_start: null,
    ...order,
  };
}

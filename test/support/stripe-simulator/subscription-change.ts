import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { addItem } from "./invoice-items.ts";
import { intentOfInvoice } from "./invoice-pay.ts";
import type { Metadata } from "./objects.ts";
import { choiceParam, flagParam, groupsParam, integerParam, mergedMetadata, textParam } from "./params.ts";
import { pricedItem } from "./pricing.ts";
import { type Context, collectionOf } from "./state.ts";
import { chargeNow, invoiceSubscription, renewLater, startPeriod } from "./subscription-billing.ts";
import { newItem, paymentBehaviorParam } from "./subscription-create.ts";
import type { Subscription, SubscriptionItem } from "./subscription-object.ts";

export type Proration = "create_prorations" | "always_invoice" | "none";

export function prorationParam(params: Params): Proration {
  return (
    choiceParam(params, "proration_behavior", ["create_prorations", "always_invoice", "none"]) ?? "create_prorations"
  );
}

/** POST /v1/subscriptions/{id}: with `always_invoice` or a new period the difference is charged at once. */
export function changeSubscription(context: Context, subscription: Subscription, params: Params): Subscription {
  refuseUnlessAlive(subscription);
  const isStrict = paymentBehaviorParam(params) === "error_if_incomplete";
  return undoneOnRefusal(context, subscription, () => {
    const paymentMethod = textParam(params, "default_payment_method");
    subscription.default_payment_method = paymentMethod ?? subscription.default_payment_method;
    subscription.cancel_at_period_end = flagParam(params, "cancel_at_period_end") ?? subscription.cancel_at_period_end;
    subscription.description = textParam(params, "description") ?? subscription.description;
    subscription.metadata = mergedMetadata(params, subscription.metadata);
    const proration = prorationParam(params);
    const items = groupsParam(params, "items");
    for (const item of items) changeItem(context, subscription, item, proration);
    const endsTrial = textParam(params, "trial_end") === "now" && subscription.status === "trialing";
    if (endsTrial || textParam(params, "billing_cycle_anchor") === "now") {
      if (endsTrial) subscription.status = "active";
      restart(context, subscription, isStrict);
    } else if (proration === "always_invoice" && items.length > 0) {
      const invoice = invoiceSubscription(context, subscription, { reason: "subscription_update", withItems: false });
      chargeNow(context, invoice, isStrict);
    }
    emit(context, "customer.subscription.updated", subscription);
    return subscription;
  });
}

/** Begins a new period now, and charges it. */
export function restart(context: Context, subscription: Subscription, isStrict: boolean): void {
  const now = context.clock.seconds();
  subscription.billing_cycle_anchor = now;
  subscription.trial_end = subscription.trial_end === null ? null : now;
  startPeriod(subscription, now);
  const invoice = invoiceSubscription(context, subscription, { reason: "subscription_update", withItems: true });
  chargeNow(context, invoice, isStrict);
  renewLater(context, subscription);
}

/** Runs a change; when it is refused, the subscription is as it was and its unpaid invoice void. */
function undoneOnRefusal(context: Context, subscription: Subscription, change: () => Subscription): Subscription {
  const before = structuredClone(subscription);
  try {
    return change();
  } catch (error) {
    const id = subscription.latest_invoice ?? "";
    const invoice = collectionOf(context.account, "invoice").get(id) as
      | Parameters<typeof intentOfInvoice>[1]
      | undefined;
    if (invoice !== undefined && id !== before.latest_invoice) {
      invoice.status = "void";
      const intent = intentOfInvoice(context, invoice);
      if (intent !== undefined) intent.status = "canceled";
    }
    Object.assign(subscription, before);
    throw error;
  }
}

/** One of `items[]`: a new item, or the change or end of the one that `id` names. */
export function changeItem(context: Context, subscription: Subscription, params: Params, proration: Proration): void {
  const { data } = subscription.items;
  const id = textParam(params, "id");
  const present = data.find((item) => item.id === id);
  if (id !== undefined && present === undefined) {
    throw invalidRequest(`No such subscription_item: '${id}'`, { code: "resource_missing" });
  }
  if (present !== undefined && proration !== "none") prorate(context, subscription, present, -1);
  if (present !== undefined && flagParam(params, "deleted") === true) {
    subscription.items.data = data.filter((item) => item !== present);
    collectionOf<SubscriptionItem>(context.account, "subscription_item").delete(present.id);
    return;
  }
  const priced = pricedItem(context, params);
  if (present === undefined) {
    if (priced === undefined) throw invalidRequest("Missing required param: items[price].");
    const item = newItem(context, subscription, priced);
    data.push(item);
    if (proration !== "none") prorate(context, subscription, item, 1);
    return;
  }
  if (priced !== undefined) {
    const { price: priceId, currency, unitAmount, recurring } = priced;
    present.price = { id: priceId, object: "price", currency, unit_amount: unitAmount, recurring };
  }
  present.quantity = integerParam(params, "quantity") ?? present.quantity;
  if (proration !== "none") prorate(context, subscription, present, 1);
}

/** Puts the rest of the period on the next invoice: `-1` gives the unused time back, `1` takes it. */
export function prorate(context: Context, subscription: Subscription, item: SubscriptionItem, sign: 1 | -1): void {
  if (subscription.status === "trialing") return;
  const { current_period_start: start, current_period_end: end } = item;
  const left = Math.max(0, end - context.clock.seconds()) / Math.max(1, end - start);
  const amount = sign * Math.round(item.price.unit_amount * item.quantity * left);
  const metadata: Metadata = {};
  addItem(context, {
    amount,
    currency: subscription.currency,
    customer: subscription.customer,
    description: sign < 0 ? "Unused time" : "Remaining time",
    metadata,
    quantity: item.quantity,
    pricing: null,
    subscription: subscription.id,
    isProration: true,
  });
}

/** DELETE /v1/subscriptions/{id}: `prorate` gives unused time back, `invoice_now` charges what is pending at once. */
export function endSubscription(
  context: Context,
  subscription: Subscription,
  options: { invoiceNow: boolean; prorate: boolean },
): Subscription {
  refuseUnlessAlive(subscription);
  if (options.prorate) for (const item of subscription.items.data) prorate(context, subscription, item, -1);
  subscription.status = "canceled";
  subscription.canceled_at = context.clock.seconds();
  subscription.ended_at = subscription.canceled_at;
  if (options.invoiceNow) {
    const invoice = invoiceSubscription(context, subscription, { reason: "subscription_cancel", withItems: false });
    chargeNow(context, invoice, false);
  }
  emit(context, "customer.subscription.deleted", subscription);
  return subscription;
}

export function refuseUnlessAlive(subscription: Subscription): void {
  if (subscription.status !== "canceled" && subscription.status !== "incomplete_expired") return;
  throw noSuchObject("subscription", subscription.id);
}

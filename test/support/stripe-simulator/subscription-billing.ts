import { StripeRefusal } from "./errors.ts";
import { emit } from "./events.ts";
import { takePendingItems } from "./invoice-items.ts";
import { type Invoice, addUp, blankInvoice, newLine } from "./invoice-object.ts";
import { advanceLater, finalize, payInvoice } from "./invoice-pay.ts";
import { type Context, keep } from "./state.ts";
import type { Subscription, SubscriptionItem } from "./subscription-object.ts";

/** The end of a period that begins then, both in seconds. Months and years follow the calendar, in UTC. */
export function periodEnd(start: number, recurring: { interval: string; interval_count: number } | null): number {
  const { interval, interval_count: count } = recurring ?? { interval: "month", interval_count: 1 };
  const date = new Date(start * 1000);
  if (interval === "day") date.setUTCDate(date.getUTCDate() + count);
  else if (interval === "week") date.setUTCDate(date.getUTCDate() + 7 * count);
  else if (interval === "year") date.setUTCFullYear(date.getUTCFullYear() + count);
  else date.setUTCMonth(date.getUTCMonth() + count);
  return Math.floor(date.getTime() / 1000);
}

/** Makes an invoice of the subscription: its items for the current period, if asked, and all that was pending. */
export function invoiceSubscription(
  context: Context,
  subscription: Subscription,
  options: { reason: string; withItems: boolean },
): Invoice {
  const [first] = subscription.items.data;
  const invoice = blankInvoice(context, {
    currency: subscription.currency,
    customer: subscription.customer,
    auto_advance: true,
    automatic_tax: { enabled: subscription.automatic_tax.enabled, status: null },
    billing_reason: options.reason,
    collection_method: subscription.collection_method,
    default_payment_method: subscription.default_payment_method,
    parent: {
      type: "subscription_details",
      subscription_details: { subscription: subscription.id, metadata: subscription.metadata },
    },
    period_start: first?.current_period_start ?? context.clock.seconds(),
    period_end: first?.current_period_end ?? context.clock.seconds(),
  });
  keep(context.account, invoice);
  if (options.withItems) {
    invoice.lines.data.push(...subscription.items.data.map((item) => lineOf(context, invoice, subscription, item)));
  }
  takePendingItems(context, invoice);
  addUp(context, invoice);
  subscription.latest_invoice = invoice.id;
  emit(context, "invoice.created", invoice);
  return invoice;
}

function lineOf(context: Context, invoice: Invoice, subscription: Subscription, item: SubscriptionItem) {
  const isFree = subscription.status === "trialing";
  return newLine(context, invoice, {
    amount: isFree ? 0 : Math.round(item.price.unit_amount * item.quantity),
    description: isFree ? "Trial period" : null,
    quantity: item.quantity,
    parent: {
      type: "subscription_item_details",
      subscription_item_details: { subscription: subscription.id, subscription_item: item.id, proration: false },
    },
    period: { start: item.current_period_start, end: item.current_period_end },
    pricing: { type: "price_details", price_details: { price: item.price.id, product: null } },
  });
}

/** Finalizes and charges at once. Throws the 402 when `isStrict`; else the subscription shows what happened. */
export function chargeNow(context: Context, invoice: Invoice, isStrict: boolean): void {
  finalize(context, invoice);
  if (invoice.status !== "open" || invoice.collection_method === "send_invoice") return;
  try {
    payInvoice(context, invoice, {});
  } catch (error) {
    if (isStrict || !(error instanceof StripeRefusal) || error.status !== 402) throw error;
  }
}

/** Lets Stripe renew the subscription by itself at the end of its period, and charge the invoice an hour later. */
export function renewLater(context: Context, subscription: Subscription): void {
  const [first] = subscription.items.data;
  if (first === undefined) return;
  const end = first.current_period_end;
  context.agenda.add(end * 1000, context.account.id, (later) => {
    // Somebody may have moved the period meanwhile; then its own renewal comes.
    if (subscription.items.data[0]?.current_period_end !== end) return;
    renew(later, subscription);
  });
}

function renew(context: Context, subscription: Subscription): void {
  const { status } = subscription;
  if (status !== "active" && status !== "trialing" && status !== "past_due") return;
  if (subscription.cancel_at_period_end) {
    subscription.status = "canceled";
    subscription.ended_at = context.clock.seconds();
    emit(context, "customer.subscription.deleted", subscription);
    return;
  }
  if (status === "trialing") subscription.status = "active";
  startPeriod(subscription, subscription.items.data[0]?.current_period_end ?? context.clock.seconds());
  const invoice = invoiceSubscription(context, subscription, { reason: "subscription_cycle", withItems: true });
  advanceLater(context, invoice);
  emit(context, "customer.subscription.updated", subscription);
  renewLater(context, subscription);
}

/** Gives every item a period that begins then, in seconds. */
export function startPeriod(subscription: Subscription, start: number): void {
  for (const item of subscription.items.data) {
    item.current_period_start = start;
    item.current_period_end = periodEnd(start, item.price.recurring);
  }
}

import { noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Metadata } from "./objects.ts";
import type { Priced } from "./pricing.ts";
import { type Context, type Stored, collectionOf } from "./state.ts";

export interface SubscriptionItem extends Stored {
  object: "subscription_item";
  current_period_end: number;
  current_period_start: number;
  metadata: Metadata;
  price: { id: string | null; object: "price"; currency: string; unit_amount: number; recurring: Priced["recurring"] };
  quantity: number;
  subscription: string;
}

export interface Subscription extends Stored {
  object: "subscription";
  automatic_tax: { enabled: boolean };
  billing_cycle_anchor: number;
  cancel_at: number | null;
  cancel_at_period_end: boolean;
  canceled_at: number | null;
  collection_method: "charge_automatically" | "send_invoice";
  created: number;
  currency: string;
  customer: string;
  days_until_due: number | null;
  default_payment_method: string | null;
  description: string | null;
  ended_at: number | null;
  items: { object: "list"; url: string; has_more: false; data: SubscriptionItem[] };
  latest_invoice: string | null;
  livemode: false;
  metadata: Metadata;
  pause_collection: object | null;
  schedule: string | null;
  start_date: number;
  status: "incomplete" | "incomplete_expired" | "trialing" | "active" | "past_due" | "canceled" | "unpaid" | "paused";
  trial_end: number | null;
  trial_start: number | null;
}

export function subscriptionWithId(context: Context, id: string): Subscription {
  const subscription = collectionOf<Subscription>(context.account, "subscription").get(id);
  if (subscription === undefined) throw noSuchObject("subscription", id);
  return subscription;
}

/** What becomes of a subscription when an invoice of it is paid or could not be. */
export function followInvoice(context: Context, id: string | undefined, outcome: "paid" | "failed"): void {
  const subscription = collectionOf<Subscription>(context.account, "subscription").get(id ?? "");
  if (subscription === undefined) return;
  const { status } = subscription;
  if (outcome === "paid" && (status === "incomplete" || status === "past_due")) subscription.status = "active";
  if (outcome === "failed" && status === "active") subscription.status = "past_due";
  if (subscription.status !== status) emit(context, "customer.subscription.updated", subscription);
}

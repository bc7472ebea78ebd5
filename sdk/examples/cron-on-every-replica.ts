// A timer fires on every replica. The billing lease lets one of them run the job; the others leave at once. A replica
// that dies keeps the others out for `ttlMs` at most, and whoever comes next continues: a customer who was charged
// before gets the same payment again. After a run that left nothing over, the period is closed for ever.
import { type Holdfast, type HeldBillingLease, SpendAlreadyFailedError, SpendDeniedError } from "@holdfast/sdk";
import Stripe from "stripe";

export interface Subscriber {
  readonly id: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
}

export interface MonthlyBilling {
  readonly holdfast: Holdfast;
  readonly stripe: Stripe;
  /** For example "2026-11". */
  readonly billingPeriod: string;
  readonly subscribers: readonly Subscriber[];
  readonly paid: (subscriber: Subscriber, paymentIntent: string) => Promise<void>;
  readonly ttlMs?: number;
}

export type MonthlyBillingResult = "billed" | "something is left" | "another replica is at it" | "already billed";

/** What the timer of every replica calls, as often as it likes: once a day, once an hour. */
export async function billMonth(billing: MonthlyBilling): Promise<MonthlyBillingResult> {
  const { holdfast, billingPeriod, ttlMs = 30_000 } = billing;
  const result = await holdfast.withBillingLease({ lease: "monthly-billing", billingPeriod, ttlMs }, (lease) =>
    billSubscribers(billing, lease),
  );
  if (!result.acquired) return result.answer === "already_completed" ? "already billed" : "another replica is at it";
  return result.outcome === "completed" ? "billed" : "something is left";
}

async function billSubscribers(billing: MonthlyBilling, lease: HeldBillingLease): Promise<void> {
  const stripe = billing.holdfast.stripe(billing.stripe);
  for (const subscriber of billing.subscribers) {
    // Stops as soon as this replica may no longer act; the SDK refuses to send from then on as well.
    lease.assertHeld();
    const { id, stripeCustomer, paymentMethod, amount } = subscriber;
    try {
      const payment = await stripe.paymentIntents.create(
        { amount, currency: "usd", customer: stripeCustomer, payment_method: paymentMethod, confirm: true },
        { spend: { customerId: id, billingPeriod: billing.billingPeriod, purpose: "subscription" } },
      );
      await billing.paid(subscriber, payment.id);
    } catch (error) {
      if (error instanceof SpendAlreadyFailedError || error instanceof Stripe.errors.StripeCardError) continue;
      // A cap that is raised tomorrow lets the next run go on from here.
      if (!(error instanceof SpendDeniedError)) throw error;
      lease.incomplete();
    }
  }
}

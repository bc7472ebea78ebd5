// Runs a whole billing run again until it goes through. Without a guard, every customer who was charged before the
// error would be charged again by the next run; with it, a second call for the same spend gives the first payment.
import { type GuardedStripe, SpendAlreadyFailedError, SpendDeniedError } from "@holdfast/sdk";
import pRetry from "p-retry";
import Stripe from "stripe";

export interface Invoice {
  readonly customerId: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
}

export interface BillingRun {
  /** `holdfast.stripe(new Stripe(key))`. */
  readonly stripe: GuardedStripe;
  /** For example "2026-11". */
  readonly billingPeriod: string;
  readonly invoices: readonly Invoice[];
  /** Called for every paid invoice, in every run that reaches it. */
  readonly paid: (invoice: Invoice, paymentIntent: string) => Promise<void>;
  /** Called for an invoice that cannot be paid, with a SpendDeniedError or a decline. The run goes on. */
  readonly notPaid: (invoice: Invoice, error: Error) => Promise<void>;
  readonly retryDelayMs?: number;
}

/** Bills everybody, and starts over after any other error. Gives up after the fifth run. */
export async function runBilling(run: BillingRun): Promise<void> {
  await pRetry(() => billEverybody(run), {
    retries: 4,
    minTimeout: run.retryDelayMs ?? 1_000,
    // A TypeError is a mistake in the program, for example a malformed customer id.
    shouldRetry: ({ error }) => !(error instanceof TypeError),
  });
}

async function billEverybody({ stripe, billingPeriod, invoices, paid, notPaid }: BillingRun): Promise<void> {
  for (const invoice of invoices) {
    const { customerId, stripeCustomer, paymentMethod, amount } = invoice;
    try {
      const payment = await stripe.paymentIntents.create(
        { amount, currency: "usd", customer: stripeCustomer, payment_method: paymentMethod, confirm: true },
        { spend: { customerId, billingPeriod, purpose: "subscription" } },
      );
      await paid(invoice, payment.id);
    } catch (error) {
      if (!isRefusal(error)) throw error;
      await notPaid(invoice, error);
    }
  }
}

/** What another run would hear again: a cap says no, or the card was declined now or in an earlier run. */
function isRefusal(error: unknown): error is Error {
  return (
    error instanceof SpendDeniedError ||
    error instanceof SpendAlreadyFailedError ||
    error instanceof Stripe.errors.StripeCardError
  );
}

// A job queue delivers a job at least once: a worker that dies after the charge, a job that runs too long and a job
// that was sent twice all run the handler again. The spend is made from the job's data, never from the job's own id,
// which is another one for every copy.
import { type GuardedStripe, SpendAlreadyFailedError, SpendDeniedError } from "@holdfast/sdk";
import type { PgBoss } from "pg-boss";
import Stripe from "stripe";

export const CHARGE_QUEUE = "charge-customer";

export interface ChargeJob {
  readonly customerId: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
  /** For example "2026-11". */
  readonly billingPeriod: string;
}

export interface ChargeWorker {
  readonly boss: PgBoss;
  /** `holdfast.stripe(new Stripe(key))`. */
  readonly stripe: GuardedStripe;
  /** Called after the charge. May fail; the job then runs again and calls it with the same payment. */
  readonly paid: (job: ChargeJob, paymentIntent: string) => Promise<void>;
}

/** Makes the queue and works on it. `boss` must have been started. */
export async function startChargeWorker({ boss, stripe, paid }: ChargeWorker): Promise<void> {
  await boss.createQueue(CHARGE_QUEUE, { retryLimit: 5, retryDelay: 1, retryBackoff: true });
  await boss.work<ChargeJob>(CHARGE_QUEUE, { batchSize: 1, pollingIntervalSeconds: 0.5 }, async ([job]) => {
    if (job === undefined) return { outcome: "nothing to do" };
    try {
      const paymentIntent = await charge(stripe, job.data);
      await paid(job.data, paymentIntent);
      return { outcome: "paid", paymentIntent };
    } catch (error) {
      // The job is done, with a result: running it again would not change it. Everything else fails the job.
      if (isRefusal(error)) return { outcome: "not paid", reason: error.message };
      throw error;
    }
  });
}

async function charge(stripe: GuardedStripe, job: ChargeJob): Promise<string> {
  const { customerId, stripeCustomer, paymentMethod, amount, billingPeriod } = job;
  const payment = await stripe.paymentIntents.create(
    { amount, currency: "usd", customer: stripeCustomer, payment_method: paymentMethod, confirm: true },
    { spend: { customerId, billingPeriod, purpose: "subscription" } },
  );
  return payment.id;
}

function isRefusal(error: unknown): error is Error {
  return (
    error instanceof SpendDeniedError ||
    error instanceof SpendAlreadyFailedError ||
    error instanceof Stripe.errors.StripeCardError
  );
}

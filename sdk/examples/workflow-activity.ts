// A charge as an activity of a workflow engine (Temporal, DBOS, Inngest, Step Functions …). The engine runs it again
// when its worker dies or its answer is lost, on any machine and with the same input. The spend comes from the input
// alone: no attempt number, no run id, no time, since each of them would make the second execution a second charge.
import { type GuardedStripe, SpendAlreadyFailedError, SpendDeniedError } from "@holdfast/sdk";
import Stripe from "stripe";

/** Plain data, as engines store it. */
export interface ChargeInput {
  readonly customerId: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
  /** For example "2026-11". */
  readonly billingPeriod: string;
  /**
   * 0 at first. A workflow that means to try again after a decline passes the `failedTry` of the result: a decision of
   * the workflow, which the engine remembers, and not of the activity.
   */
  readonly retryAfterTry?: number;
}

export type ChargeOutput =
  | { readonly outcome: "paid"; readonly paymentIntent: string }
  | { readonly outcome: "declined"; readonly failedTry: number }
  | { readonly outcome: "denied"; readonly reason: string };

/** Throws whatever the engine should retry: it may do so at any time, also days later. */
export async function chargeActivity(stripe: GuardedStripe, input: ChargeInput): Promise<ChargeOutput> {
  const { customerId, stripeCustomer, paymentMethod, amount, billingPeriod, retryAfterTry = 0 } = input;
  const spend = { customerId, billingPeriod, purpose: "subscription" };
  try {
    const payment = await stripe.paymentIntents.create(
      { amount, currency: "usd", customer: stripeCustomer, payment_method: paymentMethod, confirm: true },
      { spend: retryAfterTry === 0 ? spend : { ...spend, retryAfterGeneration: retryAfterTry } },
    );
    return { outcome: "paid", paymentIntent: payment.id };
  } catch (error) {
    // Asked once more, the spend names the try that was declined: what every later execution will answer too.
    if (error instanceof Stripe.errors.StripeCardError) return await chargeActivity(stripe, input);
    if (error instanceof SpendAlreadyFailedError) return { outcome: "declined", failedTry: error.retryAfterGeneration };
    if (error instanceof SpendDeniedError) return { outcome: "denied", reason: error.message };
    throw error;
  }
}

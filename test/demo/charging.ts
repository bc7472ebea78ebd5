import { randomUUID } from "node:crypto";
import { createHoldfast, type GuardedStripe, type SpendOption } from "@holdfast/sdk";
import type Stripe from "stripe";
import type { BillingJob } from "./billing-job.ts";
import type { Customer } from "./customers.ts";
import { createStripe } from "./stripe-client.ts";

export interface Charging {
  /** Charges one customer for the period. This is the code that retry operators run again. */
  charge(customer: Customer): Promise<void>;
  close(): Promise<void>;
}

/** The code before Holdfast: the key is made where the call is made, so a second run of it makes a second key. */
export function unguardedCharging(job: BillingJob, onStop: () => void): Charging {
  const stripe = createStripe(job, onStop);
  return {
    async charge(customer) {
      const idempotencyKey = randomUUID();
      if (job.call === "charge") await stripe.charges.create(chargeParams(customer), { idempotencyKey });
      else await stripe.paymentIntents.create(intentParams(customer), { idempotencyKey });
    },
    close: () => Promise.resolve(),
  };
}

/** The same code with Holdfast: no key anywhere, and the call says which spend it is. */
export function guardedCharging(job: BillingJob, onStop: () => void): Charging {
  if (job.guard === undefined) throw new Error("A guarded job needs the options of the guard.");
  const holdfast = createHoldfast(job.guard);
  const stripe: GuardedStripe = holdfast.stripe(createStripe(job, onStop));
  return {
    async charge(customer) {
      const { billingPeriod, purpose } = job;
      const spend: SpendOption = { customerId: customer.id, billingPeriod, purpose };
      if (job.call === "charge") await stripe.charges.create(chargeParams(customer), { spend });
      else await stripe.paymentIntents.create(intentParams(customer), { spend });
    },
    close: () => holdfast.close(),
  };
}

function intentParams(customer: Customer): Stripe.PaymentIntentCreateParams {
  return {
    amount: customer.cents,
    currency: "usd",
    customer: customer.stripeCustomer,
    payment_method: customer.paymentMethod,
    off_session: true,
    confirm: true,
    metadata: { customer_id: customer.id },
  };
}

function chargeParams(customer: Customer): Stripe.ChargeCreateParams {
  return {
    amount: customer.cents,
    currency: "usd",
    source: customer.paymentMethod.replace(/^pm_card_/, "tok_"),
    description: customer.name,
    metadata: { customer_id: customer.id },
  };
}

import type { Holdfast, GuardedStripe } from "@holdfast/sdk";
import type Stripe from "stripe";
import { billingPeriod, type SpendPlan } from "./plan.ts";
import type { Chance } from "./random.ts";

/** What a process works with. */
export interface Tools {
  readonly holdfast: Holdfast;
  readonly stripe: GuardedStripe;
  readonly plain: Stripe;
  readonly chance: Chance;
  readonly sleep: (ms: number) => Promise<void>;
  /** Writes down what the process does. */
  readonly note: (what: string) => void;
  readonly told: (plan: SpendPlan, told: Told) => void;
}

/** What a caller learned about a spend: the vendor's object, or an error. */
export type Told =
  | { readonly id: string; readonly status: string; readonly error?: undefined }
  | { readonly error: unknown; readonly id?: undefined };

/**
 * One billing run: every spend in turn, each in a closure that is run again when it fails, with a new random key of its
 * own every time, as retry operators do it.
 */
export async function runJob(tools: Tools, plans: readonly SpendPlan[], tries: number): Promise<void> {
  for (const plan of plans) {
    let retryAfterGeneration = 0;
    for (let attempt = 1; attempt <= tries; attempt += 1) {
      if (attempt > 1)
        tools.note(`runs the closure of ${plan.customerId} ${plan.purpose} again, with a new random key`);
      try {
        const answer = await spendOnce(tools, plan, retryAfterGeneration);
        if (answer === undefined) break;
        tools.told(plan, answer);
        break;
      } catch (error) {
        tools.told(plan, { error });
        const failed = (error as { retryAfterGeneration?: unknown }).retryAfterGeneration;
        if (typeof failed === "number" && tools.chance.happens(0.5)) retryAfterGeneration = failed;
        await tools.sleep(tools.chance.spread(50, 30_000));
      }
    }
  }
}

async function spendOnce(tools: Tools, plan: SpendPlan, retryAfterGeneration: number): Promise<Told | undefined> {
  const { stripe, chance } = tools;
  const { customerId, purpose, amount, card, stripeCustomer: customer } = plan;
  const identity = { customerId, billingPeriod, purpose };
  const spend = retryAfterGeneration === 0 ? identity : { ...identity, retryAfterGeneration };
  const options = { spend };
  if (plan.kind === "refund") {
    const intent = await chargedIntent(tools, plan);
    if (intent === undefined) return undefined;
    const refund = await stripe.refunds.create({ payment_intent: intent, amount }, options);
    return { id: refund.id, status: refund.status ?? "unknown" };
  }
  if (plan.kind === "charge") {
    const charge = await stripe.charges.create({ amount, currency: "usd", customer, source: card }, options);
    return { id: charge.id, status: charge.status };
  }
  const later = plan.kind === "captured_later" ? { capture_method: "manual" as const } : {};
  const fields = { amount, currency: "usd", customer, payment_method: card, confirm: true, ...later };
  const intent = await stripe.paymentIntents.create(fields, options);
  if (intent.status !== "requires_capture" || !chance.happens(0.7)) return { id: intent.id, status: intent.status };
  tools.told(plan, { id: intent.id, status: intent.status });
  if (plan.raisedTo > amount) {
    await tools.sleep(chance.spread(1_000, 3_600_000));
    await stripe.paymentIntents.incrementAuthorization(intent.id, { amount: plan.raisedTo });
  }
  await tools.sleep(chance.spread(1_000, 6 * 3_600_000));
  const captured = await stripe.paymentIntents.capture(intent.id, { amount_to_capture: plan.captureAmount });
  return { id: captured.id, status: captured.status };
}

/** The succeeded PaymentIntent that a refund gives back, as the vendor lists it. */
async function chargedIntent({ plain }: Tools, plan: SpendPlan): Promise<string | undefined> {
  const listed = await plain.paymentIntents.list({ customer: plan.stripeCustomer, limit: 10 });
  return listed.data.find(({ status }) => status === "succeeded")?.id;
}

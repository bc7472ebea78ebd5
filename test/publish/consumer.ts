// What somebody writes who has installed the published packages. tools/check-packages.ts copies this file into an
// empty folder, type-checks it against the packed SDK and runs it there, on every Node and Stripe major it supports.
import { createRequire } from "node:module";
import {
  createHoldfast,
  type GuardedStripe,
  type SpendDeniedError,
  type SpendOption,
  stableKey,
  toStripeAmount,
} from "@holdfast/sdk";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import Stripe from "stripe";

const [baseUrl = "", vaultKey = "", stripePort = "", customerId = ""] = process.argv.slice(2);

const holdfast = createHoldfast({ baseUrl, vaultKey });
const plain = new Stripe("sk_test_consumer", { host: "127.0.0.1", port: Number(stripePort), protocol: "http" });
const stripe: Stripe = holdfast.stripe(plain);
const guarded = holdfast.stripe(plain);
const spend: SpendOption = { customerId, billingPeriod: "2026-11", purpose: "subscription" };

const amount = Number(toStripeAmount({ currency: "usd", amount: "9.00" }));
const payment = { amount, currency: "usd", payment_method: "pm_card_visa", confirm: true };
const first = await guarded.paymentIntents.create(payment, { spend });
const again = await holdfast.withSpend(spend, () => stripe.paymentIntents.create(payment));
expect(first.status === "succeeded" && again.id === first.id, "a repeat gets the same payment");

const bought = { ...spend, purpose: "seat" };
const charge = await guarded.charges.create({ amount, currency: "usd", source: "tok_visa" }, { spend: bought });
expect(charge.paid, "a charge goes through");

const denied: unknown = await guarded.charges
  .create({ amount: 99_999, currency: "usd", source: "tok_visa" }, { spend: { ...spend, purpose: "too-much" } })
  .catch((error: unknown) => error);
expect((denied as SpendDeniedError).code === "holdfast_spend_denied", "too much is denied");

expect(stableKey("cust_123", "2026-11", "ratpack-billing") === "8ee6c974a09685f4291fef983a1129f5", "the key is stable");
expect(SpendControlService.typeName === "holdfast.v1.SpendControlService", "the API is there");
const required = createRequire(import.meta.url)("@holdfast/sdk") as { createHoldfast: unknown };
expect(required.createHoldfast === createHoldfast, "require gives the same module");

await holdfast.close();
process.stdout.write(`${first.id} ${charge.id}\n`);

/** Only for the compiler: methods whose parameters Stripe's majors declare in different ways take a spend too. */
export function typed(stripe: GuardedStripe): unknown {
  return [
    () => stripe.paymentIntents.capture("pi_1", { amount_to_capture: 1 }, { spend }),
    () => stripe.refunds.create({ charge: "ch_1", amount: 1 }, { spend }),
    () => stripe.transfers.create({ amount: 1, currency: "usd", destination: "acct_1" }, { spend }),
    // @ts-expect-error A spend has three parts; were this not an error, the types would be missing.
    () => stripe.charges.create({ amount: 1, currency: "usd" }, { spend: { customerId: "cust_1" } }),
    // @ts-expect-error Stripe's own parameters keep their types.
    () => stripe.refunds.create({ charge: 1 }, { spend }),
    () => stripe.rawRequest("POST", "/v1/topups", { amount: 1, currency: "usd" }, { spend }),
  ];
}

function expect(holds: boolean, what: string): void {
  if (!holds) throw new Error(`Not so: ${what}.`);
}

import type { Chance } from "./random.ts";

/** `intent` and its kin go in two steps, `charge` and `refund` in one call. */
export type SpendKind = "intent" | "captured_later" | "checked_by_bank" | "charge" | "refund";

/** One spend that the jobs of a simulation try to make. */
export interface SpendPlan {
  readonly kind: SpendKind;
  readonly customerId: string;
  /** The customer at Stripe: by it the vendor's movements are told apart. */
  readonly stripeCustomer: string;
  readonly purpose: string;
  /** In cents. */
  readonly amount: number;
  readonly card: string;
  /** Before a later capture it is raised to this, in cents; no more than `amount`: it is not. */
  readonly raisedTo: number;
  /** A later capture takes this much, in cents. */
  readonly captureAmount: number;
  /** The charge of another plan that a refund gives back. */
  readonly refundOf: SpendPlan | undefined;
}

export const billingPeriod = "2026-11";

export const isTwoStep = (plan: SpendPlan): boolean => plan.kind !== "charge" && plan.kind !== "refund";

export function drawPlans(chance: Chance): SpendPlan[] {
  const plans: SpendPlan[] = [];
  for (let index = 0, count = chance.between(1, 3); index < count; index += 1) {
    const kind = chance.pick(["intent", "intent", "charge", "charge", "captured_later", "checked_by_bank"] as const);
    const declines = chance.happens(0.2);
    const amount = chance.between(100, 9_000);
    const plan: SpendPlan = {
      kind,
      customerId: `cust_${index}`,
      stripeCustomer: `cus_${index}`,
      purpose: "subscription",
      amount,
      card: cardOf(kind, declines),
      raisedTo: chance.happens(0.4) ? amount + chance.between(1, 3_000) : 0,
      captureAmount: chance.happens(0.5) ? amount : chance.between(50, amount),
      refundOf: undefined,
    };
    plans.push(plan);
    if (kind === "intent" && chance.happens(0.3)) {
      plans.push({ ...plan, kind: "refund", purpose: "refund", amount: chance.between(50, amount), refundOf: plan });
    }
  }
  return plans;
}

function cardOf(kind: SpendKind, declines: boolean): string {
  if (kind === "charge") return declines ? "tok_chargeDeclined" : "tok_visa";
  if (kind === "checked_by_bank") return "pm_card_authenticationRequired";
  return declines ? "pm_card_chargeDeclined" : "pm_card_visa";
}

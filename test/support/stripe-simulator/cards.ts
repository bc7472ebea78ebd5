import { StripeRefusal } from "./errors.ts";
import type { Charge, PaymentIntent } from "./objects.ts";

/** What the card network will say. */
export type CardOutcome =
  | { readonly kind: "approved" | "authentication" | "processing" | "microdeposits" }
  | { readonly kind: "declined"; readonly code: string; readonly declineCode: string; readonly message: string };

export type Decline = Extract<CardOutcome, { kind: "declined" }>;

const declined: Decline = {
  kind: "declined",
  code: "card_declined",
  declineCode: "generic_decline",
  message: "Your card was declined.",
};

export const authenticationDecline = {
  kind: "declined",
  code: "authentication_required",
  declineCode: "authentication_required",
  message: "Your card was declined. This transaction requires authentication.",
} as const satisfies Decline;

/** First match wins; the names are those of Stripe's own test cards (`pm_card_…`, `tok_…`). */
const outcomes: readonly (readonly [RegExp, CardOutcome])[] = [
  [
    /insufficientFunds/i,
    {
      kind: "declined",
      code: "card_declined",
      declineCode: "insufficient_funds",
      message: "Your card has insufficient funds.",
    },
  ],
  [
    /expiredCard/i,
    { kind: "declined", code: "expired_card", declineCode: "expired_card", message: "Your card has expired." },
  ],
  [/chargeDeclined|chargeCustomerFail/i, declined],
  [/authenticationRequired/i, { kind: "authentication" }],
  [/microdeposit/i, { kind: "microdeposits" }],
  [/processing/i, { kind: "processing" }],
];

/** The outcome of the first token (payment method, source or customer id) that names an unusual one; else approved. */
export function cardOutcome(tokens: readonly (string | null | undefined)[]): CardOutcome {
  for (const token of tokens) {
    const match = outcomes.find(([pattern]) => token !== null && token !== undefined && pattern.test(token));
    if (match !== undefined) return match[1];
  }
  return { kind: "approved" };
}

export function forcedDecline(declineCode: string): Decline {
  return { ...declined, declineCode };
}

/** The 402 that tells of a decline. Its failed charge exists, its money does not. */
export function cardRefusal(outcome: Decline, charge: Charge, intent?: PaymentIntent): StripeRefusal {
  return new StripeRefusal(
    402,
    {
      type: "card_error",
      code: outcome.code,
      decline_code: outcome.declineCode,
      message: outcome.message,
      charge: charge.id,
      payment_intent: intent === undefined ? undefined : structuredClone(intent),
    },
    { "stripe-should-retry": "false" },
  );
}

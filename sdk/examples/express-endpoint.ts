// An endpoint that charges an order. Its callers time out, try again and press the button twice, so the order is the
// spend: whatever they send, one order is paid once, and every caller who waits gets the same payment.
import {
  type GuardedStripe,
  HoldfastError,
  HoldfastUnavailableError,
  SpendDeniedError,
  SpendInDoubtError,
  SpendInProgressError,
} from "@holdfast/sdk";
import express, { type Express, type Response } from "express";
import Stripe from "stripe";

export interface Order {
  readonly id: string;
  readonly customerId: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
}

export interface Shop {
  /** `holdfast.stripe(new Stripe(key))`. */
  readonly stripe: GuardedStripe;
  /** Looks an order up in the shop's own database: never charge an amount that a request states. */
  readonly findOrder: (id: string) => Promise<Order | undefined>;
}

/** `POST /orders/:id/payment` answers 200 with the payment, or an error that says whether to ask again. */
export function createShop({ stripe, findOrder }: Shop): Express {
  const shop = express();
  shop.post("/orders/:id/payment", async (request, response) => {
    const order = await findOrder(request.params.id);
    if (order === undefined) {
      response.status(404).json({ error: "There is no such order." });
      return;
    }
    try {
      const payment = await pay(stripe, order);
      response.json({ payment: payment.id, status: payment.status });
    } catch (error) {
      answerError(response, error);
    }
  });
  return shop;
}

async function pay(stripe: GuardedStripe, order: Order): Promise<Stripe.PaymentIntent> {
  const { id, customerId, stripeCustomer, paymentMethod, amount } = order;
  return await stripe.paymentIntents.create(
    { amount, currency: "usd", customer: stripeCustomer, payment_method: paymentMethod, confirm: true },
    // An order is paid once, at any time, so its period is a constant.
    { spend: { customerId, billingPeriod: "-", purpose: `order:${id}` } },
  );
}

function answerError(response: Response, error: unknown): void {
  if (error instanceof Stripe.errors.StripeCardError) {
    response.status(402).json({ error: "The card was declined.", code: error.code });
  } else if (error instanceof SpendDeniedError) {
    response.status(403).json({ error: "This payment is not allowed now." });
  } else if (error instanceof SpendInProgressError || error instanceof SpendInDoubtError) {
    // It may be paid. Asking again is safe and the only right thing to do.
    response.status(409).set("Retry-After", "5").json({ error: "The payment is under way. Ask again." });
  } else if (error instanceof HoldfastUnavailableError) {
    response.status(503).set("Retry-After", "5").json({ error: "Payments are not available just now." });
  } else {
    const code = error instanceof HoldfastError ? error.code : "internal";
    response.status(500).json({ error: "The payment failed.", code });
  }
}

import { type Session, completeSession, sessionInPath } from "./checkout.ts";
import type { PaymentIntent } from "./objects.ts";
import { settleProcessing } from "./payment-intent-bank.ts";
import { confirmFromBrowser, failFromBrowser } from "./payment-intent-confirm.ts";
import { openLink } from "./payment-links.ts";
import { settlePayout } from "./payouts.ts";
import { settleRefund } from "./refunds.ts";
import { type Stored, keep, newId } from "./state.ts";
import { settleTopup } from "./topups.ts";
import { type World, defaultAccount } from "./world.ts";

export interface ActOptions {
  /** The account; that of the default secrets unless told. */
  readonly account?: string;
}

export interface PayOptions extends ActOptions {
  /** `pm_card_visa` unless told; its name chooses what the card says, as everywhere. */
  readonly paymentMethod?: string;
}

export type Outcome = "succeeded" | "failed";

/**
 * What happens without a request to the API: customers in their browsers and banks. Each throws a StripeRefusal where
 * the object does not allow it, and for a decline.
 */
export interface Acts {
  /** What the customer does with a client secret: confirm, or pass the bank's check. */
  confirmFromBrowser(intentId: string, options?: PayOptions): PaymentIntent;
  /** The customer does not pass the bank's check. */
  failFromBrowser(intentId: string, options?: ActOptions): PaymentIntent;
  /** Ends the status `processing`, as a bank does days later. */
  settleProcessing(intentId: string, outcome: Outcome, options?: ActOptions): PaymentIntent;
  /** The customer pays on the page of a Checkout Session. */
  completeCheckout(sessionId: string, options?: PayOptions): Session;
  /** Somebody opens a payment link, and may pay later with `completeCheckout`. */
  openLink(linkId: string, options?: ActOptions & { readonly customer?: string }): Session;
  /** Somebody opens a payment link and pays at once. */
  payLink(linkId: string, options?: PayOptions & { readonly customer?: string }): Session;
  /** The bank carries out a pending refund, or sends a refund back. */
  settleRefund(refundId: string, outcome: Outcome, options?: ActOptions): Stored;
  settlePayout(payoutId: string, outcome: Outcome, options?: ActOptions): Stored;
  settleTopup(topupId: string, outcome: Outcome, options?: ActOptions): Stored;
  /** Puts an object there that no API call makes: `{object: "dispute", ...}`. */
  place(fields: Readonly<Record<string, unknown>> & { readonly object: string }, options?: ActOptions): Stored;
}

/** The acts on a world. Answers are copies. */
export function actsOn(world: World): Acts {
  const browser = (id: string, { account = defaultAccount }: ActOptions) =>
    world.contextOf(account, id, { id: null, idempotency_key: null });
  const bank = (id: string, { account = defaultAccount }: ActOptions) => world.contextOf(account, id, null);
  return {
    confirmFromBrowser: (id, options = {}) =>
      structuredClone(confirmFromBrowser(browser(id, options), options.paymentMethod)),
    failFromBrowser: (id, options = {}) => structuredClone(failFromBrowser(browser(id, options))),
    settleProcessing: (id, outcome, options = {}) => structuredClone(settleProcessing(bank(id, options), outcome)),
    completeCheckout: (id, options = {}) => {
      const context = browser(id, options);
      return structuredClone(completeSession(context, sessionInPath(context), options.paymentMethod));
    },
    openLink: (id, options = {}) => structuredClone(openLink(browser(id, options), options)),
    payLink: (id, options = {}) => {
      const context = browser(id, options);
      return structuredClone(completeSession(context, openLink(context, options), options.paymentMethod));
    },
    settleRefund: (id, outcome, options = {}) => structuredClone(settleRefund(bank(id, options), outcome)),
    settlePayout: (id, outcome, options = {}) => structuredClone(settlePayout(bank(id, options), outcome)),
    settleTopup: (id, outcome, options = {}) => structuredClone(settleTopup(bank(id, options), outcome)),
    place: (fields, { account = defaultAccount } = {}) => {
      const object = { id: newId(fields.object.split(".").at(-1) ?? ""), created: world.clock.seconds(), ...fields };
      return structuredClone(keep(world.account(account), object));
    },
  };
}

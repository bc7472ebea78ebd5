import { type CardOutcome, type Decline, authenticationDecline, cardRefusal } from "./cards.ts";
import { type ChargeOrder, decideOutcome, makeCharge } from "./charges.ts";
import { invalidRequest, noSuchObject, unexpectedState } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import type { Charge, PaymentIntent } from "./objects.ts";
import { amountParam, flagParam, textParam } from "./params.ts";
import type { Context, Endpoint } from "./state.ts";

export interface ConfirmOptions {
  readonly paymentMethod: string | undefined;
  /** The customer is not there: a card that wants them is declined instead of asking. */
  readonly isOffSession: boolean;
  /** Confirms less or more than the intent's amount. */
  readonly amount?: number | undefined;
}

export function confirmOptions(params: Params): ConfirmOptions {
  return {
    paymentMethod: textParam(params, "payment_method") ?? textParam(params, "source"),
    isOffSession: textParam(params, "off_session") === "true" || flagParam(params, "error_on_requires_action") === true,
    amount: amountParam(params, "amount_to_confirm"),
  };
}

/** POST /v1/payment_intents/{id}/confirm. */
export const confirmPaymentIntent: Endpoint = (context) => {
  const intent = intentOf(context);
  const options = confirmOptions(context.params);
  return { lock: intent.id, run: () => confirmIntent(context, intent, options) };
};

/** Charges the intent if its status allows it, and leaves it in the status that the card's outcome leads to. */
export function confirmIntent(context: Context, intent: PaymentIntent, options: ConfirmOptions): PaymentIntent {
  refuseUnlessConfirmable(intent, options);
  intent.payment_method = options.paymentMethod ?? intent.payment_method;
  intent.amount = options.amount ?? intent.amount;
  intent.last_payment_error = null;
  intent.next_action = null;
  const outcome = outcomeOf(context, intent, options);
  if (outcome.kind === "authentication") {
    intent.status = "requires_action";
    intent.next_action = { type: "use_stripe_sdk", use_stripe_sdk: { type: "three_d_secure_redirect" } };
    emit(context, "payment_intent.requires_action", intent);
    return intent;
  }
  if (outcome.kind === "microdeposits") {
    intent.status = "requires_action";
    intent.next_action = {
      type: "verify_with_microdeposits",
      verify_with_microdeposits: { microdeposit_type: "amounts", hosted_verification_url: "https://example.invalid" },
    };
    emit(context, "payment_intent.requires_action", intent);
    return intent;
  }
  if (outcome.kind === "processing") return startProcessing(context, intent);
  const charge = makeCharge(context, orderOf(intent), outcome);
  intent.latest_charge = charge.id;
  if (outcome.kind === "declined") throw refuseCard(context, intent, charge, outcome);
  if (intent.capture_method === "manual") {
    intent.status = "requires_capture";
    intent.amount_capturable = intent.amount;
    emit(context, "payment_intent.amount_capturable_updated", intent);
  } else {
    succeed(context, intent, charge);
  }
  return intent;
}

function refuseUnlessConfirmable(intent: PaymentIntent, options: ConfirmOptions): void {
  if (intent.status === "succeeded") {
    throw unexpectedState(
      "You cannot confirm this PaymentIntent because it has already succeeded after being previously confirmed.",
      intent,
    );
  }
  if (intent.status === "canceled" || intent.status === "processing" || intent.status === "requires_capture") {
    throw unexpectedState(
      `You cannot confirm this PaymentIntent because it has a status of ${intent.status}. Only a PaymentIntent with ` +
        "one of the following statuses may be confirmed: requires_confirmation, requires_action, " +
        "requires_payment_method.",
      intent,
    );
  }
  if (intent.payment_method === null && options.paymentMethod === undefined) {
    throw unexpectedState(
      "You cannot confirm this PaymentIntent because it's missing a payment method. Update it with a payment method " +
        "and confirm again.",
      intent,
    );
  }
}

function outcomeOf(context: Context, intent: PaymentIntent, options: ConfirmOptions): CardOutcome {
  const outcome = decideOutcome(context, { customer: intent.customer, paymentMethod: intent.payment_method });
  if (outcome.kind !== "authentication") return outcome;
  if (context.account.authenticated.has(intent.id)) return { kind: "approved" };
  return options.isOffSession ? authenticationDecline : outcome;
}

/** A bank debit: its charge is pending until the bank has spoken. */
export function startProcessing(context: Context, intent: PaymentIntent): PaymentIntent {
  const charge = makeCharge(context, orderOf(intent), { kind: "processing" });
  intent.latest_charge = charge.id;
  intent.status = "processing";
  intent.next_action = null;
  emit(context, "payment_intent.processing", intent);
  return intent;
}

export function orderOf(intent: PaymentIntent): ChargeOrder {
  return {
    amount: intent.amount,
    currency: intent.currency,
    customer: intent.customer,
    description: intent.description,
    metadata: intent.metadata,
    paymentIntent: intent.id,
    paymentMethod: intent.payment_method,
    transferGroup: intent.transfer_group,
    isCaptured: intent.capture_method !== "manual",
    applicationFee: intent.application_fee_amount,
  };
}

export function succeed(
  context: Context,
  intent: PaymentIntent,
  charge: Charge,
  received = charge.amount_captured,
): void {
  intent.status = "succeeded";
  intent.amount_received = received;
  intent.amount_capturable = 0;
  emit(context, "payment_intent.succeeded", intent);
  context.account.causes.get(intent.id)?.onPaid?.(context);
}

/** Puts the intent back to waiting for another card and returns the 402 to throw. */
function refuseCard(context: Context, intent: PaymentIntent, charge: Charge, outcome: Decline): Error {
  const { payment_intent: _, ...error } = cardRefusal(outcome, charge).body;
  intent.status = "requires_payment_method";
  intent.payment_method = null;
  intent.last_payment_error = error;
  emit(context, "payment_intent.payment_failed", intent);
  return cardRefusal(outcome, charge, intent);
}

/**
 * What the customer can do with the client secret: confirm an intent of automatic confirmation, or pass the bank's
 * check. With manual confirmation the check only leads back to `requires_confirmation`: the server has the last word.
 */
export function confirmFromBrowser(context: Context, paymentMethod: string | undefined): PaymentIntent {
  const intent = intentOf(context);
  const isManual = intent.confirmation_method === "manual";
  if (intent.status === "requires_action") {
    context.account.authenticated.add(intent.id);
    if (!isManual) return confirmIntent(context, intent, { paymentMethod, isOffSession: false });
    intent.status = "requires_confirmation";
    intent.next_action = null;
    return intent;
  }
  if (isManual) {
    throw invalidRequest("This PaymentIntent uses manual confirmation: confirm it on the server.", {
      code: "payment_intent_unexpected_state",
    });
  }
  return confirmIntent(context, intent, { paymentMethod, isOffSession: false });
}

/** The customer gives up, or the bank's check fails: the intent waits for another payment method. */
export function failFromBrowser(context: Context): PaymentIntent {
  const intent = intentOf(context);
  if (intent.status !== "requires_action") {
    throw unexpectedState(`This PaymentIntent has a status of ${intent.status}, not requires_action.`, intent);
  }
  intent.status = "requires_payment_method";
  intent.payment_method = null;
  intent.next_action = null;
  intent.last_payment_error = {
    type: "invalid_request_error",
    code: "payment_intent_authentication_failure",
    message: "The provided payment method has failed authentication.",
  };
  emit(context, "payment_intent.payment_failed", intent);
  return intent;
}

/** The intent named in the path. */
export function intentOf(context: Context): PaymentIntent {
  const id = context.ids[0] ?? "";
  const intent = context.account.paymentIntents.get(id);
  if (intent === undefined) throw noSuchObject("payment_intent", id);
  return intent;
}

import { invalidRequest, unexpectedState } from "./errors.ts";
import { emit } from "./events.ts";
import { equalsParam, listPage } from "./lists.ts";
import type { PaymentIntent } from "./objects.ts";
import {
  amountParam,
  choiceParam,
  currencyParam,
  flagParam,
  mergedMetadata,
  requiredParam,
  textParam,
} from "./params.ts";
import { confirmIntent, confirmOptions, intentOf } from "./payment-intent-confirm.ts";
import { type Context, type Endpoint, newId } from "./state.ts";

/** POST /v1/payment_intents. With `confirm` it also charges; without, it only arms the intent. */
export const createPaymentIntent: Endpoint = (context) => {
  const { params } = context;
  const isConfirmed = flagParam(params, "confirm") ?? false;
  const draft = newIntent(context);
  const options = confirmOptions(params);
  if (isConfirmed && draft.payment_method === null) {
    throw invalidRequest("You cannot confirm this PaymentIntent because it's missing a payment method.", {
      code: "parameter_missing",
      param: "payment_method",
    });
  }
  return {
    run: () => {
      const intent = draft;
      intent.created = context.clock.seconds();
      context.account.paymentIntents.set(intent.id, intent);
      emit(context, "payment_intent.created", intent);
      return isConfirmed ? confirmIntent(context, intent, options) : intent;
    },
  };
};

function newIntent(context: Context): PaymentIntent {
  const { params } = context;
  const paymentMethod = textParam(params, "payment_method") ?? textParam(params, "source") ?? null;
  return {
    ...blankIntent(context, {
      amount: requiredParam(amountParam(params, "amount"), "amount"),
      currency: requiredParam(currencyParam(params, "currency"), "currency"),
      customer: textParam(params, "customer") ?? null,
    }),
    application_fee_amount: amountParam(params, "application_fee_amount") ?? null,
    capture_method: choiceParam(params, "capture_method", ["automatic", "automatic_async", "manual"]) ?? "automatic",
    confirmation_method: choiceParam(params, "confirmation_method", ["automatic", "manual"]) ?? "automatic",
    description: textParam(params, "description") ?? null,
    metadata: mergedMetadata(params),
    payment_method: paymentMethod,
    status: paymentMethod === null ? "requires_payment_method" : "requires_confirmation",
    transfer_group: textParam(params, "transfer_group") ?? null,
  };
}

/** An intent that nobody has armed yet. */
export function blankIntent(
  context: Context,
  order: Pick<PaymentIntent, "amount" | "currency" | "customer">,
): PaymentIntent {
  const id = newId("pi");
  return {
    id,
    object: "payment_intent",
    ...order,
    amount_capturable: 0,
    amount_received: 0,
    application_fee_amount: null,
    canceled_at: null,
    cancellation_reason: null,
    capture_method: "automatic",
    client_secret: `${id}_secret_${newId("x").slice(2)}`,
    confirmation_method: "automatic",
    created: context.clock.seconds(),
    description: null,
    last_payment_error: null,
    latest_charge: null,
    livemode: false,
    metadata: {},
    next_action: null,
    payment_method: null,
    payment_method_types: ["card"],
    status: "requires_payment_method",
    transfer_group: null,
  };
}

/** POST /v1/payment_intents/{id}. The amount may change only while no money can move; a canceled intent never. */
export const updatePaymentIntent: Endpoint = (context) => {
  const { params } = context;
  const intent = intentOf(context);
  const amount = amountParam(params, "amount");
  const currency = currencyParam(params, "currency");
  const paymentMethod = textParam(params, "payment_method");
  const metadata = mergedMetadata(params, intent.metadata);
  return {
    lock: intent.id,
    run: () => {
      const isOpen = intent.status.startsWith("requires_") && intent.status !== "requires_capture";
      const changesMoney = amount !== undefined || currency !== undefined || paymentMethod !== undefined;
      if (intent.status === "canceled" || (changesMoney && !isOpen)) {
        throw unexpectedState(
          `This PaymentIntent could not be updated because it has a status of ${intent.status}.`,
          intent,
        );
      }
      intent.amount = amount ?? intent.amount;
      intent.currency = currency ?? intent.currency;
      intent.customer = textParam(params, "customer") ?? intent.customer;
      intent.description = textParam(params, "description") ?? intent.description;
      intent.metadata = metadata;
      if (paymentMethod !== undefined) {
        intent.payment_method = paymentMethod;
        intent.status = "requires_confirmation";
        intent.next_action = null;
      }
      return intent;
    },
  };
};

/** POST /v1/payment_intents/{id}/cancel: from here on the intent refuses everything, so it proves that it never charged. */
export const cancelPaymentIntent: Endpoint = (context) => {
  const { account, params, clock } = context;
  const intent = intentOf(context);
  const reason = textParam(params, "cancellation_reason") ?? null;
  return {
    lock: intent.id,
    run: () => {
      if (intent.status === "succeeded" || intent.status === "canceled" || intent.status === "processing") {
        throw unexpectedState(
          `You cannot cancel this PaymentIntent because it has a status of ${intent.status}. Only a PaymentIntent ` +
            "with one of the following statuses may be canceled: requires_payment_method, requires_capture, " +
            "requires_confirmation, requires_action.",
          intent,
        );
      }
      const charge = intent.status === "requires_capture" ? account.charges.get(intent.latest_charge ?? "") : undefined;
      if (charge !== undefined) {
        charge.refunded = true;
        charge.amount_refunded = charge.amount;
      }
      intent.status = "canceled";
      intent.canceled_at = clock.seconds();
      intent.cancellation_reason = reason;
      intent.amount_capturable = 0;
      intent.next_action = null;
      emit(context, "payment_intent.canceled", intent);
      return intent;
    },
  };
};

export const retrievePaymentIntent: Endpoint = (context) => ({ run: () => intentOf(context) });

/** GET /v1/payment_intents: `customer`, `created`. */
export const listPaymentIntents: Endpoint = (context) => ({
  run: () =>
    listPage(context, context.account.paymentIntents.values(), {
      url: "/v1/payment_intents",
      kind: "payment_intent",
      lagMs: context.lag.lists,
      keep: equalsParam<PaymentIntent>(context.params, "customer"),
    }),
});

import { StripeRefusal, invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Charge, PaymentIntent } from "./objects.ts";
import { amountParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { confirmIntent } from "./payment-intent-confirm.ts";
import { makeRefund } from "./refunds.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep } from "./state.ts";

/** A card reader in a shop. Cards are presented to it at once, so what it is told to do is done at once. */
interface Reader extends Stored {
  object: "terminal.reader";
  action: object | null;
  device_type: string;
  livemode: false;
  status: "online";
}

/** The card in the shop: the intent's own, where it names an unusual one. */
const presented = "pm_card_visa";

/** POST /v1/terminal/readers/{id}/process_payment_intent and /confirm_payment_intent: the intent is charged. */
function chargeOnReader(type: "process_payment_intent" | "confirm_payment_intent"): Endpoint {
  return (context) => {
    const intent = intentNamed(context);
    return {
      lock: intent.id,
      run: () => {
        const paymentMethod = intent.payment_method ?? presented;
        try {
          confirmIntent(context, intent, { paymentMethod, isOffSession: false });
        } catch (error) {
          // The call only starts the reader: what the card said is in the action and in the intent.
          if (!(error instanceof StripeRefusal) || error.status !== 402) throw error;
          return acted(context, type, { payment_intent: intent.id }, error.body.code);
        }
        return acted(context, type, { payment_intent: intent.id });
      },
    };
  };
}

/** POST /v1/terminal/readers/{id}/collect_payment_method: only reads the card. */
const collectPaymentMethod: Endpoint = (context) => {
  const intent = intentNamed(context);
  return {
    lock: intent.id,
    run: () => acted(context, "collect_payment_method", { payment_intent: intent.id, payment_method: presented }),
  };
};

/** POST /v1/terminal/readers/{id}/refund_payment: by `charge` or `payment_intent`; `amount`, or all that is left. */
const refundPayment: Endpoint = (context) => {
  const { params, account } = context;
  const intent = account.paymentIntents.get(textParam(params, "payment_intent") ?? "");
  const id = textParam(params, "charge") ?? intent?.latest_charge ?? "";
  const charge: Charge | undefined = account.charges.get(id);
  if (charge === undefined) throw invalidRequest(`No such charge: '${id}'`, { code: "resource_missing" });
  const order = { amount: amountParam(params, "amount"), metadata: mergedMetadata(params), reason: null };
  return {
    lock: charge.payment_intent ?? charge.id,
    run: () => {
      const refund = makeRefund(context, charge, order);
      return acted(context, "refund_payment", { charge: charge.id, refund: refund.id, amount: refund.amount });
    },
  };
};

function acted(context: Context, type: string, detail: object, failure: string | null = null): Reader {
  const id = context.ids[0] ?? "";
  const reader =
    collectionOf<Reader>(context.account, "terminal.reader").get(id) ??
    keep<Reader>(context.account, {
      id,
      object: "terminal.reader",
      action: null,
      created: context.clock.seconds(),
      device_type: "simulated_wisepos_e",
      livemode: false,
      status: "online",
    });
  const status = failure === null ? "succeeded" : "failed";
  reader.action = { type, status, failure_code: failure, failure_message: null, [type]: detail };
  emit(context, `terminal.reader.action_${status}`, reader);
  return reader;
}

function intentNamed(context: Context): PaymentIntent {
  const id = requiredParam(textParam(context.params, "payment_intent"), "payment_intent");
  const intent = context.account.paymentIntents.get(id);
  if (intent === undefined) throw noSuchObject("payment_intent", id);
  return intent;
}

export const terminalRoutes: Routes = [
  ["POST", "/v1/terminal/readers/:id/process_payment_intent", chargeOnReader("process_payment_intent")],
  ["POST", "/v1/terminal/readers/:id/confirm_payment_intent", chargeOnReader("confirm_payment_intent")],
  ["POST", "/v1/terminal/readers/:id/collect_payment_method", collectPaymentMethod],
  ["POST", "/v1/terminal/readers/:id/refund_payment", refundPayment],
];

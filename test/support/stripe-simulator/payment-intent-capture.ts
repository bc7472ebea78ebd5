import { cardRefusal, forcedDecline } from "./cards.ts";
import { moveMoney } from "./charges.ts";
import { invalidRequest, unexpectedState } from "./errors.ts";
import { emit } from "./events.ts";
import type { Charge, PaymentIntent } from "./objects.ts";
import { amountParam, flagParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { intentOf, succeed } from "./payment-intent-confirm.ts";
import type { Context, Endpoint } from "./state.ts";

/**
 * POST /v1/payment_intents/{id}/capture. What is not captured is given back, unless `final_capture` is false: then the
 * rest stays capturable, and the next capture is another movement of the same charge.
 */
export const capturePaymentIntent: Endpoint = (context) => {
  const intent = intentOf(context);
  const amount = amountParam(context.params, "amount_to_capture");
  const isFinal = flagParam(context.params, "final_capture") ?? true;
  const metadata = mergedMetadata(context.params, intent.metadata);
  return {
    lock: intent.id,
    run: () => {
      const charge = authorizedCharge(context, intent, "captured");
      if (amount !== undefined && amount > intent.amount_capturable) {
        throw invalidRequest("The amount to capture is greater than the capturable amount.", {
          code: "amount_too_large",
          param: "amount_to_capture",
        });
      }
      const captured = amount ?? intent.amount_capturable;
      intent.metadata = metadata;
      moveMoney(context, charge, captured, "capture");
      emit(context, "charge.captured", charge);
      intent.amount_capturable -= captured;
      if (isFinal || intent.amount_capturable === 0) {
        succeed(context, intent, charge);
        return intent;
      }
      intent.amount_received = charge.amount_captured;
      emit(context, "payment_intent.amount_capturable_updated", intent);
      return intent;
    },
  };
};

/**
 * POST /v1/payment_intents/{id}/increment_authorization: `amount` is the new total. A decline leaves what was
 * authorized before.
 */
export const incrementAuthorization: Endpoint = (context) => {
  const { params } = context;
  const intent = intentOf(context);
  const amount = requiredParam(amountParam(params, "amount"), "amount");
  const description = textParam(params, "description");
  const metadata = mergedMetadata(params, intent.metadata);
  return {
    lock: intent.id,
    run: () => {
      const charge = authorizedCharge(context, intent, "incremented");
      if (amount <= intent.amount) {
        throw invalidRequest("The amount must be greater than the amount that is authorized.", { param: "amount" });
      }
      if (context.forcedDecline !== undefined) {
        throw cardRefusal(forcedDecline(context.forcedDecline), charge, intent);
      }
      intent.amount_capturable += amount - intent.amount;
      intent.amount = amount;
      intent.description = description ?? intent.description;
      intent.metadata = metadata;
      charge.amount = amount;
      emit(context, "payment_intent.amount_capturable_updated", intent);
      return intent;
    },
  };
};

function authorizedCharge(context: Context, intent: PaymentIntent, verb: string): Charge {
  const charge = context.account.charges.get(intent.latest_charge ?? "");
  if (intent.status !== "requires_capture" || charge === undefined) {
    throw unexpectedState(
      `This PaymentIntent could not be ${verb} because it has a status of ${intent.status}. Only a ` +
        `PaymentIntent with one of the following statuses may be ${verb}: requires_capture.`,
      intent,
    );
  }
  return charge;
}

import { makeCharge, moveMoney } from "./charges.ts";
import { invalidRequest, unexpectedState } from "./errors.ts";
import { emit } from "./events.ts";
import { canonicalParams } from "./form.ts";
import type { PaymentIntent } from "./objects.ts";
import { amountParam, currencyParam, requiredParam, textParam } from "./params.ts";
import { intentOf, orderOf, startProcessing, succeed } from "./payment-intent-confirm.ts";
import { type Context, type Endpoint, type Stored, collectionOf, keep } from "./state.ts";

/** Money that a customer has sent by bank transfer and that no payment has used yet, by currency. */
interface CashBalance extends Stored {
  object: "cash_balance";
  customer: string;
  available: Record<string, number>;
  settings: { reconciliation_mode: "manual" };
  livemode: false;
}

/** The two small deposits that prove a bank account, and the code that may stand for them: Stripe's test values. */
const deposits = ["32", "45"];
const descriptorCode = "SM11AA";

/** POST /v1/test_helpers/customers/{id}/fund_cash_balance: what a customer's bank transfer does. */
export const fundCashBalance: Endpoint = (context) => {
  const customer = context.ids[0] ?? "";
  const amount = requiredParam(amountParam(context.params, "amount"), "amount");
  const currency = requiredParam(currencyParam(context.params, "currency"), "currency");
  return {
    lock: customer,
    run: () => {
      const balance = cashBalanceOf(context, customer);
      balance.available[currency] = (balance.available[currency] ?? 0) + amount;
      return {
        id: `ccsbtxn_${balance.created}_${balance.available[currency]}`,
        object: "customer_cash_balance_transaction",
        created: context.clock.seconds(),
        currency,
        customer,
        ending_balance: balance.available[currency],
        livemode: false,
        net_amount: amount,
        type: "funded",
      };
    },
  };
};

/** GET /v1/customers/{id}/cash_balance. */
export const retrieveCashBalance: Endpoint = (context) => ({
  run: () => cashBalanceOf(context, context.ids[0] ?? ""),
});

function cashBalanceOf(context: Context, customer: string): CashBalance {
  const id = `cash_balance_${customer}`;
  const present = collectionOf<CashBalance>(context.account, "cash_balance").get(id);
  return (
    present ??
    keep(context.account, {
      id,
      object: "cash_balance",
      created: context.clock.seconds(),
      customer,
      available: {},
      settings: { reconciliation_mode: "manual" },
      livemode: false,
    })
  );
}

/**
 * POST /v1/payment_intents/{id}/apply_customer_balance: pays with the customer's cash, `amount` or all that is missing.
 * The intent succeeds when all of it is paid.
 */
export const applyCustomerBalance: Endpoint = (context) => {
  const intent = intentOf(context);
  const amount = amountParam(context.params, "amount");
  return {
    lock: intent.id,
    run: () => {
      if (intent.status !== "requires_action" && intent.status !== "requires_payment_method") {
        throw unexpectedState(`This PaymentIntent has a status of ${intent.status}.`, intent);
      }
      const balance = cashBalanceOf(context, intent.customer ?? "");
      const available = balance.available[intent.currency] ?? 0;
      const missing = intent.amount - intent.amount_received;
      const applied = amount ?? Math.min(available, missing);
      if (applied > missing || applied > available || applied === 0) {
        throw invalidRequest("The customer's cash balance does not cover this amount.", { param: "amount" });
      }
      balance.available[intent.currency] = available - applied;
      const charge = makeCharge(context, { ...orderOf(intent), amount: applied }, { kind: "approved" });
      intent.latest_charge = charge.id;
      const received = intent.amount_received + applied;
      if (received === intent.amount) succeed(context, intent, charge, received);
      else {
        intent.amount_received = received;
        emit(context, "payment_intent.partially_funded", intent);
      }
      return intent;
    },
  };
};

/** POST /v1/payment_intents/{id}/verify_microdeposits: the right numbers start the debit. */
export const verifyMicrodeposits: Endpoint = (context) => {
  const { params } = context;
  const intent = intentOf(context);
  const amounts = params["amounts"];
  const code = textParam(params, "descriptor_code");
  return {
    lock: intent.id,
    run: () => {
      if (intent.next_action?.type !== "verify_with_microdeposits") {
        throw unexpectedState(`This PaymentIntent has a status of ${intent.status}: nothing is to verify.`, intent);
      }
      const isRight = Array.isArray(amounts)
        ? canonicalParams(amounts) === canonicalParams(deposits)
        : code === descriptorCode;
      if (!isRight) {
        throw invalidRequest("The amounts provided do not match the amounts that were sent to the bank account.", {
          code: "payment_method_microdeposit_verification_amounts_mismatch",
        });
      }
      return startProcessing(context, intent);
    },
  };
};

/** Ends `processing`, as a bank debit does days later, by itself. */
export function settleProcessing(context: Context, outcome: "succeeded" | "failed"): PaymentIntent {
  const intent = intentOf(context);
  const charge = context.account.charges.get(intent.latest_charge ?? "");
  if (intent.status !== "processing" || charge === undefined) {
    throw unexpectedState(`This PaymentIntent has a status of ${intent.status}, not processing.`, intent);
  }
  if (outcome === "succeeded") {
    moveMoney(context, charge, charge.amount);
    emit(context, "charge.succeeded", charge);
    succeed(context, intent, charge);
    return intent;
  }
  charge.status = "failed";
  charge.failure_code = "card_declined";
  charge.failure_message = "The bank returned the debit.";
  emit(context, "charge.failed", charge);
  intent.status = "requires_payment_method";
  intent.payment_method = null;
  intent.last_payment_error = { type: "card_error", code: "card_declined", charge: charge.id };
  emit(context, "payment_intent.payment_failed", intent);
  return intent;
}

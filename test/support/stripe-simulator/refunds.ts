import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { equalsParam, listPage } from "./lists.ts";
import type { Charge, Refund } from "./objects.ts";
import { amountParam, mergedMetadata, textParam } from "./params.ts";
import { type Context, type Endpoint, newId } from "./state.ts";

/** POST /v1/refunds: by `charge` or `payment_intent`; without an amount, all that is left. */
export const createRefund: Endpoint = (context) => {
  const charge = refundedCharge(context);
  const amount = amountParam(context.params, "amount");
  const metadata = mergedMetadata(context.params);
  const reason = textParam(context.params, "reason") ?? null;
  return {
    lock: charge.payment_intent ?? charge.id,
    run: () => {
      const left = charge.amount_captured - charge.amount_refunded;
      if (!charge.captured) throw invalidRequest(`Charge ${charge.id} has no captured money to refund.`);
      if (left === 0) {
        throw invalidRequest(`Charge ${charge.id} has already been refunded.`, { code: "charge_already_refunded" });
      }
      if (amount !== undefined && amount > left) {
        throw invalidRequest(`Refund amount is greater than unrefunded amount on charge (${left}).`, {
          param: "amount",
        });
      }
      return moveBack(context, charge, { amount: amount ?? left, metadata, reason });
    },
  };
};

function moveBack(
  context: Context,
  charge: Charge,
  order: { amount: number; metadata: Record<string, string>; reason: string | null },
): Refund {
  const refund: Refund = {
    id: newId("re"),
    object: "refund",
    amount: order.amount,
    charge: charge.id,
    created: context.clock.seconds(),
    currency: charge.currency,
    metadata: order.metadata,
    payment_intent: charge.payment_intent,
    reason: order.reason,
    status: "succeeded",
  };
  context.account.refunds.set(refund.id, refund);
  charge.amount_refunded += refund.amount;
  charge.refunded = charge.amount_refunded === charge.amount_captured;
  context.ledger.append({
    at: context.clock.now(),
    kind: "refund",
    id: refund.id,
    ...(charge.payment_intent === null ? {} : { payment_intent: charge.payment_intent }),
    amount: refund.amount,
    currency: charge.currency,
    customer: charge.customer,
    account: context.account.id,
    idempotency_key: context.origin?.idempotency_key ?? null,
    metadata: refund.metadata,
  });
  emit(context, "charge.refunded", charge);
  emit(context, "refund.created", refund);
  return refund;
}

export const retrieveRefund: Endpoint = (context) => ({
  run: () => {
    const id = context.ids[0] ?? "";
    const refund = context.account.refunds.get(id);
    if (refund === undefined) throw noSuchObject("refund", id);
    return refund;
  },
});

/** GET /v1/refunds: `charge`, `payment_intent`, `created`. */
export const listRefunds: Endpoint = (context) => ({
  run: () => {
    const byCharge = equalsParam<Refund>(context.params, "charge");
    const byIntent = equalsParam<Refund>(context.params, "payment_intent");
    return listPage(context, context.account.refunds.values(), {
      url: "/v1/refunds",
      kind: "refund",
      lagMs: context.lag.lists,
      keep: (refund) => byCharge(refund) && byIntent(refund),
    });
  },
});

function refundedCharge(context: Context): Charge {
  const { params, account } = context;
  const intentId = textParam(params, "payment_intent");
  const id =
    textParam(params, "charge") ??
    (intentId === undefined ? undefined : account.paymentIntents.get(intentId)?.latest_charge);
  const charge = id === undefined || id === null ? undefined : account.charges.get(id);
  if (charge === undefined) {
    throw invalidRequest(`No such charge: '${id ?? intentId ?? ""}'`, { code: "resource_missing", param: "charge" });
  }
  return charge;
}

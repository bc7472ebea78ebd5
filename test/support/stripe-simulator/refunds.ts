import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { equalsParam, listPage } from "./lists.ts";
import { recordMovement } from "./movements.ts";
import type { Charge, Metadata, Refund } from "./objects.ts";
import { amountParam, mergedMetadata, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, newId } from "./state.ts";

interface RefundOrder {
  readonly amount: number | undefined;
  readonly metadata: Metadata;
  readonly reason: string | null;
}

/** POST /v1/refunds: by `charge` or `payment_intent`; without an amount, all that is left. */
const createRefund: Endpoint = (context) => prepareRefund(context, refundedCharge(context));

/** POST /v1/charges/{id}/refunds, the older way to the same. */
const createRefundOfCharge: Endpoint = (context) => prepareRefund(context, chargeInPath(context));

/** POST /v1/charges/{id}/refund, the oldest way: it answers the charge. */
const refundCharge: Endpoint = (context) => {
  const charge = chargeInPath(context);
  const prepared = prepareRefund(context, charge);
  return {
    ...prepared,
    run: () => {
      prepared.run();
      return charge;
    },
  };
};

function prepareRefund(context: Context, charge: Charge) {
  const order: RefundOrder = {
    amount: amountParam(context.params, "amount"),
    metadata: mergedMetadata(context.params),
    reason: textParam(context.params, "reason") ?? null,
  };
  return { lock: charge.payment_intent ?? charge.id, run: () => makeRefund(context, charge, order) };
}

/** Gives back money of a charge. The cards named `pendingRefund` leave it pending, until `settleRefund`. */
export function makeRefund(context: Context, charge: Charge, order: RefundOrder): Refund {
  const left = charge.amount_captured - charge.amount_refunded;
  if (!charge.captured) throw invalidRequest(`Charge ${charge.id} has no captured money to refund.`);
  if (left === 0) {
    throw invalidRequest(`Charge ${charge.id} has already been refunded.`, { code: "charge_already_refunded" });
  }
  const amount = order.amount ?? left;
  if (amount > left) {
    throw invalidRequest(`Refund amount is greater than unrefunded amount on charge (${left}).`, { param: "amount" });
  }
  const refund: Refund = {
    id: newId("re"),
    object: "refund",
    amount,
    charge: charge.id,
    created: context.clock.seconds(),
    currency: charge.currency,
    metadata: order.metadata,
    payment_intent: charge.payment_intent,
    reason: order.reason,
    status: /pendingRefund/i.test(charge.payment_method ?? "") ? "pending" : "succeeded",
  };
  context.account.refunds.set(refund.id, refund);
  charge.amount_refunded += refund.amount;
  charge.refunded = charge.amount_refunded === charge.amount_captured;
  if (refund.status === "succeeded") move(context, refund, "refund");
  emit(context, "charge.refunded", charge);
  emit(context, "refund.created", refund);
  return refund;
}

function move(context: Context, refund: Refund, kind: "refund" | "refund_return"): void {
  recordMovement(context, {
    kind,
    id: refund.id,
    payment_intent: refund.payment_intent,
    amount: refund.amount,
    currency: refund.currency,
    customer: context.account.charges.get(refund.charge)?.customer ?? null,
    metadata: refund.metadata,
  });
}

/** POST /v1/refunds/{id}/cancel: only what is still pending. The money can be refunded again. */
const cancelRefund: Endpoint = (context) => {
  const refund = refundOf(context);
  return {
    lock: refund.charge,
    run: () => {
      if (refund.status !== "pending" && refund.status !== "requires_action") {
        throw invalidRequest(`A refund with a status of ${refund.status} cannot be canceled.`);
      }
      undo(context, refund, "canceled");
      return refund;
    },
  };
};

const updateRefund: Endpoint = (context) => {
  const refund = refundOf(context);
  const metadata = mergedMetadata(context.params, refund.metadata);
  return {
    lock: refund.charge,
    run: () => {
      refund.metadata = metadata;
      emit(context, "refund.updated", refund);
      return refund;
    },
  };
};

/** What the customer's bank says later: a pending refund succeeds, or any refund fails and comes back. */
export function settleRefund(context: Context, outcome: "succeeded" | "failed"): Refund {
  const refund = refundOf(context);
  const wasPending = refund.status === "pending" || refund.status === "requires_action";
  if (!wasPending && (outcome === "succeeded" || refund.status !== "succeeded")) {
    throw invalidRequest(`This refund has a status of ${refund.status}.`);
  }
  if (outcome === "succeeded") {
    refund.status = "succeeded";
    move(context, refund, "refund");
    emit(context, "refund.updated", refund);
    return refund;
  }
  if (!wasPending) move(context, refund, "refund_return");
  refund.failure_reason = "expired_or_canceled_card";
  undo(context, refund, "failed");
  return refund;
}

function undo(context: Context, refund: Refund, status: "canceled" | "failed"): void {
  refund.status = status;
  const charge = context.account.charges.get(refund.charge);
  if (charge !== undefined) {
    charge.amount_refunded -= refund.amount;
    charge.refunded = false;
  }
  emit(context, status === "failed" ? "refund.failed" : "refund.updated", refund);
}

const retrieveRefund: Endpoint = (context) => ({ run: () => refundOf(context) });

/** GET /v1/refunds: `charge`, `payment_intent`, `created`. */
const listRefunds: Endpoint = (context) => ({
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

function refundOf(context: Context): Refund {
  const id = context.ids.at(-1) ?? "";
  const refund = context.account.refunds.get(id);
  if (refund === undefined) throw noSuchObject("refund", id);
  return refund;
}

function chargeInPath(context: Context): Charge {
  const id = context.ids[0] ?? "";
  const charge = context.account.charges.get(id);
  if (charge === undefined) throw noSuchObject("charge", id);
  return charge;
}

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

export const refundRoutes: Routes = [
  ["POST", "/v1/refunds", createRefund],
  ["GET", "/v1/refunds", listRefunds],
  ["GET", "/v1/refunds/:id", retrieveRefund],
  ["POST", "/v1/refunds/:id", updateRefund],
  ["POST", "/v1/refunds/:id/cancel", cancelRefund],
  ["POST", "/v1/charges/:id/refund", refundCharge],
  ["POST", "/v1/charges/:id/refunds", createRefundOfCharge],
  ["POST", "/v1/charges/:id/refunds/:id", updateRefund],
];

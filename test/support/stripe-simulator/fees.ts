import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Charge, Metadata } from "./objects.ts";
import { amountParam, mergedMetadata } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** What a platform kept of a charge. */
interface ApplicationFee extends Stored {
  object: "application_fee";
  account: string;
  amount: number;
  amount_refunded: number;
  charge: string;
  currency: string;
  livemode: false;
  refunded: boolean;
}

interface FeeRefund extends Stored {
  object: "fee_refund";
  amount: number;
  balance_transaction: string;
  currency: string;
  fee: string;
  metadata: Metadata;
}

export function makeFee(context: Context, charge: Charge): void {
  const fee: ApplicationFee = {
    id: newId("fee"),
    object: "application_fee",
    account: context.account.id,
    amount: charge.application_fee_amount ?? 0,
    amount_refunded: 0,
    charge: charge.id,
    created: context.clock.seconds(),
    currency: charge.currency,
    livemode: false,
    refunded: false,
  };
  keep(context.account, fee);
  charge.application_fee = fee.id;
}

/** POST /v1/application_fees/{id}/refunds: `amount`, or all that is left. */
const refundFee: Endpoint = (context) => {
  const fee = feeOf(context);
  const amount = amountParam(context.params, "amount");
  const metadata = mergedMetadata(context.params);
  return { lock: fee.id, run: () => giveBack(context, fee, { amount, metadata }) };
};

/** POST /v1/application_fees/{id}/refund, the older way: it answers the fee. */
const refundFeeOldWay: Endpoint = (context) => {
  const fee = feeOf(context);
  const amount = amountParam(context.params, "amount");
  return {
    lock: fee.id,
    run: () => {
      giveBack(context, fee, { amount, metadata: {} });
      return fee;
    },
  };
};

function giveBack(
  context: Context,
  fee: ApplicationFee,
  order: { amount: number | undefined; metadata: Metadata },
): FeeRefund {
  const left = fee.amount - fee.amount_refunded;
  if (left === 0) throw invalidRequest(`Application fee ${fee.id} has already been refunded.`);
  const amount = order.amount ?? left;
  if (amount > left) throw invalidRequest(`Refund amount is greater than what is left (${left}).`, { param: "amount" });
  const refund: FeeRefund = {
    id: newId("fr"),
    object: "fee_refund",
    amount,
    balance_transaction: newId("txn"),
    created: context.clock.seconds(),
    currency: fee.currency,
    fee: fee.id,
    metadata: order.metadata,
  };
  keep(context.account, refund);
  fee.amount_refunded += amount;
  fee.refunded = fee.amount_refunded === fee.amount;
  const { id, currency, metadata } = refund;
  recordMovement(context, { kind: "refund", id, cause: fee.id, amount, currency, customer: null, metadata });
  emit(context, "application_fee.refunded", fee);
  return refund;
}

function feeOf(context: Context): ApplicationFee {
  const id = context.ids[0] ?? "";
  const fee = collectionOf<ApplicationFee>(context.account, "application_fee").get(id);
  if (fee === undefined) throw noSuchObject("application_fee", id);
  return fee;
}

export const feeRoutes: Routes = [
  ["POST", "/v1/application_fees/:id/refunds", refundFee],
  ["POST", "/v1/application_fees/:id/refund", refundFeeOldWay],
];

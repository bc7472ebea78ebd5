import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

const dayMs = 24 * 60 * 60 * 1000;

/** Money to the account's own bank. It leaves at once, and comes back when the payout is canceled, fails or is reversed. */
export interface Payout extends Stored {
  object: "payout";
  amount: number;
  arrival_date: number;
  automatic: false;
  balance_transaction: string;
  created: number;
  currency: string;
  description: string | null;
  destination: string;
  failure_code: string | null;
  failure_message: string | null;
  livemode: false;
  metadata: Metadata;
  method: string;
  original_payout: string | null;
  reconciliation_status: "not_applicable";
  reversed_by: string | null;
  source_type: "card";
  statement_descriptor: string | null;
  status: "pending" | "in_transit" | "paid" | "failed" | "canceled";
  type: "bank_account";
}

/** Currencies whose payouts have no small coins. */
const wholeOnly = new Set(["huf", "twd"]);

/** POST /v1/payouts. Two days later it is paid, by itself. */
const createPayout: Endpoint = (context) => {
  const { params } = context;
  const amount = requiredParam(amountParam(params, "amount"), "amount");
  const currency = requiredParam(currencyParam(params, "currency"), "currency");
  if (wholeOnly.has(currency) && amount % 100 !== 0) {
    throw invalidRequest("The amount must be divisible by 100.", { param: "amount" });
  }
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const payout = makePayout(context, { amount, currency, metadata, original: null });
      payout.description = textParam(params, "description") ?? null;
      payout.destination = textParam(params, "destination") ?? payout.destination;
      payout.method = textParam(params, "method") ?? payout.method;
      payout.statement_descriptor = textParam(params, "statement_descriptor") ?? null;
      recordMovement(context, { kind: "payout", id: payout.id, amount, currency, customer: null, metadata });
      emit(context, "payout.created", payout);
      context.agenda.add(context.clock.now() + 2 * dayMs, context.account.id, (later) => {
        if (payout.status === "pending") finish(later, payout, "paid");
      });
      return payout;
    },
  };
};

function makePayout(
  context: Context,
  order: { amount: number; currency: string; metadata: Metadata; original: string | null },
): Payout {
  return keep<Payout>(context.account, {
    id: newId("po"),
    object: "payout",
    amount: order.amount,
    arrival_date: Math.floor((context.clock.now() + 2 * dayMs) / 1000),
    automatic: false,
    balance_transaction: newId("txn"),
    created: context.clock.seconds(),
    currency: order.currency,
    description: null,
    destination: "ba_simulator",
    failure_code: null,
    failure_message: null,
    livemode: false,
    metadata: order.metadata,
    method: "standard",
    original_payout: order.original,
    reconciliation_status: "not_applicable",
    reversed_by: null,
    source_type: "card",
    statement_descriptor: null,
    status: "pending",
    type: "bank_account",
  });
}

/** POST /v1/payouts/{id}/cancel: only while it is pending. */
const cancelPayout: Endpoint = (context) => {
  const payout = payoutOf(context);
  return {
    lock: payout.id,
    run: () => {
      if (payout.status !== "pending") {
        throw invalidRequest(`Payouts with a status of ${payout.status} cannot be canceled.`, {
          code: "payout_not_cancelable",
        });
      }
      return finish(context, payout, "canceled");
    },
  };
};

/** POST /v1/payouts/{id}/reverse: a second payout of the negative amount, of one that was paid. */
const reversePayout: Endpoint = (context) => {
  const payout = payoutOf(context);
  const metadata = mergedMetadata(context.params);
  return {
    lock: payout.id,
    run: () => {
      if (payout.status !== "paid" || payout.reversed_by !== null) {
        throw invalidRequest(`Payout ${payout.id} cannot be reversed.`, { code: "payout_reconciliation_not_ready" });
      }
      const { id, amount, currency } = payout;
      const reversal = makePayout(context, { amount: -amount, currency, metadata, original: id });
      payout.reversed_by = reversal.id;
      recordMovement(context, {
        kind: "payout_return",
        id: reversal.id,
        cause: id,
        amount,
        currency,
        customer: null,
        metadata,
      });
      emit(context, "payout.created", reversal);
      return reversal;
    },
  };
};

/** What the bank says to a payout. */
export function settlePayout(context: Context, outcome: "succeeded" | "failed"): Payout {
  const payout = payoutOf(context);
  if (payout.status === "canceled" || payout.status === "failed") {
    throw invalidRequest(`This payout has a status of ${payout.status}.`);
  }
  return finish(context, payout, outcome === "succeeded" ? "paid" : "failed");
}

function finish(context: Context, payout: Payout, status: "paid" | "failed" | "canceled"): Payout {
  payout.status = status;
  if (status === "failed") payout.failure_code = "account_closed";
  if (status !== "paid") {
    const { id, amount, currency, metadata } = payout;
    recordMovement(context, { kind: "payout_return", id, amount, currency, customer: null, metadata });
  }
  emit(context, `payout.${status}`, payout);
  return payout;
}

function payoutOf(context: Context): Payout {
  const id = context.ids[0] ?? "";
  const payout = collectionOf<Payout>(context.account, "payout").get(id);
  if (payout === undefined) throw noSuchObject("payout", id);
  return payout;
}

export const payoutRoutes: Routes = [
  ["POST", "/v1/payouts", createPayout],
  ["POST", "/v1/payouts/:id/cancel", cancelPayout],
  ["POST", "/v1/payouts/:id/reverse", reversePayout],
];

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** Money from the account's own bank. Written down when it is ordered, and again when it does not come. */
interface Topup extends Stored {
  object: "topup";
  amount: number;
  balance_transaction: string | null;
  currency: string;
  description: string | null;
  expected_availability_date: number;
  failure_code: string | null;
  failure_message: string | null;
  livemode: false;
  metadata: Metadata;
  source: { id: string; object: "source" };
  statement_descriptor: string | null;
  status: "pending" | "succeeded" | "failed" | "canceled" | "reversed";
  transfer_group: string | null;
}

/** POST /v1/topups: pending until `settleTopup`. */
const createTopup: Endpoint = (context) => {
  const { params } = context;
  const amount = requiredParam(amountParam(params, "amount"), "amount");
  const currency = requiredParam(currencyParam(params, "currency"), "currency");
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const topup: Topup = {
        id: newId("tu"),
        object: "topup",
        amount,
        balance_transaction: null,
        created: context.clock.seconds(),
        currency,
        description: textParam(params, "description") ?? null,
        expected_availability_date: context.clock.seconds() + 86_400,
        failure_code: null,
        failure_message: null,
        livemode: false,
        metadata,
        source: { id: textParam(params, "source") ?? "src_simulator", object: "source" },
        statement_descriptor: textParam(params, "statement_descriptor") ?? null,
        status: "pending",
        transfer_group: textParam(params, "transfer_group") ?? null,
      };
      keep(context.account, topup);
      recordMovement(context, { kind: "topup", id: topup.id, amount, currency, customer: null, metadata });
      emit(context, "topup.created", topup);
      return topup;
    },
  };
};

/** POST /v1/topups/{id}/cancel: only while it is pending. */
const cancelTopup: Endpoint = (context) => {
  const topup = topupOf(context);
  return {
    lock: topup.id,
    run: () => {
      if (topup.status !== "pending") {
        throw invalidRequest(`Topups with a status of ${topup.status} cannot be canceled.`);
      }
      return finish(context, topup, "canceled");
    },
  };
};

/** What the bank says to a topup. */
export function settleTopup(context: Context, outcome: "succeeded" | "failed"): Topup {
  const topup = topupOf(context);
  if (topup.status !== "pending") throw invalidRequest(`This topup has a status of ${topup.status}.`);
  return finish(context, topup, outcome);
}

function finish(context: Context, topup: Topup, status: "succeeded" | "failed" | "canceled"): Topup {
  topup.status = status;
  if (status === "succeeded") topup.balance_transaction = newId("txn");
  else {
    const { id, amount, currency, metadata } = topup;
    recordMovement(context, { kind: "topup_return", id, amount, currency, customer: null, metadata });
  }
  emit(context, `topup.${status}`, topup);
  return topup;
}

function topupOf(context: Context): Topup {
  const id = context.ids[0] ?? "";
  const topup = collectionOf<Topup>(context.account, "topup").get(id);
  if (topup === undefined) throw noSuchObject("topup", id);
  return topup;
}

export const topupRoutes: Routes = [
  ["POST", "/v1/topups", createTopup],
  ["POST", "/v1/topups/:id/cancel", cancelTopup],
];

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** Money to a connected account. */
interface Transfer extends Stored {
  object: "transfer";
  amount: number;
  amount_reversed: number;
  balance_transaction: string;
  currency: string;
  description: string | null;
  destination: string;
  destination_payment: string;
  livemode: false;
  metadata: Metadata;
  reversals: { object: "list"; data: TransferReversal[]; has_more: false; url: string };
  reversed: boolean;
  source_transaction: string | null;
  source_type: "card";
  transfer_group: string | null;
}

interface TransferReversal extends Stored {
  object: "transfer_reversal";
  amount: number;
  balance_transaction: string;
  currency: string;
  metadata: Metadata;
  transfer: string;
}

/** POST /v1/transfers: without an amount, that of the charge in `source_transaction`. */
const createTransfer: Endpoint = (context) => {
  const { params, account } = context;
  const source = textParam(params, "source_transaction") ?? null;
  const charge = source === null ? undefined : account.charges.get(source);
  if (source !== null && charge === undefined) throw noSuchObject("charge", source);
  const amount = requiredParam(amountParam(params, "amount") ?? charge?.amount, "amount");
  const currency = requiredParam(currencyParam(params, "currency") ?? charge?.currency, "currency");
  const destination = requiredParam(textParam(params, "destination"), "destination");
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const id = newId("tr");
      const transfer: Transfer = {
        id,
        object: "transfer",
        amount,
        amount_reversed: 0,
        balance_transaction: newId("txn"),
        created: context.clock.seconds(),
        currency,
        description: textParam(params, "description") ?? null,
        destination,
        destination_payment: newId("py"),
        livemode: false,
        metadata,
        reversals: { object: "list", data: [], has_more: false, url: `/v1/transfers/${id}/reversals` },
        reversed: false,
        source_transaction: source,
        source_type: "card",
        transfer_group: textParam(params, "transfer_group") ?? charge?.transfer_group ?? null,
      };
      keep(account, transfer);
      recordMovement(context, { kind: "transfer", id, amount, currency, customer: null, metadata });
      emit(context, "transfer.created", transfer);
      return transfer;
    },
  };
};

/** POST /v1/transfers/{id}/reversals: `amount`, or all that is left. */
const reverseTransfer: Endpoint = (context) => {
  const id = context.ids[0] ?? "";
  const transfer = collectionOf<Transfer>(context.account, "transfer").get(id);
  if (transfer === undefined) throw noSuchObject("transfer", id);
  const amount = amountParam(context.params, "amount");
  const metadata = mergedMetadata(context.params);
  return { lock: id, run: () => reverse(context, transfer, { amount, metadata }) };
};

function reverse(
  context: Context,
  transfer: Transfer,
  order: { amount: number | undefined; metadata: Metadata },
): TransferReversal {
  const left = transfer.amount - transfer.amount_reversed;
  if (left === 0) throw invalidRequest(`Transfer ${transfer.id} is already fully reversed.`);
  const amount = order.amount ?? left;
  if (amount > left)
    throw invalidRequest(`Reversal amount is greater than what is left (${left}).`, { param: "amount" });
  const reversal: TransferReversal = {
    id: newId("trr"),
    object: "transfer_reversal",
    amount,
    balance_transaction: newId("txn"),
    created: context.clock.seconds(),
    currency: transfer.currency,
    metadata: order.metadata,
    transfer: transfer.id,
  };
  keep(context.account, reversal);
  transfer.reversals.data.unshift(reversal);
  transfer.amount_reversed += amount;
  transfer.reversed = transfer.amount_reversed === transfer.amount;
  const { id, currency, metadata } = reversal;
  recordMovement(context, {
    kind: "transfer_reversal",
    id,
    cause: transfer.id,
    amount,
    currency,
    customer: null,
    metadata,
  });
  emit(context, "transfer.reversed", transfer);
  return reversal;
}

export const transferRoutes: Routes = [
  ["POST", "/v1/transfers", createTransfer],
  ["POST", "/v1/transfers/:id/reversals", reverseTransfer],
];

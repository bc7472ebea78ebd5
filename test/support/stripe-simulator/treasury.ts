import { echoed } from "./echo.ts";
import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { type MovementKind, recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { idPrefixOf } from "./resources.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** An order to a bank or from one, which is processing until the bank has carried it out. */
interface BankOrder extends Stored {
  amount: number;
  cancelable: boolean;
  currency: string;
  customer: string | null;
  livemode: false;
  metadata: Metadata;
  status: string;
}

interface OrderKind {
  readonly kind: string;
  readonly movement: MovementKind;
  readonly undone: MovementKind;
}

const outboundPayment: OrderKind = {
  kind: "treasury.outbound_payment",
  movement: "payout",
  undone: "payout_return",
};
const outboundTransfer: OrderKind = { ...outboundPayment, kind: "treasury.outbound_transfer" };
const inboundTransfer: OrderKind = {
  kind: "treasury.inbound_transfer",
  movement: "inbound_transfer",
  undone: "topup_return",
};

function createOrder({ kind, movement }: OrderKind): Endpoint {
  return (context) => {
    const { params } = context;
    const amount = requiredParam(amountParam(params, "amount"), "amount");
    const currency = requiredParam(currencyParam(params, "currency"), "currency");
    requiredParam(textParam(params, "financial_account"), "financial_account");
    const metadata = mergedMetadata(params);
    return {
      run: () => {
        const order: BankOrder = {
          ...echoed(params),
          id: newId(idPrefixOf(kind)),
          object: kind,
          amount,
          cancelable: true,
          created: context.clock.seconds(),
          currency,
          customer: textParam(params, "customer") ?? null,
          livemode: false,
          metadata,
          status: "processing",
        };
        keep(context.account, order);
        move(context, order, movement);
        emit(context, `${kind}.created`, order);
        return order;
      },
    };
  };
}

/** Ends an order: `undone` when the money goes back to where it came from. */
function endOrder({ kind, undone }: OrderKind, status: string, isUndone: boolean): Endpoint {
  return (context) => {
    const id = context.ids[0] ?? "";
    const order = collectionOf<BankOrder>(context.account, kind).get(id);
    if (order === undefined) throw noSuchObject(kind, id);
    return {
      lock: id,
      run: () => {
        if (order.status !== "processing" && !(status === "returned" && order.status !== "canceled")) {
          throw invalidRequest(`This ${kind.split(".")[1]} has a status of ${order.status}.`);
        }
        order.status = status;
        order.cancelable = false;
        if (isUndone) move(context, order, undone);
        emit(context, `${kind}.${status}`, order);
        return order;
      },
    };
  };
}

function move(context: Context, order: BankOrder, kind: MovementKind): void {
  const { id, amount, currency, customer, metadata } = order;
  recordMovement(context, { kind, id, amount, currency, customer, metadata });
}

function orderRoutes(order: OrderKind, collection: string, done: string, doneStatus: string): Routes {
  return [
    ["POST", `/v1/treasury/${collection}`, createOrder(order)],
    ["POST", `/v1/treasury/${collection}/:id/cancel`, endOrder(order, "canceled", true)],
    ["POST", `/v1/test_helpers/treasury/${collection}/:id/${done}`, endOrder(order, doneStatus, false)],
    ["POST", `/v1/test_helpers/treasury/${collection}/:id/fail`, endOrder(order, "failed", true)],
    ["POST", `/v1/test_helpers/treasury/${collection}/:id/return`, endOrder(order, "returned", true)],
  ];
}

export const treasuryRoutes: Routes = [
  ...orderRoutes(outboundPayment, "outbound_payments", "post", "posted"),
  ...orderRoutes(outboundTransfer, "outbound_transfers", "post", "posted"),
  ...orderRoutes(inboundTransfer, "inbound_transfers", "succeed", "succeeded"),
];

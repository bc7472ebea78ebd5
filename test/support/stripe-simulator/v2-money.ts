import { StripeRefusal, invalidRequest, noSuchObject } from "./errors.ts";
import { echoed } from "./echo.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { type MovementKind, recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, choiceParam, currencyParam, groupParam, mergedMetadata, requiredParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

interface AmountV2 {
  value: number;
  currency: string;
}

interface StoredV2 extends Stored {
  created: string;
  amount: AmountV2;
  livemode: false;
  metadata: Metadata;
}

interface OutboundPayment extends StoredV2 {
  object: "v2.money_management.outbound_payment";
  cancelable: boolean;
  from: object;
  payout_intent?: string;
  recipient_notification: { setting: "none" };
  statement_descriptor: string;
  status: "processing" | "posted" | "failed" | "canceled" | "returned";
  to: object;
}

interface PayoutIntent extends StoredV2 {
  object: "v2.money_management.payout_intent";
  confirmation_method: "automatic" | "manual";
  from: object;
  latest_payout?: { type: "outbound_payment"; outbound_payment: string };
  next_action?: { type: "confirm"; confirm: { fields_to_review: string[] } };
  status: "requires_action" | "processing" | "posted" | "canceled";
  to: object;
}

/** `amount: {"value", "currency"}`; both are required. */
function amountV2(params: Params): AmountV2 {
  const amount = groupParam(params, "amount");
  return {
    value: requiredParam(amountParam(amount, "value"), "amount.value"),
    currency: requiredParam(currencyParam(amount, "currency"), "amount.currency"),
  };
}

/** POST /v2/money_management/outbound_payments: the money leaves at once. */
const createOutboundPayment: Endpoint = (context) => {
  const order = orderOf(context);
  return {
    run: () => {
      refuseIfForced(context);
      return payOut(context, order);
    },
  };
};

interface Order {
  readonly amount: AmountV2;
  readonly from: Record<string, unknown>;
  readonly to: Record<string, unknown>;
  readonly metadata: Metadata;
}

function orderOf(context: Context): Order {
  const { params } = context;
  return {
    amount: amountV2(params),
    from: echoed(groupParam(params, "from")),
    to: echoed(groupParam(params, "to")),
    metadata: mergedMetadata(params),
  };
}

function payOut(context: Context, order: Order, intent?: PayoutIntent): OutboundPayment {
  const { amount, metadata } = order;
  const payment: OutboundPayment = {
    id: newId("obp"),
    object: "v2.money_management.outbound_payment",
    amount,
    cancelable: true,
    created: isoNow(context),
    from: { ...order.from, debited: amount },
    livemode: false,
    metadata,
    ...(intent === undefined ? {} : { payout_intent: intent.id }),
    recipient_notification: { setting: "none" },
    statement_descriptor: "SIMULATOR",
    status: "processing",
    to: { ...order.to, credited: amount },
  };
  keep(context.account, payment);
  move(context, payment, "payout");
  emit(context, "v2.money_management.outbound_payment.created", payment);
  return payment;
}

/** POST /v2/money_management/outbound_payments/{id}/cancel: only while it is processing; the money comes back. */
const cancelOutboundPayment: Endpoint = (context) => {
  const payment = paymentOf(context);
  return {
    lock: payment.id,
    run: () => {
      if (payment.status !== "processing") {
        throw invalidRequest(`This OutboundPayment is ${payment.status}.`, { code: "not_cancelable" });
      }
      payment.status = "canceled";
      payment.cancelable = false;
      move(context, payment, "payout_return");
      emit(context, "v2.money_management.outbound_payment.canceled", payment);
      return payment;
    },
  };
};

/** POST /v2/money_management/payout_intents: with manual confirmation nothing leaves before `confirm`. */
const createPayoutIntent: Endpoint = (context) => {
  const order = orderOf(context);
  const method = choiceParam(context.params, "confirmation_method", ["automatic", "manual"]) ?? "automatic";
  return {
    run: () => {
      refuseIfForced(context);
      const intent: PayoutIntent = {
        id: newId("pyi"),
        object: "v2.money_management.payout_intent",
        amount: order.amount,
        confirmation_method: method,
        created: isoNow(context),
        from: order.from,
        livemode: false,
        metadata: order.metadata,
        status: "requires_action",
        to: order.to,
      };
      keep(context.account, intent);
      if (method === "automatic") return carryOut(context, intent);
      intent.next_action = { type: "confirm", confirm: { fields_to_review: [] } };
      emit(context, "v2.money_management.payout_intent.created", intent);
      return intent;
    },
  };
};

/** POST /v2/money_management/payout_intents/{id}: amount, recipient and metadata, until it is confirmed. */
const updatePayoutIntent: Endpoint = (context) => {
  const intent = intentOf(context);
  const { params } = context;
  const amount = params["amount"] === undefined ? undefined : amountV2(params);
  const metadata = mergedMetadata(params, intent.metadata);
  return {
    lock: intent.id,
    run: () => {
      refuseUnlessOpen(intent);
      intent.amount = amount ?? intent.amount;
      intent.from = { ...intent.from, ...echoed(groupParam(params, "from")) };
      intent.to = { ...intent.to, ...echoed(groupParam(params, "to")) };
      intent.metadata = metadata;
      return intent;
    },
  };
};

const confirmPayoutIntent: Endpoint = (context) => {
  const intent = intentOf(context);
  return {
    lock: intent.id,
    run: () => {
      refuseUnlessOpen(intent);
      refuseIfForced(context);
      return carryOut(context, intent);
    },
  };
};

/** POST /v2/money_management/payout_intents/{id}/cancel: from here on it refuses everything. */
const cancelPayoutIntent: Endpoint = (context) => {
  const intent = intentOf(context);
  return {
    lock: intent.id,
    run: () => {
      refuseUnlessOpen(intent);
      intent.status = "canceled";
      delete intent.next_action;
      emit(context, "v2.money_management.payout_intent.canceled", intent);
      return intent;
    },
  };
};

function carryOut(context: Context, intent: PayoutIntent): PayoutIntent {
  const from = intent.from as Record<string, unknown>;
  const payment = payOut(context, { ...intent, from, to: intent.to as Record<string, unknown> }, intent);
  intent.status = "processing";
  intent.latest_payout = { type: "outbound_payment", outbound_payment: payment.id };
  delete intent.next_action;
  emit(context, "v2.money_management.payout_intent.processing", intent);
  return intent;
}

function refuseUnlessOpen(intent: PayoutIntent): void {
  if (intent.status !== "requires_action") {
    throw invalidRequest(`This PayoutIntent is ${intent.status}.`, { code: "payout_intent_unexpected_state" });
  }
}

/** POST /v2/money_management/inbound_transfers: pulls money from a bank account. */
const createInboundTransfer: Endpoint = (context) => {
  const order = orderOf(context);
  return {
    run: () => {
      refuseIfForced(context);
      const now = isoNow(context);
      const transfer = {
        id: newId("ibt"),
        object: "v2.money_management.inbound_transfer",
        amount: order.amount,
        created: now,
        description: "",
        from: { ...order.from, debited: order.amount },
        livemode: false as const,
        metadata: order.metadata,
        to: { ...order.to, credited: order.amount },
        transfer_history: [{ id: newId("ibth"), type: "bank_debit_processing", created: now, effective_at: now }],
      };
      keep(context.account, transfer);
      move(context, transfer, "inbound_transfer");
      emit(context, "v2.money_management.inbound_transfer.created", transfer);
      return transfer;
    },
  };
};

function move(context: Context, object: StoredV2, kind: MovementKind): void {
  const { value: amount, currency } = object.amount;
  recordMovement(context, { kind, id: object.id, amount, currency, customer: null, metadata: object.metadata });
}

/** A fault's decline: here it means that the account has not enough money. A v2 failure is not saved under its key. */
function refuseIfForced(context: Context): void {
  if (context.forcedDecline === undefined) return;
  throw new StripeRefusal(400, {
    type: "invalid_request_error",
    code: "insufficient_funds",
    message: "The financial account has not enough money.",
  });
}

function paymentOf(context: Context): OutboundPayment {
  const id = context.ids[0] ?? "";
  const payment = collectionOf<OutboundPayment>(context.account, "v2.money_management.outbound_payment").get(id);
  if (payment === undefined) throw noSuchObject("outbound_payment", id);
  return payment;
}

function intentOf(context: Context): PayoutIntent {
  const id = context.ids[0] ?? "";
  const intent = collectionOf<PayoutIntent>(context.account, "v2.money_management.payout_intent").get(id);
  if (intent === undefined) throw noSuchObject("payout_intent", id);
  return intent;
}

function isoNow(context: Context): string {
  return new Date(context.clock.now()).toISOString();
}

export const v2MoneyRoutes: Routes = [
  ["POST", "/v2/money_management/outbound_payments", createOutboundPayment],
  ["POST", "/v2/money_management/outbound_payments/:id/cancel", cancelOutboundPayment],
  ["POST", "/v2/money_management/payout_intents", createPayoutIntent],
  ["POST", "/v2/money_management/payout_intents/:id", updatePayoutIntent],
  ["POST", "/v2/money_management/payout_intents/:id/confirm", confirmPayoutIntent],
  ["POST", "/v2/money_management/payout_intents/:id/cancel", cancelPayoutIntent],
  ["POST", "/v2/money_management/inbound_transfers", createInboundTransfer],
];

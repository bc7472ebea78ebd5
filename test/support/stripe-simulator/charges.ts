import { type CardOutcome, authenticationDecline, cardOutcome, cardRefusal, forcedDecline } from "./cards.ts";
import { type StripeRefusal, invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { makeDispute } from "./disputes.ts";
import { makeFee } from "./fees.ts";
import { equalsParam, listPage } from "./lists.ts";
import { recordMovement } from "./movements.ts";
import type { Charge, Metadata } from "./objects.ts";
import { amountParam, currencyParam, flagParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, newId } from "./state.ts";

/** How long a card stays authorized. */
const authorizedMs = 7 * 24 * 60 * 60 * 1000;

/** What is needed to make a charge, whoever asks for it. */
export interface ChargeOrder {
  readonly amount: number;
  readonly currency: string;
  readonly customer: string | null;
  readonly description: string | null;
  readonly metadata: Metadata;
  readonly paymentIntent: string | null;
  readonly paymentMethod: string | null;
  readonly transferGroup: string | null;
  readonly isCaptured: boolean;
  /** What a platform keeps of it. */
  readonly applicationFee?: number | null | undefined;
}

/** POST /v1/charges. The outcome is chosen by the source, else by the customer's id. */
export const createCharge: Endpoint = (context) => {
  const { params } = context;
  const source = textParam(params, "source") ?? textParam(params, "payment_method") ?? null;
  const customer = textParam(params, "customer") ?? null;
  const order: ChargeOrder = {
    amount: requiredParam(amountParam(params, "amount"), "amount"),
    currency: requiredParam(currencyParam(params, "currency"), "currency"),
    customer,
    description: textParam(params, "description") ?? null,
    metadata: mergedMetadata(params),
    paymentIntent: null,
    paymentMethod: source ?? defaultPaymentMethod(context, customer),
    transferGroup: textParam(params, "transfer_group") ?? null,
    isCaptured: flagParam(params, "capture") ?? true,
    applicationFee: amountParam(params, "application_fee_amount"),
  };
  if (source === null && customer === null) {
    throw invalidRequest("Must provide source or customer.", { code: "parameter_missing" });
  }
  return {
    run: () => {
      const decided = decideOutcome(context, order);
      const outcome = decided.kind === "authentication" ? authenticationDecline : decided;
      const charge = makeCharge(context, order, outcome);
      if (outcome.kind === "declined") throw cardRefusal(outcome, charge);
      return charge;
    },
  };
};

/** What the network says to this order: a fault's decline, else the payment method's, else the customer's outcome. */
export function decideOutcome(
  context: Context,
  order: { customer: string | null; paymentMethod: string | null },
): CardOutcome {
  if (context.forcedDecline !== undefined) return forcedDecline(context.forcedDecline);
  return cardOutcome([order.paymentMethod, order.customer]);
}

/** Creates the charge object of an outcome; a captured, approved one moves money. */
export function makeCharge(context: Context, order: ChargeOrder, outcome: CardOutcome): Charge {
  const isApproved = outcome.kind === "approved";
  const isDeclined = outcome.kind === "declined";
  const charge: Charge = {
    id: newId("ch"),
    object: "charge",
    amount: order.amount,
    amount_captured: 0,
    amount_refunded: 0,
    application_fee: null,
    application_fee_amount: order.applicationFee ?? null,
    balance_transaction: null,
    captured: false,
    created: context.clock.seconds(),
    currency: order.currency,
    customer: order.customer,
    description: order.description,
    dispute: null,
    disputed: false,
    failure_code: isDeclined ? outcome.code : null,
    failure_message: isDeclined ? outcome.message : null,
    livemode: false,
    metadata: { ...order.metadata },
    outcome: isDeclined
      ? { network_status: "declined_by_network", type: "issuer_declined", seller_message: outcome.message }
      : { network_status: "approved_by_network", type: "authorized", seller_message: "Payment complete." },
    paid: isApproved,
    payment_intent: order.paymentIntent,
    payment_method: order.paymentMethod,
    refunded: false,
    status: isApproved ? "succeeded" : isDeclined ? "failed" : "pending",
    transfer_group: order.transferGroup,
  };
  context.account.charges.set(charge.id, charge);
  if (isApproved && order.isCaptured) moveMoney(context, charge, charge.amount);
  emit(context, `charge.${charge.status}`, charge);
  if (isApproved && !order.isCaptured) {
    context.agenda.add(context.clock.now() + authorizedMs, context.account.id, (later) => expire(later, charge));
  }
  return charge;
}

/** What nobody captured is given back by Stripe itself. */
function expire(context: Context, charge: Charge): void {
  if (charge.captured || charge.refunded) return;
  charge.refunded = true;
  charge.amount_refunded = charge.amount;
  emit(context, "charge.expired", charge);
  const intent = context.account.paymentIntents.get(charge.payment_intent ?? "");
  if (intent?.status !== "requires_capture") return;
  intent.status = "canceled";
  intent.cancellation_reason = "automatic";
  intent.canceled_at = context.clock.seconds();
  intent.amount_capturable = 0;
  emit(context, "payment_intent.canceled", intent);
}

/** Takes the money of an approved charge and writes the movement down before anybody is told. */
export function moveMoney(
  context: Context,
  charge: Charge,
  amount: number,
  kind: "charge" | "capture" = "charge",
): void {
  const cause = context.account.causes.get(charge.payment_intent ?? "");
  charge.captured = true;
  charge.paid = true;
  charge.status = "succeeded";
  charge.amount_captured += amount;
  charge.balance_transaction = newId("txn");
  recordMovement(context, {
    kind,
    id: charge.id,
    payment_intent: charge.payment_intent,
    ...(cause === undefined ? {} : { cause: cause.id }),
    amount,
    currency: charge.currency,
    customer: charge.customer,
    metadata: { ...cause?.metadata, ...charge.metadata },
  });
  if (charge.application_fee_amount !== null && charge.application_fee === null) makeFee(context, charge);
  if (/createDispute/i.test(charge.payment_method ?? "")) makeDispute(context, charge);
}

/** POST /v1/charges/{id}/capture: an amount below the authorized one gives the rest back. */
export const captureCharge: Endpoint = (context) => {
  const charge = chargeOf(context);
  const amount = amountParam(context.params, "amount");
  return {
    lock: charge.payment_intent ?? charge.id,
    run: () => {
      if (charge.captured) throw alreadyCaptured(charge);
      if (charge.status !== "succeeded" || charge.refunded || charge.payment_intent !== null) {
        throw invalidRequest(`Charge ${charge.id} cannot be captured.`);
      }
      if (amount !== undefined && amount > charge.amount) {
        throw invalidRequest("You cannot capture more than the authorized amount.", { param: "amount" });
      }
      moveMoney(context, charge, amount ?? charge.amount, "capture");
      emit(context, "charge.captured", charge);
      return charge;
    },
  };
};

export const updateCharge: Endpoint = (context) => {
  const charge = chargeOf(context);
  const metadata = mergedMetadata(context.params, charge.metadata);
  return {
    lock: charge.id,
    run: () => {
      charge.metadata = metadata;
      charge.description = textParam(context.params, "description") ?? charge.description;
      emit(context, "charge.updated", charge);
      return charge;
    },
  };
};

export const retrieveCharge: Endpoint = (context) => ({ run: () => chargeOf(context) });

/** GET /v1/charges: `customer`, `payment_intent`, `transfer_group`, `created`. */
export const listCharges: Endpoint = (context) => ({
  run: () => {
    const filters = (["customer", "payment_intent", "transfer_group"] as const).map((name) =>
      equalsParam<Charge>(context.params, name),
    );
    return listPage(context, context.account.charges.values(), {
      url: "/v1/charges",
      kind: "charge",
      lagMs: context.lag.lists,
      keep: (charge) => filters.every((matches) => matches(charge)),
    });
  },
});

function chargeOf(context: Context): Charge {
  const id = context.ids[0] ?? "";
  const charge = context.account.charges.get(id);
  if (charge === undefined) throw noSuchObject("charge", id);
  return charge;
}

/** Customers need not be created first: an unknown one simply has no default. */
function defaultPaymentMethod(context: Context, id: string | null): string | null {
  const customer = id === null ? undefined : context.account.customers.get(id);
  return customer?.default_source ?? customer?.invoice_settings.default_payment_method ?? null;
}

function alreadyCaptured(charge: Charge): StripeRefusal {
  return invalidRequest(`Charge ${charge.id} has already been captured.`, { code: "charge_already_captured" });
}

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { recordMovement } from "./movements.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, currencyParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** Minor units that one metric ton costs. */
const tonPrice = 40_000;

interface ClimateOrder extends Stored {
  object: "climate.order";
  amount_subtotal: number;
  amount_total: number;
  amount_fees: number;
  canceled_at: number | null;
  currency: string;
  livemode: false;
  metadata: Metadata;
  metric_tons: string;
  product: string;
  status: "open" | "canceled";
}

/** POST /v1/climate/orders: an `amount`, or `metric_tons` whose price is only known to Stripe. */
const createOrder: Endpoint = (context) => {
  const { params } = context;
  const product = requiredParam(textParam(params, "product"), "product");
  const amount = amountParam(params, "amount");
  const tons = textParam(params, "metric_tons");
  if ((amount === undefined) === (tons === undefined)) throw invalidRequest("Give amount or metric_tons.");
  const total = amount ?? Math.ceil(Number(tons) * tonPrice);
  if (!(total > 0)) throw invalidRequest("Invalid metric_tons.", { param: "metric_tons" });
  const currency = currencyParam(params, "currency") ?? "usd";
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const order: ClimateOrder = {
        id: newId("climorder"),
        object: "climate.order",
        amount_fees: 0,
        amount_subtotal: total,
        amount_total: total,
        canceled_at: null,
        created: context.clock.seconds(),
        currency,
        livemode: false,
        metadata,
        metric_tons: tons ?? (total / tonPrice).toFixed(4),
        product,
        status: "open",
      };
      keep(context.account, order);
      recordMovement(context, { kind: "charge", id: order.id, amount: total, currency, customer: null, metadata });
      emit(context, "climate.order.created", order);
      return order;
    },
  };
};

const cancelOrder: Endpoint = (context) => {
  const id = context.ids[0] ?? "";
  const order = collectionOf<ClimateOrder>(context.account, "climate.order").get(id);
  if (order === undefined) throw noSuchObject("climate.order", id);
  return {
    lock: id,
    run: () => {
      if (order.status === "canceled") throw invalidRequest("This order is already canceled.");
      order.status = "canceled";
      order.canceled_at = context.clock.seconds();
      const { amount_total: amount, currency, metadata } = order;
      recordMovement(context, { kind: "refund", id, amount, currency, customer: null, metadata });
      emit(context, "climate.order.canceled", order);
      return order;
    },
  };
};

export const climateRoutes: Routes = [
  ["POST", "/v1/climate/orders", createOrder],
  ["POST", "/v1/climate/orders/:id/cancel", cancelOrder],
];

import { invalidRequest } from "./errors.ts";
import type { Params } from "./form.ts";
import type { PlainObject } from "./generic.ts";
import { currencyParam, groupParam, groupsParam, integerParam, textParam } from "./params.ts";
import { type Context, collectionOf } from "./state.ts";

/** What automatic tax adds here, in percent: not what any client could compute. */
const taxPercent = 10;

/** What one piece of something costs. */
export interface Priced {
  /** In minor units; may have a fraction. */
  readonly unitAmount: number;
  readonly currency: string;
  readonly price: string | null;
  readonly product: string | null;
  readonly quantity: number;
  /** Null for what is paid once. */
  readonly recurring: { readonly interval: string; readonly interval_count: number } | null;
}

/** The price of an item that names a `price` or `plan`, or brings a `price_data`. Undefined when it does neither. */
export function pricedItem(context: Context, params: Params): Priced | undefined {
  const quantity = integerParam(params, "quantity") ?? 1;
  const pricing = groupParam(params, "pricing");
  const id = textParam(params, "price") ?? textParam(params, "plan") ?? textParam(pricing, "price");
  const data = groupParam(params, "price_data");
  if (id !== undefined) return ofPrice(context, id, quantity);
  if (Object.keys(data).length === 0) return undefined;
  const recurring = groupParam(data, "recurring");
  const interval = textParam(recurring, "interval");
  return {
    unitAmount: Number(textParam(data, "unit_amount_decimal") ?? textParam(data, "unit_amount") ?? "0"),
    currency: currencyParam(data, "currency") ?? "usd",
    price: null,
    product: textParam(data, "product") ?? null,
    quantity,
    recurring:
      interval === undefined ? null : { interval, interval_count: integerParam(recurring, "interval_count") ?? 1 },
  };
}

function ofPrice(context: Context, id: string, quantity: number): Priced {
  const { account } = context;
  const price: PlainObject | undefined =
    collectionOf<PlainObject>(account, "price").get(id) ?? collectionOf<PlainObject>(account, "plan").get(id);
  if (price === undefined) {
    throw invalidRequest(`No such price: '${id}'`, { code: "resource_missing", param: "price" });
  }
  const { recurring, product, interval } = price;
  const plan = typeof interval === "string" ? { interval } : undefined;
  const repeats = (recurring ?? plan ?? null) as { interval: string; interval_count?: number } | null;
  return {
    unitAmount: Number(price["unit_amount_decimal"] ?? price["unit_amount"] ?? price["amount"] ?? 0),
    currency: typeof price["currency"] === "string" ? price["currency"].toLowerCase() : "usd",
    price: id,
    product: typeof product === "string" ? product : null,
    quantity,
    recurring: repeats === null ? null : { interval: repeats.interval, interval_count: repeats.interval_count ?? 1 },
  };
}

/** What all the pieces cost together, in whole minor units. */
export function costOf({ unitAmount, quantity }: Priced): number {
  return Math.round(unitAmount * quantity);
}

export interface Totals {
  readonly subtotal: number;
  readonly discount: number;
  readonly tax: number;
  readonly total: number;
}

/** Subtotal, `discounts[][coupon]` and, when it is enabled, tax. */
export function totalsOf(
  context: Context,
  subtotal: number,
  options: { coupons: readonly string[]; isTaxed: boolean },
): Totals {
  let left = subtotal;
  for (const id of options.coupons) {
    const coupon = collectionOf<PlainObject>(context.account, "coupon").get(id);
    if (coupon === undefined) throw invalidRequest(`No such coupon: '${id}'`, { code: "resource_missing" });
    const percent = Number(coupon["percent_off"] ?? 0);
    left -= Number(coupon["amount_off"] ?? Math.round((left * percent) / 100));
  }
  const taxed = subtotal < 0 ? left : Math.max(0, left);
  const tax = options.isTaxed ? Math.round((taxed * taxPercent) / 100) : 0;
  return { subtotal, discount: subtotal - taxed, tax, total: taxed + tax };
}

/** What `totalsOf` wants to know of a request. */
export function totalOptions(params: Params): { coupons: readonly string[]; isTaxed: boolean } {
  return {
    coupons: groupsParam(params, "discounts").flatMap((item) => textParam(item, "coupon") ?? []),
    isTaxed: textParam(groupParam(params, "automatic_tax"), "enabled") === "true",
  };
}

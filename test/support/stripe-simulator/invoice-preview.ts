import { invalidRequest } from "./errors.ts";
import { lineOf, pendingItems } from "./invoice-items.ts";
import { addUp, blankInvoice, newLine, pricingOf } from "./invoice-object.ts";
import { currencyParam, groupParam, groupsParam, integerParam, requiredParam, textParam } from "./params.ts";
import { costOf, pricedItem, totalOptions } from "./pricing.ts";
import type { Endpoint, Routes } from "./state.ts";
import { subscriptionWithId } from "./subscription-object.ts";

/**
 * POST /v1/invoices/create_preview: what the next invoice would be, from `invoice_items[]`, the items of
 * `subscription_details` or of a present `subscription`, and what is pending. Nothing is kept.
 */
const createPreview: Endpoint = (context) => {
  const { params } = context;
  const details = groupParam(params, "subscription_details");
  const id = textParam(params, "subscription");
  const present = id === undefined ? undefined : subscriptionWithId(context, id);
  const customer = requiredParam(textParam(params, "customer") ?? present?.customer, "customer");
  const items = groupsParam(details, "items").flatMap((item) => pricedItem(context, item) ?? []);
  const extra = groupsParam(params, "invoice_items");
  return {
    run: () => {
      const currency = currencyParam(params, "currency") ?? items[0]?.currency ?? present?.currency ?? "usd";
      const { coupons, isTaxed } = totalOptions(params);
      const invoice = blankInvoice(context, {
        id: "upcoming_in_preview",
        currency,
        customer,
        automatic_tax: { enabled: isTaxed, status: isTaxed ? "complete" : null },
        billing_reason: "upcoming",
        discounts: [...coupons],
      });
      const { data } = invoice.lines;
      for (const item of items) {
        const { quantity } = item;
        data.push(newLine(context, invoice, { amount: costOf(item), quantity, pricing: pricingOf(item) }));
      }
      if (items.length === 0) {
        for (const { price, quantity } of present?.items.data ?? []) {
          data.push(newLine(context, invoice, { amount: Math.round(price.unit_amount * quantity), quantity }));
        }
      }
      for (const item of extra) {
        const priced = pricedItem(context, item);
        const amount = priced === undefined ? (integerParam(item, "amount") ?? 0) : costOf(priced);
        data.push(newLine(context, invoice, { amount }));
      }
      for (const item of pendingItems(context, customer, currency)) data.push(lineOf(context, invoice, item));
      if (data.length === 0)
        throw invalidRequest("No upcoming invoices for customer", { code: "invoice_upcoming_none" });
      addUp(context, invoice);
      return invoice;
    },
  };
};

export const previewRoutes: Routes = [["POST", "/v1/invoices/create_preview", createPreview]];

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { addUp, blankInvoice, newLine, pricingOf } from "./invoice-object.ts";
import type { Metadata } from "./objects.ts";
import { groupsParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { type Priced, costOf, pricedItem, totalOptions, totalsOf } from "./pricing.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";
import { startSubscription } from "./subscription-create.ts";

interface Quote extends Stored {
  object: "quote";
  amount_subtotal: number;
  amount_total: number;
  currency: string;
  customer: string | null;
  expires_at: number;
  invoice: string | null;
  line_items: { object: "list"; has_more: false; url: string; data: object[] };
  livemode: false;
  metadata: Metadata;
  number: string | null;
  status: "draft" | "open" | "accepted" | "canceled";
  subscription: string | null;
}

/** What a quote promises, as it was asked for. */
const offers = new WeakMap<Quote, { items: Params[]; priced: Priced[] }>();

const createQuote: Endpoint = (context) => {
  const { params } = context;
  const items = groupsParam(params, "line_items");
  const priced = items.map((item) => requiredParam(pricedItem(context, item), "line_items[price]"));
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const id = newId("qt");
      const quote: Quote = {
        id,
        object: "quote",
        amount_subtotal: 0,
        amount_total: 0,
        created: context.clock.seconds(),
        currency: priced[0]?.currency ?? "usd",
        customer: textParam(params, "customer") ?? null,
        expires_at: context.clock.seconds() + 30 * 86_400,
        invoice: null,
        line_items: { object: "list", has_more: false, url: `/v1/quotes/${id}/line_items`, data: [] },
        livemode: false,
        metadata,
        number: null,
        status: "draft",
        subscription: null,
      };
      keep(context.account, quote);
      offer(context, quote, items, priced);
      emit(context, "quote.created", quote);
      return quote;
    },
  };
};

function offer(context: Context, quote: Quote, items: Params[], priced: Priced[]): void {
  offers.set(quote, { items, priced });
  const subtotal = priced.reduce((sum, item) => sum + costOf(item), 0);
  const totals = totalsOf(context, subtotal, totalOptions(context.params));
  quote.amount_subtotal = totals.subtotal;
  quote.amount_total = totals.total;
  quote.line_items.data = priced.map((item) => ({
    id: newId("li"),
    object: "item",
    amount_subtotal: costOf(item),
    amount_total: costOf(item),
    currency: item.currency,
    quantity: item.quantity,
  }));
}

const updateQuote: Endpoint = (context) => {
  const quote = quoteOf(context);
  const items = groupsParam(context.params, "line_items");
  const priced = items.map((item) => requiredParam(pricedItem(context, item), "line_items[price]"));
  const metadata = mergedMetadata(context.params, quote.metadata);
  return change(quote, ["draft"], () => {
    quote.metadata = metadata;
    quote.customer = textParam(context.params, "customer") ?? quote.customer;
    if (items.length > 0) offer(context, quote, items, priced);
  });
};

const finalizeQuote: Endpoint = (context) => {
  const quote = quoteOf(context);
  return change(quote, ["draft"], () => {
    quote.status = "open";
    quote.number = `QT-${quote.id.slice(-6).toUpperCase()}`;
    emit(context, "quote.finalized", quote);
  });
};

const cancelQuote: Endpoint = (context) => {
  const quote = quoteOf(context);
  return change(quote, ["draft", "open"], () => {
    quote.status = "canceled";
    emit(context, "quote.canceled", quote);
  });
};

/** POST /v1/quotes/{id}/accept: begins and charges a subscription, or drafts the invoice of what is paid once. */
const acceptQuote: Endpoint = (context) => {
  const quote = quoteOf(context);
  const { items, priced } = offers.get(quote) ?? { items: [], priced: [] };
  const isRecurring = priced.some(({ recurring }) => recurring !== null);
  return change(quote, ["open"], () => {
    const customer = requiredParam(quote.customer ?? undefined, "customer");
    if (isRecurring) {
      const recurring = items.filter((_, index) => priced[index]?.recurring !== null);
      const once = items.filter((_, index) => priced[index]?.recurring === null);
      const subscription = startSubscription(context, { items: recurring, add_invoice_items: once }, customer).run();
      quote.subscription = subscription.id;
      quote.invoice = subscription.latest_invoice;
    } else quote.invoice = draftInvoice(context, quote, customer, priced);
    quote.status = "accepted";
    emit(context, "quote.accepted", quote);
  });
};

function draftInvoice(context: Context, quote: Quote, customer: string, priced: Priced[]): string {
  const invoice = blankInvoice(context, { currency: quote.currency, customer, metadata: quote.metadata });
  for (const item of priced) {
    const { quantity } = item;
    invoice.lines.data.push(newLine(context, invoice, { amount: costOf(item), quantity, pricing: pricingOf(item) }));
  }
  addUp(context, invoice);
  keep(context.account, invoice);
  emit(context, "invoice.created", invoice);
  return invoice.id;
}

function change(quote: Quote, from: readonly Quote["status"][], run: () => void) {
  return {
    lock: quote.id,
    run: () => {
      if (!from.includes(quote.status)) throw invalidRequest(`This quote is ${quote.status}.`);
      run();
      return quote;
    },
  };
}

function quoteOf(context: Context): Quote {
  const id = context.ids[0] ?? "";
  const quote = collectionOf<Quote>(context.account, "quote").get(id);
  if (quote === undefined) throw noSuchObject("quote", id);
  return quote;
}

export const quoteRoutes: Routes = [
  ["POST", "/v1/quotes", createQuote],
  ["POST", "/v1/quotes/:id", updateQuote],
  ["POST", "/v1/quotes/:id/finalize", finalizeQuote],
  ["POST", "/v1/quotes/:id/cancel", cancelQuote],
  ["POST", "/v1/quotes/:id/accept", acceptQuote],
];

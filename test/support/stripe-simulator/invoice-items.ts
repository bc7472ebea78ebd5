import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { type Invoice, type Line, addUp, invoiceOf, invoiceWithId, newLine, pricingOf } from "./invoice-object.ts";
import type { Metadata } from "./objects.ts";
import { currencyParam, groupsParam, integerParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { costOf, pricedItem } from "./pricing.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** Something to be paid with the customer's next invoice, or on the invoice that it names. */
export interface InvoiceItem extends Stored {
  object: "invoiceitem";
  amount: number;
  currency: string;
  customer: string;
  date: number;
  description: string | null;
  invoice: string | null;
  livemode: false;
  metadata: Metadata;
  parent: { type: "subscription_details"; subscription_details: { subscription: string } } | null;
  period: { start: number; end: number };
  pricing: Line["pricing"];
  proration: boolean;
  quantity: number;
}

interface Cost {
  readonly amount: number;
  readonly currency: string | undefined;
  readonly quantity: number;
  readonly pricing: Line["pricing"];
}

/** `amount`, or `unit_amount_decimal` or a price times `quantity`. */
function costParam(context: Context, params: Params): Cost | undefined {
  const priced = pricedItem(context, params);
  const quantity = integerParam(params, "quantity") ?? 1;
  const currency = currencyParam(params, "currency") ?? priced?.currency;
  if (priced !== undefined) return { amount: costOf(priced), currency, quantity, pricing: pricingOf(priced) };
  const unit = textParam(params, "unit_amount_decimal") ?? textParam(params, "unit_amount");
  const amount = unit === undefined ? integerParam(params, "amount") : Math.round(Number(unit) * quantity);
  return amount === undefined ? undefined : { amount, currency, quantity, pricing: null };
}

/** POST /v1/invoiceitems. */
const createItem: Endpoint = (context) => {
  const { params } = context;
  const customer = requiredParam(textParam(params, "customer"), "customer");
  const cost = requiredParam(costParam(context, params), "amount");
  const id = textParam(params, "invoice");
  const invoice = id === undefined ? undefined : invoiceWithId(context, id);
  const metadata = mergedMetadata(params);
  const description = textParam(params, "description") ?? null;
  return {
    lock: invoice?.id ?? customer,
    run: () => {
      const item = addItem(context, {
        ...cost,
        currency: cost.currency ?? "usd",
        customer,
        description,
        metadata,
        subscription: textParam(params, "subscription"),
        isProration: false,
      });
      if (invoice !== undefined) {
        refuseUnlessDraft(invoice);
        attach(context, invoice, item);
        addUp(context, invoice);
      }
      emit(context, "invoiceitem.created", item);
      return item;
    },
  };
};

/** A new item that waits for the customer's next invoice. */
export function addItem(
  context: Context,
  order: Pick<InvoiceItem, "amount" | "currency" | "customer" | "description" | "metadata" | "quantity" | "pricing"> & {
    readonly subscription?: string | undefined;
    readonly isProration: boolean;
  },
): InvoiceItem {
  const now = context.clock.seconds();
  const { subscription, isProration, ...fields } = order;
  return keep<InvoiceItem>(context.account, {
    ...fields,
    id: newId("ii"),
    object: "invoiceitem",
    created: now,
    date: now,
    invoice: null,
    livemode: false,
    parent:
      subscription === undefined ? null : { type: "subscription_details", subscription_details: { subscription } },
    period: { start: now, end: now },
    proration: isProration,
  });
}

/** Moves the customer's waiting items onto the draft. */
export function takePendingItems(context: Context, invoice: Invoice): void {
  for (const item of pendingItems(context, invoice.customer, invoice.currency)) attach(context, invoice, item);
}

export function pendingItems(context: Context, customer: string, currency: string): InvoiceItem[] {
  return [...collectionOf<InvoiceItem>(context.account, "invoiceitem").values()].filter(
    (item) => item.customer === customer && item.currency === currency && item.invoice === null,
  );
}

function attach(context: Context, invoice: Invoice, item: InvoiceItem): void {
  if (invoice.currency !== item.currency && invoice.lines.data.length === 0) invoice.currency = item.currency;
  if (invoice.currency !== item.currency) throw invalidRequest("The item has another currency than the invoice.");
  item.invoice = invoice.id;
  invoice.lines.data.push(lineOf(context, invoice, item));
}

/** The line that an item makes on an invoice. */
export function lineOf(context: Context, invoice: Invoice, item: InvoiceItem): Line {
  const { id, amount, description, metadata, pricing, quantity } = item;
  const parent = {
    type: "invoice_item_details",
    invoice_item_details: { invoice_item: id, proration: item.proration },
  };
  return newLine(context, invoice, { amount, description, metadata, pricing, quantity, parent, invoice_item: id });
}

function refuseUnlessDraft(invoice: Invoice): void {
  if (invoice.status === "draft") return;
  throw invalidRequest(`This invoice is ${invoice.status}: it can no longer be changed.`, {
    code: "invoice_not_editable",
  });
}

/** POST /v1/invoiceitems/{id}, DELETE /v1/invoiceitems/{id}: until its invoice is finalized. */
const updateItem: Endpoint = (context) => {
  const item = itemOf(context);
  const cost = costParam(context, context.params);
  const metadata = mergedMetadata(context.params, item.metadata);
  const description = textParam(context.params, "description");
  return {
    lock: item.id,
    run: () => {
      const invoice = openInvoiceOf(context, item);
      item.amount = cost?.amount ?? item.amount;
      item.quantity = cost?.quantity ?? item.quantity;
      item.metadata = metadata;
      item.description = description ?? item.description;
      const line = invoice?.lines.data.find(({ invoice_item: id }) => id === item.id);
      if (line !== undefined) line.amount = item.amount;
      if (invoice !== undefined) addUp(context, invoice);
      return item;
    },
  };
};

const deleteItem: Endpoint = (context) => {
  const item = itemOf(context);
  return {
    lock: item.id,
    run: () => {
      const invoice = openInvoiceOf(context, item);
      if (invoice !== undefined) {
        invoice.lines.data = invoice.lines.data.filter(({ invoice_item: id }) => id !== item.id);
        addUp(context, invoice);
      }
      collectionOf<InvoiceItem>(context.account, "invoiceitem").delete(item.id);
      emit(context, "invoiceitem.deleted", item);
      return { id: item.id, object: "invoiceitem", deleted: true };
    },
  };
};

function openInvoiceOf(context: Context, item: InvoiceItem): Invoice | undefined {
  if (item.invoice === null) return undefined;
  const invoice = invoiceWithId(context, item.invoice);
  refuseUnlessDraft(invoice);
  return invoice;
}

function itemOf(context: Context): InvoiceItem {
  const id = context.ids[0] ?? "";
  const item = collectionOf<InvoiceItem>(context.account, "invoiceitem").get(id);
  if (item === undefined) throw noSuchObject("invoiceitem", id);
  return item;
}

/** Changes the lines of a draft as `lines[]` say. */
function changeLines(change: (context: Context, invoice: Invoice, line: Params) => void): Endpoint {
  return (context) => {
    const invoice = invoiceOf(context);
    const lines = groupsParam(context.params, "lines");
    return {
      lock: invoice.id,
      run: () => {
        refuseUnlessDraft(invoice);
        for (const line of lines) change(context, invoice, line);
        addUp(context, invoice);
        emit(context, "invoice.updated", invoice);
        return invoice;
      },
    };
  };
}

function addLine(context: Context, invoice: Invoice, params: Params): void {
  const pending = textParam(params, "invoice_item");
  const item =
    pending === undefined ? undefined : collectionOf<InvoiceItem>(context.account, "invoiceitem").get(pending);
  if (item !== undefined) {
    attach(context, invoice, item);
    return;
  }
  const { amount, pricing, quantity } = requiredParam(costParam(context, params), "lines[amount]");
  const description = textParam(params, "description") ?? null;
  invoice.lines.data.push(
    newLine(context, invoice, { amount, pricing, quantity, description, metadata: mergedMetadata(params) }),
  );
}

function updateLine(context: Context, invoice: Invoice, params: Params): void {
  const id = textParam(params, "id") ?? context.ids[1];
  const line = invoice.lines.data.find((candidate) => candidate.id === id);
  if (line === undefined) throw noSuchObject("line_item", id ?? "");
  const cost = costParam(context, params);
  line.amount = cost?.amount ?? line.amount;
  line.quantity = cost?.quantity ?? line.quantity;
  line.description = textParam(params, "description") ?? line.description;
  line.metadata = mergedMetadata(params, line.metadata);
}

function removeLine(_context: Context, invoice: Invoice, params: Params): void {
  const id = requiredParam(textParam(params, "id"), "lines[id]");
  invoice.lines.data = invoice.lines.data.filter((line) => line.id !== id);
}

/** POST /v1/invoices/{id}/lines/{id}. */
const updateOneLine: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  return {
    lock: invoice.id,
    run: () => {
      refuseUnlessDraft(invoice);
      updateLine(context, invoice, context.params);
      addUp(context, invoice);
      return invoice.lines.data.find(({ id }) => id === context.ids[1]) ?? invoice;
    },
  };
};

export const invoiceItemRoutes: Routes = [
  ["POST", "/v1/invoiceitems", createItem],
  ["POST", "/v1/invoiceitems/:id", updateItem],
  ["DELETE", "/v1/invoiceitems/:id", deleteItem],
  ["POST", "/v1/invoices/:id/add_lines", changeLines(addLine)],
  ["POST", "/v1/invoices/:id/update_lines", changeLines(updateLine)],
  ["POST", "/v1/invoices/:id/remove_lines", changeLines(removeLine)],
  ["POST", "/v1/invoices/:id/lines/:id", updateOneLine],
];

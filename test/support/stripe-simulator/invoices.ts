import { invalidRequest } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import { type Invoice, addUp, blankInvoice, invoiceOf } from "./invoice-object.ts";
import { takePendingItems } from "./invoice-items.ts";
import { advanceLater, chargeLater, finalize, intentOfInvoice, markPaid, payInvoice } from "./invoice-pay.ts";
import { choiceParam, currencyParam, flagParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { totalOptions } from "./pricing.ts";
import { type Context, type Endpoint, type Routes, collectionOf, keep } from "./state.ts";

/**
 * POST /v1/invoices: a draft, with the customer's pending items unless `pending_invoice_items_behavior=exclude`.
 * With `auto_advance` Stripe finalizes and charges it by itself an hour later.
 */
const createInvoice: Endpoint = (context) => {
  const { params } = context;
  const customer = requiredParam(textParam(params, "customer"), "customer");
  const takesItems = textParam(params, "pending_invoice_items_behavior") === "include";
  const changes = changesOf(params);
  const metadata = mergedMetadata(params);
  const subscription = textParam(params, "subscription");
  return {
    run: () => {
      const invoice = blankInvoice(context, {
        ...changes,
        currency: currencyParam(params, "currency") ?? "usd",
        customer,
        metadata,
        ...(subscription === undefined
          ? {}
          : { parent: { type: "subscription_details", subscription_details: { subscription, metadata: {} } } }),
      });
      keep(context.account, invoice);
      if (takesItems) takePendingItems(context, invoice);
      addUp(context, invoice);
      emit(context, "invoice.created", invoice);
      if (invoice.auto_advance) advanceLater(context, invoice);
      return invoice;
    },
  };
};

/** The fields that a request may set while the invoice is a draft. */
function changesOf(params: Params): Partial<Invoice> {
  const method = choiceParam(params, "collection_method", ["charge_automatically", "send_invoice"]);
  const advance = flagParam(params, "auto_advance");
  const paymentMethod = textParam(params, "default_payment_method");
  const description = textParam(params, "description");
  const { coupons, isTaxed } = totalOptions(params);
  return {
    ...(method === undefined ? {} : { collection_method: method }),
    ...(advance === undefined ? {} : { auto_advance: advance }),
    ...(paymentMethod === undefined ? {} : { default_payment_method: paymentMethod }),
    ...(description === undefined ? {} : { description }),
    ...(params["discounts"] === undefined ? {} : { discounts: [...coupons] }),
    ...(params["automatic_tax"] === undefined
      ? {}
      : { automatic_tax: { enabled: isTaxed, status: isTaxed ? ("complete" as const) : null } }),
  };
}

const updateInvoice: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  const { auto_advance: advance, ...changes } = changesOf(context.params);
  const metadata = mergedMetadata(context.params, invoice.metadata);
  return {
    lock: invoice.id,
    run: () => {
      if (Object.keys(changes).length > 0) refuseUnlessDraft(invoice);
      Object.assign(invoice, changes, { metadata });
      if (invoice.status === "draft") addUp(context, invoice);
      if (advance !== undefined && advance !== invoice.auto_advance) {
        invoice.auto_advance = advance;
        if (advance && invoice.status === "draft") advanceLater(context, invoice);
        if (advance && invoice.status === "open") chargeLater(context, invoice);
      }
      emit(context, "invoice.updated", invoice);
      return invoice;
    },
  };
};

function refuseUnlessDraft(invoice: Invoice): void {
  if (invoice.status === "draft") return;
  throw invalidRequest(`This invoice is ${invoice.status}: it can no longer be changed.`, {
    code: "invoice_not_editable",
  });
}

const deleteInvoice: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  return {
    lock: invoice.id,
    run: () => {
      refuseUnlessDraft(invoice);
      collectionOf<Invoice>(context.account, "invoice").delete(invoice.id);
      invoice.auto_advance = false;
      emit(context, "invoice.deleted", invoice);
      return { id: invoice.id, object: "invoice", deleted: true };
    },
  };
};

/** POST /v1/invoices/{id}/finalize: with `auto_advance` Stripe charges it by itself an hour later. */
const finalizeInvoice: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  const advance = flagParam(context.params, "auto_advance");
  return {
    lock: invoice.id,
    run: () => {
      finalize(context, invoice);
      if (invoice.status === "open") invoice.auto_advance = advance ?? invoice.auto_advance;
      chargeLater(context, invoice);
      return invoice;
    },
  };
};

/** POST /v1/invoices/{id}/send: finalizes a draft and mails it; one that charges automatically is charged later. */
const sendInvoice: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  return {
    lock: invoice.id,
    run: () => {
      if (invoice.status === "draft") {
        finalize(context, invoice);
        chargeLater(context, invoice);
      } else if (invoice.status !== "open") throw invalidRequest(`This invoice is ${invoice.status}.`);
      emit(context, "invoice.sent", invoice);
      return invoice;
    },
  };
};

/** POST /v1/invoices/{id}/pay: `paid_out_of_band` moves nothing. */
const pay: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  const isOutOfBand = flagParam(context.params, "paid_out_of_band") ?? false;
  const paymentMethod = textParam(context.params, "payment_method") ?? textParam(context.params, "source");
  return {
    lock: invoice.id,
    run: () => {
      if (invoice.status === "paid") {
        throw invalidRequest("Invoice is already paid", { code: "invoice_already_paid" });
      }
      if (invoice.status === "void" || (invoice.status === "uncollectible" && isOutOfBand)) {
        throw invalidRequest(`Invoices that are ${invoice.status} cannot be paid.`, { code: "invoice_not_payable" });
      }
      if (isOutOfBand) return payOutOfBand(context, invoice);
      payInvoice(context, invoice, { paymentMethod });
      return invoice;
    },
  };
};

function payOutOfBand(context: Context, invoice: Invoice): Invoice {
  if (invoice.status === "draft") finalize(context, invoice);
  invoice.amount_paid_off_stripe = invoice.amount_remaining;
  invoice.amount_paid = invoice.amount_due;
  closePayment(context, invoice);
  markPaid(context, invoice);
  return invoice;
}

/** Takes away what could still pay the invoice. */
function closePayment(context: Context, invoice: Invoice): void {
  const intent = intentOfInvoice(context, invoice);
  if (intent === undefined || intent.status === "succeeded" || intent.status === "canceled") return;
  intent.status = "canceled";
  intent.cancellation_reason = "void_invoice";
  intent.canceled_at = context.clock.seconds();
  emit(context, "payment_intent.canceled", intent);
}

/** POST /v1/invoices/{id}/void and /mark_uncollectible. A void invoice refuses everything: it proves that it never charged. */
function endInvoice(status: "void" | "uncollectible", from: readonly Invoice["status"][]): Endpoint {
  return (context) => {
    const invoice = invoiceOf(context);
    return {
      lock: invoice.id,
      run: () => {
        if (!from.includes(invoice.status)) {
          throw invalidRequest(`This invoice is ${invoice.status} and cannot become ${status}.`);
        }
        invoice.status = status;
        invoice.auto_advance = false;
        invoice.next_payment_attempt = null;
        if (status === "void") closePayment(context, invoice);
        emit(context, status === "void" ? "invoice.voided" : "invoice.marked_uncollectible", invoice);
        return invoice;
      },
    };
  };
}

/** POST /v1/invoices/{id}/attach_payment: a `payment_intent` that has succeeded pays the invoice. */
const attachPayment: Endpoint = (context) => {
  const invoice = invoiceOf(context);
  const id = requiredParam(textParam(context.params, "payment_intent"), "payment_intent");
  const intent = context.account.paymentIntents.get(id);
  if (intent === undefined) throw invalidRequest(`No such payment_intent: '${id}'`, { code: "resource_missing" });
  return {
    lock: invoice.id,
    run: () => {
      if (invoice.status !== "open") throw invalidRequest(`This invoice is ${invoice.status}.`);
      if (intent.status !== "succeeded") return invoice;
      const applied = Math.min(invoice.amount_remaining, intent.amount_received);
      invoice.amount_paid += applied;
      invoice.amount_remaining -= applied;
      if (invoice.amount_remaining > 0) return invoice;
      closePayment(context, invoice);
      markPaid(context, invoice);
      return invoice;
    },
  };
};

export const invoiceRoutes: Routes = [
  ["POST", "/v1/invoices", createInvoice],
  ["POST", "/v1/invoices/:id", updateInvoice],
  ["DELETE", "/v1/invoices/:id", deleteInvoice],
  ["POST", "/v1/invoices/:id/finalize", finalizeInvoice],
  ["POST", "/v1/invoices/:id/send", sendInvoice],
  ["POST", "/v1/invoices/:id/pay", pay],
  ["POST", "/v1/invoices/:id/void", endInvoice("void", ["open", "uncollectible"])],
  ["POST", "/v1/invoices/:id/mark_uncollectible", endInvoice("uncollectible", ["open"])],
  ["POST", "/v1/invoices/:id/attach_payment", attachPayment],
];

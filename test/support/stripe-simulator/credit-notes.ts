import { changeBalance } from "./credits.ts";
import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { type Invoice, invoiceWithId } from "./invoice-object.ts";
import { intentOfInvoice, markPaid } from "./invoice-pay.ts";
import type { Metadata } from "./objects.ts";
import { amountParam, groupsParam, integerParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { makeRefund } from "./refunds.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

interface CreditNote extends Stored {
  object: "credit_note";
  amount: number;
  currency: string;
  customer: string;
  customer_balance_transaction: string | null;
  invoice: string;
  livemode: false;
  metadata: Metadata;
  out_of_band_amount: number | null;
  reason: string | null;
  refunds: { amount_refunded: number; refund: string }[];
  status: "issued" | "void";
  total: number;
  type: "pre_payment" | "post_payment";
  voided_at: number | null;
}

interface Parts {
  readonly total: number;
  readonly refund: number;
  readonly credit: number;
  readonly outOfBand: number;
}

/**
 * POST /v1/credit_notes: of an open invoice it lowers what is left to pay; of a paid one `refund_amount` goes back to the
 * card, `credit_amount` to the customer's balance and `out_of_band_amount` nowhere.
 */
const createNote: Endpoint = (context) => {
  const { invoice, parts, metadata } = orderOf(context);
  return {
    lock: invoice.id,
    run: () => {
      const note = blankNote(context, invoice, parts, metadata);
      if (note.type === "pre_payment") lower(context, invoice, parts.total);
      else giveBack(context, invoice, note, parts);
      keep(context.account, note);
      emit(context, "credit_note.created", note);
      return note;
    },
  };
};

function orderOf(context: Context): { invoice: Invoice; parts: Parts; metadata: Metadata } {
  const { params } = context;
  const invoice = invoiceWithId(context, requiredParam(textParam(params, "invoice"), "invoice"));
  const refund = integerParam(params, "refund_amount") ?? 0;
  const credit = integerParam(params, "credit_amount") ?? 0;
  const outOfBand = integerParam(params, "out_of_band_amount") ?? 0;
  const lines = groupsParam(params, "lines").reduce((sum, line) => sum + amountOfLine(invoice, line), 0);
  const total = amountParam(params, "amount") ?? (lines > 0 ? lines : refund + credit + outOfBand);
  if (total < 1) throw invalidRequest("Missing required param: amount.", { param: "amount" });
  if (invoice.status !== "open" && invoice.status !== "paid") {
    throw invalidRequest(`A credit note cannot be made for an invoice that is ${invoice.status}.`);
  }
  if (invoice.status === "paid" && refund + credit + outOfBand !== total) {
    throw invalidRequest("The sum of refund_amount, credit_amount and out_of_band_amount must be the total.");
  }
  const left =
    invoice.status === "open" ? invoice.amount_remaining : invoice.total - invoice.post_payment_credit_notes_amount;
  if (total > left) throw invalidRequest("The credit note is more than what is left of the invoice.");
  return { invoice, parts: { total, refund, credit, outOfBand }, metadata: mergedMetadata(params) };
}

function amountOfLine(invoice: Invoice, line: Parameters<typeof amountParam>[0]): number {
  const named = invoice.lines.data.find(({ id }) => id === textParam(line, "invoice_line_item"));
  const unit = Number(textParam(line, "unit_amount") ?? "0") * (integerParam(line, "quantity") ?? 1);
  return amountParam(line, "amount") ?? named?.amount ?? unit;
}

function blankNote(context: Context, invoice: Invoice, parts: Parts, metadata: Metadata): CreditNote {
  return {
    id: newId("cn"),
    object: "credit_note",
    amount: parts.total,
    created: context.clock.seconds(),
    currency: invoice.currency,
    customer: invoice.customer,
    customer_balance_transaction: null,
    invoice: invoice.id,
    livemode: false,
    metadata,
    out_of_band_amount: parts.outOfBand === 0 ? null : parts.outOfBand,
    reason: textParam(context.params, "reason") ?? null,
    refunds: [],
    status: "issued",
    total: parts.total,
    type: invoice.status === "open" ? "pre_payment" : "post_payment",
    voided_at: null,
  };
}

function lower(context: Context, invoice: Invoice, amount: number): void {
  const intent = intentOfInvoice(context, invoice);
  invoice.pre_payment_credit_notes_amount += amount;
  invoice.amount_remaining -= amount;
  invoice.amount_due = invoice.amount_remaining;
  if (intent !== undefined && invoice.amount_remaining > 0) intent.amount = invoice.amount_remaining;
  if (invoice.amount_remaining > 0) return;
  if (intent !== undefined) intent.status = "canceled";
  markPaid(context, invoice);
}

function giveBack(context: Context, invoice: Invoice, note: CreditNote, parts: Parts): void {
  const charge = context.account.charges.get(intentOfInvoice(context, invoice)?.latest_charge ?? "");
  if (parts.refund > 0) {
    if (charge === undefined) throw invalidRequest("This invoice has no charge to refund.");
    const refund = makeRefund(context, charge, { amount: parts.refund, metadata: note.metadata, reason: null });
    note.refunds.push({ amount_refunded: refund.amount, refund: refund.id });
  }
  invoice.post_payment_credit_notes_amount += parts.total;
  if (parts.credit === 0) return;
  note.customer_balance_transaction = changeBalance(context, invoice.customer, {
    amount: -parts.credit,
    currency: invoice.currency,
    metadata: note.metadata,
    description: null,
    type: "credit_note",
    creditNote: note.id,
    invoice: invoice.id,
  }).id;
}

/** GET /v1/credit_notes/preview: what `createNote` would make. */
const previewNote: Endpoint = (context) => {
  const { invoice, parts, metadata } = orderOf(context);
  return { run: () => blankNote(context, invoice, parts, metadata) };
};

/** POST /v1/credit_notes/{id}/void: only of an open invoice; what was taken off is to be paid again. */
const voidNote: Endpoint = (context) => {
  const id = context.ids[0] ?? "";
  const note = collectionOf<CreditNote>(context.account, "credit_note").get(id);
  if (note === undefined) throw noSuchObject("credit_note", id);
  const invoice = invoiceWithId(context, note.invoice);
  return {
    lock: invoice.id,
    run: () => {
      if (note.status === "void" || invoice.status !== "open") {
        throw invalidRequest("This credit note cannot be voided.");
      }
      note.status = "void";
      note.voided_at = context.clock.seconds();
      lower(context, invoice, -note.amount);
      emit(context, "credit_note.voided", note);
      return note;
    },
  };
};

export const creditNoteRoutes: Routes = [
  ["POST", "/v1/credit_notes", createNote],
  ["GET", "/v1/credit_notes/preview", previewNote],
  ["POST", "/v1/credit_notes/:id/void", voidNote],
];

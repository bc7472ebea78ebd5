import { noSuchObject } from "./errors.ts";
import type { Metadata } from "./objects.ts";
import { type Priced, totalsOf } from "./pricing.ts";
import { type Context, type Stored, collectionOf, newId } from "./state.ts";

export interface Line extends Stored {
  object: "line_item";
  amount: number;
  currency: string;
  description: string | null;
  invoice: string;
  livemode: false;
  metadata: Metadata;
  parent: object | null;
  period: { start: number; end: number };
  pricing: { type: "price_details"; price_details: { price: string | null; product: string | null } } | null;
  quantity: number | null;
  /** The invoice item that it came from. */
  invoice_item: string | null;
}

export interface InvoicePayment extends Stored {
  object: "invoice_payment";
  amount_paid: number | null;
  amount_requested: number;
  currency: string;
  invoice: string;
  is_default: boolean;
  livemode: false;
  payment: { type: "payment_intent"; payment_intent: string };
  status: "open" | "paid" | "canceled";
}

interface List<T> {
  object: "list";
  url: string;
  has_more: false;
  data: T[];
}

export interface Invoice extends Stored {
  object: "invoice";
  amount_due: number;
  amount_overpaid: number;
  amount_paid: number;
  amount_paid_off_stripe: number;
  amount_remaining: number;
  attempt_count: number;
  attempted: boolean;
  auto_advance: boolean;
  automatic_tax: { enabled: boolean; status: "complete" | null };
  automatically_finalizes_at: number | null;
  billing_reason: string;
  collection_method: "charge_automatically" | "send_invoice";
  confirmation_secret: { client_secret: string; type: "payment_intent" } | null;
  created: number;
  currency: string;
  customer: string;
  default_payment_method: string | null;
  description: string | null;
  /** The coupons that apply. */
  discounts: string[];
  due_date: number | null;
  ending_balance: number | null;
  hosted_invoice_url: string | null;
  lines: List<Line>;
  livemode: false;
  metadata: Metadata;
  next_payment_attempt: number | null;
  number: string | null;
  parent: {
    type: "subscription_details";
    subscription_details: { subscription: string; metadata: Metadata };
  } | null;
  payments: List<InvoicePayment>;
  period_end: number;
  period_start: number;
  post_payment_credit_notes_amount: number;
  pre_payment_credit_notes_amount: number;
  starting_balance: number;
  status: "draft" | "open" | "paid" | "uncollectible" | "void";
  subtotal: number;
  total: number;
  total_taxes: { amount: number }[];
}

export type InvoiceOrder = Pick<Invoice, "currency" | "customer"> & Partial<Invoice>;

/** A draft without lines. Not kept yet. */
export function blankInvoice(context: Context, order: InvoiceOrder): Invoice {
  const id = newId("in");
  const now = context.clock.seconds();
  return {
    id,
    object: "invoice",
    amount_due: 0,
    amount_overpaid: 0,
    amount_paid: 0,
    amount_paid_off_stripe: 0,
    amount_remaining: 0,
    attempt_count: 0,
    attempted: false,
    auto_advance: false,
    automatic_tax: { enabled: false, status: null },
    automatically_finalizes_at: null,
    billing_reason: "manual",
    collection_method: "charge_automatically",
    confirmation_secret: null,
    created: now,
    default_payment_method: null,
    description: null,
    discounts: [],
    due_date: null,
    ending_balance: null,
    hosted_invoice_url: null,
    lines: { object: "list", url: `/v1/invoices/${id}/lines`, has_more: false, data: [] },
    livemode: false,
    metadata: {},
    next_payment_attempt: null,
    number: null,
    parent: null,
    payments: { object: "list", url: "/v1/invoice_payments", has_more: false, data: [] },
    period_end: now,
    period_start: now,
    post_payment_credit_notes_amount: 0,
    pre_payment_credit_notes_amount: 0,
    starting_balance: 0,
    status: "draft",
    subtotal: 0,
    total: 0,
    total_taxes: [],
    ...order,
  };
}

export function newLine(context: Context, invoice: Invoice, line: Partial<Line> & Pick<Line, "amount">): Line {
  return {
    id: newId("il"),
    object: "line_item",
    created: context.clock.seconds(),
    currency: invoice.currency,
    description: null,
    invoice: invoice.id,
    invoice_item: null,
    livemode: false,
    metadata: {},
    parent: null,
    period: { start: invoice.period_start, end: invoice.period_end },
    pricing: null,
    quantity: 1,
    ...line,
  };
}

export function pricingOf(priced: Priced | undefined): Line["pricing"] {
  if (priced === undefined) return null;
  return { type: "price_details", price_details: { price: priced.price, product: priced.product } };
}

/** Adds up a draft. What is due is only fixed when it is finalized. */
export function addUp(context: Context, invoice: Invoice): void {
  const subtotal = invoice.lines.data.reduce((sum, { amount }) => sum + amount, 0);
  const totals = totalsOf(context, subtotal, {
    coupons: invoice.discounts,
    isTaxed: invoice.automatic_tax.enabled,
  });
  invoice.subtotal = subtotal;
  invoice.total = totals.total;
  invoice.total_taxes = totals.tax === 0 ? [] : [{ amount: totals.tax }];
  invoice.amount_due = Math.max(0, totals.total);
  invoice.amount_remaining = invoice.amount_due;
}

export function invoiceWithId(context: Context, id: string): Invoice {
  const invoice = collectionOf<Invoice>(context.account, "invoice").get(id);
  if (invoice === undefined) throw noSuchObject("invoice", id);
  return invoice;
}

/** The invoice named in the path. */
export function invoiceOf(context: Context): Invoice {
  return invoiceWithId(context, context.ids[0] ?? "");
}

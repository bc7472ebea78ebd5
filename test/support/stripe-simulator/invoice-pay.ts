import { balanceOf, changeBalance } from "./credits.ts";
import { StripeRefusal, invalidRequest } from "./errors.ts";
import { emit } from "./events.ts";
import { type Invoice, type InvoicePayment, addUp } from "./invoice-object.ts";
import type { PaymentIntent } from "./objects.ts";
import { confirmIntent } from "./payment-intent-confirm.ts";
import { blankIntent } from "./payment-intents.ts";
import { type Context, collectionOf, keep, newId } from "./state.ts";
import { type Subscription, followInvoice } from "./subscription-object.ts";

const hourMs = 60 * 60 * 1000;
const retryMs = 3 * 24 * hourMs;
const attemptsMax = 4;

/** Lets Stripe finalize and charge the draft by itself, an hour from now, if it then still is to. */
export function advanceLater(context: Context, invoice: Invoice): void {
  const at = context.clock.now() + hourMs;
  invoice.automatically_finalizes_at = Math.floor(at / 1000);
  context.agenda.add(at, context.account.id, (later) => {
    if (invoice.status !== "draft" || !invoice.auto_advance) return;
    finalize(later, invoice);
    attempt(later, invoice);
  });
}

/** Lets Stripe charge the finalized invoice by itself, an hour from now. */
export function chargeLater(context: Context, invoice: Invoice, inMs = hourMs): void {
  if (!isUnattended(invoice)) return;
  const at = context.clock.now() + inMs;
  invoice.next_payment_attempt = Math.floor(at / 1000);
  context.agenda.add(at, context.account.id, (later) => attempt(later, invoice));
}

/** What a new card of the customer makes Stripe do: charge the latest invoice of each subscription that is past due. */
export function retryPastDue(context: Context, customer: string): void {
  for (const subscription of collectionOf<Subscription>(context.account, "subscription").values()) {
    if (subscription.customer !== customer || subscription.status !== "past_due") continue;
    const invoice = collectionOf<Invoice>(context.account, "invoice").get(subscription.latest_invoice ?? "");
    if (invoice !== undefined) attempt(context, invoice);
  }
}

function isUnattended(invoice: Invoice): boolean {
  return invoice.auto_advance && invoice.status === "open" && invoice.collection_method === "charge_automatically";
}

/** Stripe's own attempt. A decline is tried again every three days, four times in all. */
function attempt(context: Context, invoice: Invoice): void {
  if (!isUnattended(invoice)) return;
  invoice.next_payment_attempt = null;
  try {
    payInvoice(context, invoice, {});
  } catch (error) {
    if (!(error instanceof StripeRefusal)) throw error;
    if (invoice.attempt_count < attemptsMax) chargeLater(context, invoice, retryMs);
  }
}

/** Fixes what is due: the total, less the customer's credit. An invoice of nothing is paid at once. */
export function finalize(context: Context, invoice: Invoice): void {
  if (invoice.status !== "draft") {
    throw invalidRequest(`This invoice is already finalized, you can't re-finalize it: it is ${invoice.status}.`, {
      code: "invoice_not_editable",
    });
  }
  addUp(context, invoice);
  const balance = balanceOf(context, invoice.customer);
  const due = Math.max(0, invoice.total + balance);
  invoice.starting_balance = balance;
  invoice.ending_balance = balance + invoice.total - due;
  if (due !== invoice.total) {
    changeBalance(context, invoice.customer, {
      amount: invoice.total - due,
      currency: invoice.currency,
      metadata: {},
      description: null,
      type: "applied_to_invoice",
      invoice: invoice.id,
    });
  }
  invoice.amount_due = due;
  invoice.amount_remaining = due;
  invoice.status = "open";
  invoice.automatically_finalizes_at = null;
  invoice.number = `SIM-${invoice.id.slice(-8).toUpperCase()}`;
  invoice.hosted_invoice_url = `https://invoice.example.invalid/${invoice.id}`;
  emit(context, "invoice.finalized", invoice);
  if (due === 0) markPaid(context, invoice);
  else openPayment(context, invoice);
}

/** The intent that will pay what is due, and what to do when it has. */
function openPayment(context: Context, invoice: Invoice): void {
  const { account } = context;
  const intent = blankIntent(context, {
    amount: invoice.amount_remaining,
    currency: invoice.currency,
    customer: invoice.customer,
  });
  intent.description = `Payment for Invoice ${invoice.number}`;
  account.paymentIntents.set(intent.id, intent);
  const payment: InvoicePayment = {
    id: newId("inpay"),
    object: "invoice_payment",
    amount_paid: null,
    amount_requested: intent.amount,
    created: context.clock.seconds(),
    currency: invoice.currency,
    invoice: invoice.id,
    is_default: true,
    livemode: false,
    payment: { type: "payment_intent", payment_intent: intent.id },
    status: "open",
  };
  invoice.payments.data.push(keep(account, payment));
  invoice.confirmation_secret = { client_secret: intent.client_secret, type: "payment_intent" };
  account.causes.set(intent.id, {
    id: invoice.id,
    metadata: { ...invoice.parent?.subscription_details.metadata, ...invoice.metadata },
    onPaid: (paying) => {
      payment.status = "paid";
      payment.amount_paid = intent.amount_received;
      invoice.amount_paid += intent.amount_received;
      markPaid(paying, invoice);
    },
  });
  emit(context, "payment_intent.created", intent);
}

/** The intent that pays this invoice. */
export function intentOfInvoice(context: Context, invoice: Invoice): PaymentIntent | undefined {
  const payment = invoice.payments.data.find(({ is_default: isDefault }) => isDefault);
  return context.account.paymentIntents.get(payment?.payment.payment_intent ?? "");
}

/**
 * Charges an open invoice, or finalizes a draft first. Throws the 402 of a decline, and of a bank that wants to see
 * the customer. A bank debit leaves the invoice open until it has settled.
 */
export function payInvoice(context: Context, invoice: Invoice, options: { paymentMethod?: string | undefined }): void {
  if (invoice.status === "draft") finalize(context, invoice);
  if (invoice.status === "paid") return;
  const intent = intentOfInvoice(context, invoice);
  if (intent === undefined) throw invalidRequest("This invoice has no payment.");
  invoice.attempted = true;
  invoice.attempt_count += 1;
  const customer = context.account.customers.get(invoice.customer);
  const known = customer?.default_source ?? customer?.invoice_settings.default_payment_method;
  const paymentMethod = options.paymentMethod ?? invoice.default_payment_method ?? known ?? "pm_card_visa";
  try {
    confirmIntent(context, intent, { paymentMethod, isOffSession: false });
  } catch (error) {
    if (error instanceof StripeRefusal && error.status === 402) fail(context, invoice);
    throw error;
  }
  if (intent.status !== "requires_action") return;
  fail(context, invoice);
  throw new StripeRefusal(402, {
    type: "card_error",
    code: "invoice_payment_intent_requires_action",
    message: "Payment for this invoice requires additional user action before it can be completed successfully.",
    payment_intent: structuredClone(intent),
  });
}

function fail(context: Context, invoice: Invoice): void {
  emit(context, "invoice.payment_failed", invoice);
  followInvoice(context, invoice.parent?.subscription_details.subscription, "failed");
}

/** From here on the invoice refuses to be paid again. */
export function markPaid(context: Context, invoice: Invoice): void {
  invoice.status = "paid";
  invoice.amount_remaining = 0;
  invoice.next_payment_attempt = null;
  invoice.auto_advance = false;
  emit(context, "invoice.paid", invoice);
  emit(context, "invoice.payment_succeeded", invoice);
  followInvoice(context, invoice.parent?.subscription_details.subscription, "paid");
}

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import type { Metadata } from "./objects.ts";
import { groupParam, groupsParam, integerParam, mergedMetadata, requiredParam, textParam } from "./params.ts";
import { confirmIntent } from "./payment-intent-confirm.ts";
import { blankIntent } from "./payment-intents.ts";
import { type Priced, type Totals, costOf, pricedItem, totalOptions, totalsOf } from "./pricing.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";
import { startSubscription } from "./subscription-create.ts";

const day = 86_400;

/** A page on which somebody may pay until it expires. Open it moves nothing. */
export interface Session extends Stored {
  object: "checkout.session";
  amount_subtotal: number;
  amount_total: number;
  automatic_tax: { enabled: boolean };
  cancel_url: string | null;
  client_reference_id: string | null;
  created: number;
  currency: string;
  customer: string | null;
  expires_at: number;
  invoice: string | null;
  line_items: { object: "list"; has_more: false; url: string; data: object[] };
  livemode: false;
  metadata: Metadata;
  mode: "payment" | "subscription" | "setup";
  payment_intent: string | null;
  payment_link: string | null;
  payment_method_types: string[];
  payment_status: "paid" | "unpaid" | "no_payment_required";
  setup_intent: string | null;
  status: "open" | "complete" | "expired";
  subscription: string | null;
  success_url: string | null;
  total_details: { amount_discount: number; amount_shipping: number; amount_tax: number };
  url: string | null;
}

/** What a page was made for. */
const orders = new WeakMap<Session, Params>();

/** What a payment link has to say to the payment of a page that was opened through it. */
export interface LinkOfPage {
  /** Throws when nobody may pay any more. */
  readonly check: () => void;
  readonly onCompleted: () => void;
}

const links = new WeakMap<Session, LinkOfPage>();

/** POST /v1/checkout/sessions: `automatic_tax` adds what no client can compute. */
const createSession: Endpoint = (context) => {
  const { params } = context;
  const expires = integerParam(params, "expires_at");
  const now = context.clock.seconds();
  if (expires !== undefined && (expires < now + 30 * 60 || expires > now + day)) {
    throw invalidRequest("The expires_at timestamp must be between 30 minutes and 24 hours from now.", {
      param: "expires_at",
    });
  }
  const draft = sessionOf(context, params);
  return {
    run: () => {
      openSession(context, draft, params);
      return draft;
    },
  };
};

/** A session for these parameters, which may be those of a payment link. Not kept yet. */
export function sessionOf(context: Context, params: Params): Session {
  const id = newId("cs_test");
  const mode = textParam(params, "mode") ?? "payment";
  if (mode !== "payment" && mode !== "subscription" && mode !== "setup") {
    throw invalidRequest(`Invalid mode: ${mode}`, { param: "mode" });
  }
  const priced = pricedItems(context, params);
  if (priced.length === 0 && mode !== "setup") throw invalidRequest("Missing required param: line_items.");
  const totals = totalsOfItems(context, params, priced);
  return {
    id,
    object: "checkout.session",
    amount_subtotal: totals.subtotal,
    amount_total: totals.total,
    automatic_tax: { enabled: totalOptions(params).isTaxed },
    cancel_url: textParam(params, "cancel_url") ?? null,
    client_reference_id: textParam(params, "client_reference_id") ?? null,
    created: context.clock.seconds(),
    currency: priced[0]?.currency ?? "usd",
    customer: textParam(params, "customer") ?? null,
    expires_at: integerParam(params, "expires_at") ?? context.clock.seconds() + day,
    invoice: null,
    line_items: {
      object: "list",
      has_more: false,
      url: `/v1/checkout/sessions/${id}/line_items`,
      data: priced.map(itemOf),
    },
    livemode: false,
    metadata: mergedMetadata(params),
    mode,
    payment_intent: null,
    payment_link: null,
    payment_method_types: ["card"],
    payment_status: mode === "setup" || totals.total === 0 ? "no_payment_required" : "unpaid",
    setup_intent: null,
    status: "open",
    subscription: null,
    success_url: textParam(params, "success_url") ?? null,
    total_details: { amount_discount: totals.discount, amount_shipping: 0, amount_tax: totals.tax },
    url: `https://checkout.example.invalid/${id}`,
  };
}

export function pricedItems(context: Context, params: Params): Priced[] {
  return groupsParam(params, "line_items").map((item) => requiredParam(pricedItem(context, item), "line_items[price]"));
}

export function totalsOfItems(context: Context, params: Params, priced: readonly Priced[]): Totals {
  const subtotal = priced.reduce((sum, item) => sum + costOf(item), 0);
  return totalsOf(context, subtotal, totalOptions(params));
}

export function itemOf(priced: Priced): object {
  const { currency, quantity, price, unitAmount } = priced;
  return {
    id: newId("li"),
    object: "item",
    amount_subtotal: costOf(priced),
    amount_total: costOf(priced),
    currency,
    price: { id: price, object: "price", currency, unit_amount: unitAmount },
    quantity,
  };
}

export function openSession(context: Context, session: Session, params: Params, link?: LinkOfPage): void {
  keep(context.account, session);
  orders.set(session, params);
  if (link !== undefined) links.set(session, link);
  context.agenda.add(session.expires_at * 1000, context.account.id, (later) => {
    if (session.status === "open") expire(later, session);
  });
}

/** POST /v1/checkout/sessions/{id}/expire: from here on nobody can pay, so it proves that it never charged. */
const expireSession: Endpoint = (context) => {
  const session = sessionInPath(context);
  return {
    lock: session.id,
    run: () => {
      if (session.status !== "open") {
        throw invalidRequest(
          `Only Checkout Sessions with a status in ["open"] can be expired: it is ${session.status}.`,
        );
      }
      return expire(context, session);
    },
  };
};

function expire(context: Context, session: Session): Session {
  session.status = "expired";
  session.url = null;
  emit(context, "checkout.session.expired", session);
  return session;
}

/** POST /v1/checkout/sessions/{id}: metadata; other items make another total. */
const updateSession: Endpoint = (context) => {
  const session = sessionInPath(context);
  const { params } = context;
  const metadata = mergedMetadata(params, session.metadata);
  const priced = pricedItems(context, params);
  return {
    lock: session.id,
    run: () => {
      session.metadata = metadata;
      if (priced.length === 0) return session;
      if (session.status !== "open") throw invalidRequest(`This Checkout Session is ${session.status}.`);
      const totals = totalsOfItems(context, { ...orders.get(session), ...params }, priced);
      orders.set(session, { ...orders.get(session), line_items: params["line_items"] ?? [] });
      session.amount_subtotal = totals.subtotal;
      session.amount_total = totals.total;
      session.total_details = { amount_discount: totals.discount, amount_shipping: 0, amount_tax: totals.tax };
      session.line_items.data = priced.map(itemOf);
      return session;
    },
  };
};

/**
 * The customer pays on the page. A decline throws the refusal, and the page stays open for another card; so does a bank
 * that wants to see the customer, whose intent can then be confirmed from the browser.
 */
export function completeSession(context: Context, session: Session, paymentMethod = "pm_card_visa"): Session {
  if (session.status !== "open") throw invalidRequest(`This Checkout Session is ${session.status}.`);
  links.get(session)?.check();
  if (session.mode === "payment") payOnce(context, session, paymentMethod);
  else if (session.mode === "subscription") subscribe(context, session, paymentMethod);
  else session.setup_intent = newId("seti");
  if (session.mode !== "payment" || session.amount_total === 0) complete(context, session);
  return session;
}

function payOnce(context: Context, session: Session, paymentMethod: string): void {
  if (session.amount_total === 0) return;
  const { account } = context;
  const data = groupParam(orders.get(session) ?? {}, "payment_intent_data");
  const { currency, customer, amount_total: amount } = session;
  const present = account.paymentIntents.get(session.payment_intent ?? "");
  const intent = present ?? blankIntent(context, { amount, currency, customer });
  if (present === undefined) {
    intent.metadata = mergedMetadata(data);
    if (textParam(data, "capture_method") === "manual") intent.capture_method = "manual";
    account.paymentIntents.set(intent.id, intent);
    session.payment_intent = intent.id;
    account.causes.set(intent.id, {
      id: session.payment_link ?? session.id,
      metadata: session.metadata,
      onPaid: (paying) => {
        session.payment_status = "paid";
        if (session.status === "open") complete(paying, session);
        else emit(paying, "checkout.session.async_payment_succeeded", session);
      },
    });
    emit(context, "payment_intent.created", intent);
  }
  confirmIntent(context, intent, { paymentMethod, isOffSession: false });
  // A bank debit is still under way and an authorized card not yet captured: the page is done with, the money not there.
  if (intent.status === "processing" || intent.status === "requires_capture") complete(context, session);
}

function subscribe(context: Context, session: Session, paymentMethod: string): void {
  const params = orders.get(session) ?? {};
  const data = groupParam(params, "subscription_data");
  const customer = session.customer ?? newId("cus");
  const subscription = startSubscription(
    context,
    {
      ...data,
      items: params["line_items"] ?? [],
      default_payment_method: paymentMethod,
      payment_behavior: "error_if_incomplete",
      automatic_tax: groupParam(params, "automatic_tax"),
    },
    customer,
  ).run();
  session.customer = customer;
  session.subscription = subscription.id;
  session.invoice = subscription.latest_invoice;
  session.payment_status = "paid";
}

function complete(context: Context, session: Session): void {
  session.status = "complete";
  links.get(session)?.onCompleted();
  session.url = null;
  emit(context, "checkout.session.completed", session);
}

/** The session named in the path. */
export function sessionInPath(context: Context): Session {
  const id = context.ids[0] ?? "";
  const session = collectionOf<Session>(context.account, "checkout.session").get(id);
  if (session === undefined) throw noSuchObject("checkout.session", id);
  return session;
}

export const checkoutRoutes: Routes = [
  ["POST", "/v1/checkout/sessions", createSession],
  ["POST", "/v1/checkout/sessions/:id", updateSession],
  ["POST", "/v1/checkout/sessions/:id/expire", expireSession],
];

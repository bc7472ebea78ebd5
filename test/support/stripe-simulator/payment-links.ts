import { type Session, completeSession, itemOf, openSession, pricedItems, sessionOf } from "./checkout.ts";
import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Params } from "./form.ts";
import type { Metadata } from "./objects.ts";
import { flagParam, groupParam, integerParam, mergedMetadata, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

/** A page that anybody may pay on, any number of times, unless it is restricted or no longer active. */
interface PaymentLink extends Stored {
  object: "payment_link";
  active: boolean;
  currency: string;
  inactive_message: string | null;
  line_items: { object: "list"; has_more: false; url: string; data: object[] };
  livemode: false;
  metadata: Metadata;
  restrictions: { completed_sessions: { count: number; limit: number } } | null;
  url: string;
}

/** What a link sells. */
const offers = new WeakMap<PaymentLink, Params>();

const createLink: Endpoint = (context) => {
  const { params } = context;
  const priced = pricedItems(context, params);
  const [first] = priced;
  if (first === undefined) throw invalidRequest("Missing required param: line_items.", { param: "line_items" });
  const restrictions = restrictionsParam(params);
  const metadata = mergedMetadata(params);
  return {
    run: () => {
      const id = newId("plink");
      const link: PaymentLink = {
        id,
        object: "payment_link",
        active: true,
        created: context.clock.seconds(),
        currency: first.currency,
        inactive_message: null,
        line_items: {
          object: "list",
          has_more: false,
          url: `/v1/payment_links/${id}/line_items`,
          data: priced.map(itemOf),
        },
        livemode: false,
        metadata,
        restrictions: restrictions ?? null,
        url: `https://buy.example.invalid/${id}`,
      };
      keep(context.account, link);
      offers.set(link, { ...params, mode: first.recurring === null ? "payment" : "subscription" });
      emit(context, "payment_link.created", link);
      return link;
    },
  };
};

/** POST /v1/payment_links/{id}: `active=false` closes it; who is on the page already can no longer pay either. */
const updateLink: Endpoint = (context) => {
  const link = linkOf(context);
  const { params } = context;
  const active = flagParam(params, "active");
  const restrictions = restrictionsParam(params, link.restrictions?.completed_sessions.count);
  const metadata = mergedMetadata(params, link.metadata);
  const priced = pricedItems(context, params);
  return {
    lock: link.id,
    run: () => {
      link.active = active ?? link.active;
      link.inactive_message = textParam(params, "inactive_message") ?? link.inactive_message;
      link.metadata = metadata;
      if (restrictions !== undefined) link.restrictions = restrictions;
      if (priced.length > 0) {
        link.line_items.data = priced.map(itemOf);
        offers.set(link, { ...offers.get(link), line_items: params["line_items"] ?? [] });
      }
      emit(context, "payment_link.updated", link);
      return link;
    },
  };
};

function restrictionsParam(params: Params, count = 0): PaymentLink["restrictions"] | undefined {
  if (params["restrictions"] === "") return null;
  const limit = integerParam(groupParam(groupParam(params, "restrictions"), "completed_sessions"), "limit");
  return limit === undefined ? undefined : { completed_sessions: { count, limit } };
}

/** Somebody opens the link and pays. Throws the refusal of a decline, and of a link that is closed or used up. */
export function payLink(context: Context, options: { paymentMethod?: string; customer?: string }): Session {
  const link = linkOf(context);
  const completed = link.restrictions?.completed_sessions;
  if (!link.active || (completed !== undefined && completed.count >= completed.limit)) {
    throw invalidRequest(link.inactive_message ?? "This link is no longer active.");
  }
  const { customer } = options;
  const params = { ...offers.get(link), ...(customer === undefined ? {} : { customer }) };
  const session = sessionOf(context, params);
  session.metadata = { ...link.metadata };
  session.payment_link = link.id;
  openSession(context, session, params);
  completeSession(context, session, options.paymentMethod);
  if (completed !== undefined && session.status === "complete") completed.count += 1;
  return session;
}

function linkOf(context: Context): PaymentLink {
  const id = context.ids[0] ?? "";
  const link = collectionOf<PaymentLink>(context.account, "payment_link").get(id);
  if (link === undefined) throw noSuchObject("payment_link", id);
  return link;
}

export const paymentLinkRoutes: Routes = [
  ["POST", "/v1/payment_links", createLink],
  ["POST", "/v1/payment_links/:id", updateLink],
];

import { type Session, itemOf, openSession, pricedItems, sessionOf } from "./checkout.ts";
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

/** POST /v1/payment_links/{id}: `active=false` closes it to who comes later. */
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

/**
 * Somebody opens the link: a page of their own, which can still be paid when the link was closed meanwhile, but not when
 * it was used up. Throws when the link is closed or used up already.
 */
export function openLink(context: Context, { customer }: { customer?: string }): Session {
  const link = linkOf(context);
  if (!link.active) throw invalidRequest(link.inactive_message ?? "This link is no longer active.");
  refuseWhenUsedUp(link);
  const params = { ...offers.get(link), ...(customer === undefined ? {} : { customer }) };
  const session = sessionOf(context, params);
  session.metadata = { ...link.metadata };
  session.payment_link = link.id;
  openSession(context, session, params, {
    check: () => refuseWhenUsedUp(link),
    onCompleted: () => {
      if (link.restrictions !== null) link.restrictions.completed_sessions.count += 1;
    },
  });
  return session;
}

function refuseWhenUsedUp(link: PaymentLink): void {
  const completed = link.restrictions?.completed_sessions;
  if (completed === undefined || completed.count < completed.limit) return;
  throw invalidRequest(link.inactive_message ?? "This link is no longer active.");
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

import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import { fieldFilter, listPage } from "./lists.ts";
import { flagParam, requiredParam, textParam } from "./params.ts";
import { type Context, type Endpoint, type Routes, collectionOf } from "./state.ts";
import { chargeNow, invoiceSubscription } from "./subscription-billing.ts";
import { changeItem, changeSubscription, endSubscription, prorationParam, restart } from "./subscription-change.ts";
import { createSubscription } from "./subscription-create.ts";
import { type Subscription, type SubscriptionItem, subscriptionWithId } from "./subscription-object.ts";

/** The last id of the path: `/v1/customers/{id}/subscriptions/{id}` names the customer first. */
function subscriptionOf(context: Context): Subscription {
  return subscriptionWithId(context, context.ids.at(-1) ?? "");
}

const updateSubscription: Endpoint = (context) => {
  const subscription = subscriptionOf(context);
  return { lock: subscription.id, run: () => changeSubscription(context, subscription, context.params) };
};

const cancelSubscription: Endpoint = (context) => {
  const subscription = subscriptionOf(context);
  const invoiceNow = flagParam(context.params, "invoice_now") ?? false;
  const prorate = flagParam(context.params, "prorate") ?? false;
  return { lock: subscription.id, run: () => endSubscription(context, subscription, { invoiceNow, prorate }) };
};

/** POST /v1/subscriptions/{id}/pause and /resume: resuming begins a new period and charges it. */
const pauseSubscription: Endpoint = (context) => {
  const subscription = subscriptionOf(context);
  return {
    lock: subscription.id,
    run: () => {
      if (subscription.status !== "active" && subscription.status !== "trialing") {
        throw invalidRequest(`This subscription is ${subscription.status}.`);
      }
      subscription.status = "paused";
      emit(context, "customer.subscription.paused", subscription);
      return subscription;
    },
  };
};

const resumeSubscription: Endpoint = (context) => {
  const subscription = subscriptionOf(context);
  return {
    lock: subscription.id,
    run: () => {
      if (subscription.status !== "paused") throw invalidRequest(`This subscription is ${subscription.status}.`);
      subscription.status = "active";
      restart(context, subscription, false);
      emit(context, "customer.subscription.resumed", subscription);
      return subscription;
    },
  };
};

/** GET /v1/subscriptions: canceled ones only when `status` asks for them. */
const listSubscriptions: Endpoint = (context) => ({
  run: () => {
    const isWanted = fieldFilter(context.params);
    const showsEnded = context.params["status"] !== undefined;
    return listPage(context, collectionOf<Subscription>(context.account, "subscription").values(), {
      url: "/v1/subscriptions",
      kind: "subscription",
      lagMs: context.lag.lists,
      keep: (item) => isWanted(item) && (showsEnded || item.status !== "canceled"),
    });
  },
});

/** POST /v1/subscription_items, POST and DELETE /v1/subscription_items/{id}. */
const createItem: Endpoint = (context) => {
  const id = requiredParam(textParam(context.params, "subscription"), "subscription");
  return editItem(context, subscriptionWithId(context, id), (subscription) => {
    changeItem(context, subscription, context.params, prorationParam(context.params));
    return subscription.items.data.at(-1) ?? subscription;
  });
};

const updateItem: Endpoint = (context) => {
  const item = itemOf(context);
  return editItem(context, subscriptionWithId(context, item.subscription), (subscription) => {
    changeItem(context, subscription, { ...context.params, id: item.id }, prorationParam(context.params));
    return item;
  });
};

const deleteItem: Endpoint = (context) => {
  const item = itemOf(context);
  return editItem(context, subscriptionWithId(context, item.subscription), (subscription) => {
    changeItem(context, subscription, { id: item.id, deleted: "true" }, prorationParam(context.params));
    return { id: item.id, object: "subscription_item", deleted: true };
  });
};

function editItem(context: Context, subscription: Subscription, edit: (subscription: Subscription) => object) {
  return {
    lock: subscription.id,
    run: () => {
      const answer = edit(subscription);
      if (prorationParam(context.params) === "always_invoice") {
        const invoice = invoiceSubscription(context, subscription, { reason: "subscription_update", withItems: false });
        chargeNow(context, invoice, false);
      }
      emit(context, "customer.subscription.updated", subscription);
      return answer;
    },
  };
}

function itemOf(context: Context): SubscriptionItem {
  const id = context.ids[0] ?? "";
  const item = collectionOf<SubscriptionItem>(context.account, "subscription_item").get(id);
  if (item === undefined) throw noSuchObject("subscription_item", id);
  return item;
}

export const subscriptionRoutes: Routes = [
  ["POST", "/v1/subscriptions", createSubscription],
  ["GET", "/v1/subscriptions", listSubscriptions],
  ["POST", "/v1/subscriptions/:id", updateSubscription],
  ["DELETE", "/v1/subscriptions/:id", cancelSubscription],
  ["POST", "/v1/subscriptions/:id/pause", pauseSubscription],
  ["POST", "/v1/subscriptions/:id/resume", resumeSubscription],
  ["POST", "/v1/customers/:id/subscriptions", createSubscription],
  ["POST", "/v1/customers/:id/subscriptions/:id", updateSubscription],
  ["DELETE", "/v1/customers/:id/subscriptions/:id", cancelSubscription],
  ["POST", "/v1/subscription_items", createItem],
  ["POST", "/v1/subscription_items/:id", updateItem],
  ["DELETE", "/v1/subscription_items/:id", deleteItem],
];

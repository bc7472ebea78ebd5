import { invalidRequest, noSuchObject } from "./errors.ts";
import { emit } from "./events.ts";
import type { Charge, Metadata } from "./objects.ts";
import { type Context, type Endpoint, type Routes, type Stored, collectionOf, keep, newId } from "./state.ts";

interface Dispute extends Stored {
  object: "dispute";
  amount: number;
  charge: string;
  currency: string;
  livemode: false;
  metadata: Metadata;
  payment_intent: string | null;
  reason: string;
  status: "needs_response" | "under_review" | "won" | "lost";
}

/** The card's owner takes the money back, as the cards named `createDispute` do at once. */
export function makeDispute(context: Context, charge: Charge): void {
  const dispute: Dispute = {
    id: newId("dp"),
    object: "dispute",
    amount: charge.amount_captured,
    charge: charge.id,
    created: context.clock.seconds(),
    currency: charge.currency,
    livemode: false,
    metadata: {},
    payment_intent: charge.payment_intent,
    reason: "fraudulent",
    status: "needs_response",
  };
  keep(context.account, dispute);
  charge.disputed = true;
  charge.dispute = dispute.id;
  emit({ ...context, origin: null }, "charge.dispute.created", dispute);
}

/** POST /v1/disputes/{id}/close: concedes the dispute, for ever. */
const closeDispute: Endpoint = (context) => {
  const id = context.ids[0] ?? "";
  const dispute = collectionOf<Dispute>(context.account, "dispute").get(id);
  if (dispute === undefined) throw noSuchObject("dispute", id);
  return { lock: dispute.id, run: () => close(context, dispute) };
};

/** POST /v1/charges/{id}/dispute/close, the older way to the same. */
const closeDisputeOfCharge: Endpoint = (context) => {
  const id = context.ids[0] ?? "";
  const found = [...collectionOf<Dispute>(context.account, "dispute").values()].find(({ charge }) => charge === id);
  if (found === undefined) throw noSuchObject("dispute", id);
  return { lock: found.id, run: () => close(context, found) };
};

function close(context: Context, dispute: Dispute): Dispute {
  if (dispute.status === "won" || dispute.status === "lost") {
    throw invalidRequest("This dispute is already closed.", { code: "dispute_already_closed" });
  }
  dispute.status = "lost";
  emit(context, "charge.dispute.closed", dispute);
  return dispute;
}

export const disputeRoutes: Routes = [
  ["POST", "/v1/disputes/:id/close", closeDispute],
  ["POST", "/v1/charges/:id/dispute/close", closeDisputeOfCharge],
];

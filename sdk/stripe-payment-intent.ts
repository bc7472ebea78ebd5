import { type Authorization, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  SpendAlreadyFailedError,
  SpendInDoubtError,
  SpendInProgressError,
  SpendMismatchError,
  VendorUnreachableError,
} from "./errors.ts";
import { moneyFrom } from "./money.ts";
import type { Grant } from "./spend.ts";
import { amountOf } from "./stripe-amount.ts";
import {
  authorizationMetadata,
  bind,
  errorContext,
  type GuardedCall,
  readCommitted,
  refusalStatus,
  refuseOwnSending,
  requireSpend,
  spendRequest,
  type StripeCall,
} from "./stripe-call.ts";
import { holdOrFollowAgain } from "./stripe-hold.ts";
import { cancelIntent, commitIntent, type Intent, intentPath, parseIntent, readIntent } from "./stripe-intent.ts";
import { confirmFields, createFields } from "./stripe-intent-fields.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { fieldValue, joinForm } from "./stripe-request.ts";
import type { Exchange } from "./stripe-send.ts";
import { sendStep } from "./stripe-step.ts";
import { sleep } from "./runtime.ts";

/** What one step leads to: the answer for the caller, the object to go on with, or another attempt in charge. */
type Next =
  | { readonly kind: "answer"; readonly answer: StripeAnswer }
  | { readonly kind: "intent"; readonly intent: Intent }
  | { readonly kind: "superseded" };

const ROUNDS_MAX = 5;
const CONFIRMATIONS_MAX = 10;
const STEPS_MAX = 30;

/**
 * Creates a PaymentIntent and, if the caller asked for that, confirms it, as if one call had been made: create it
 * unconfirmed, bind its id to the authorization, and only then confirm that id. However many attempts run, all of them
 * confirm the one bound object, and a PaymentIntent succeeds once. Throws a HoldfastError where there is no vendor
 * answer to give.
 */
export async function payByPaymentIntent(stripeCall: StripeCall): Promise<StripeAnswer> {
  refuseOwnSending(stripeCall);
  const spend = requireSpend(stripeCall);
  const { money } = await amountOf(stripeCall, "body");
  const call: GuardedCall = { ...stripeCall, spend, money };
  const goal = fieldValue(call.fields, "confirm") === "true" ? "confirmed" : "created";
  let request = spendRequest(call, Settlement.TWO_STEP);
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const decision = await call.authorize(request, call.deadline);
    switch (decision.kind) {
      case "already_committed":
        return readCommitted(call, intentPath(decision.authorization.vendorReference), decision.authorization);
      case "unfinished": {
        const answer = await lookAgain(call, decision.authorization, goal);
        if (answer !== undefined) return answer;
        request = { ...request, continueVendorReference: decision.authorization.vendorReference };
        break;
      }
      case "granted": {
        const answer = await carryThrough(newFlow(call, decision.grant, goal));
        if (answer !== undefined) return answer;
        await sleep(call.runtime, 100 * round);
      }
    }
  }
  throw new SpendInProgressError({ spend });
}

/**
 * The object is in a known state, which may have changed since: the answer of the call, or undefined where this attempt
 * has to go on with the object.
 */
async function lookAgain(
  call: GuardedCall,
  authorization: Authorization,
  goal: Goal,
): Promise<StripeAnswer | undefined> {
  const { name, vendorReference, vendorState } = authorization;
  const intent = await readIntent(call, vendorReference, call.runtime.clock.now() + call.vendorDeadlineMs);
  if (intent === undefined) {
    throw new SpendInProgressError({ spend: call.spend, authorization: name, vendorReference, vendorState });
  }
  if (intent.status === "succeeded") await commitIntent(call, name, intent);
  const ended = intent.status === "canceled";
  const open = intent.status === "requires_payment_method" || intent.status === "requires_confirmation";
  return ended || (open && goal === "confirmed") ? undefined : intent.answer;
}

/** What the caller wants of the object: that it exists, or that it was confirmed. */
export type Goal = "created" | "confirmed";

/** One attempt's way through the steps of a PaymentIntent. */
export interface IntentFlow {
  readonly call: GuardedCall;
  readonly grant: Grant;
  readonly goal: Goal;
  /** The call is itself a confirmation: its parameters are sent as they are. */
  readonly ownConfirmation?: boolean;
  /** A reading of the clock: the end of everything this attempt does at the vendor. */
  readonly deadline: number;
  /** Number of confirm keys used up: the next one is one higher. */
  confirmations: number;
  /** Declines this attempt has seen. */
  declines: number;
}

export function newFlow(call: GuardedCall, grant: Grant, goal: Goal): IntentFlow {
  const deadline = call.runtime.clock.now() + call.vendorDeadlineMs;
  return { call, grant, goal, deadline, confirmations: 0, declines: 0 };
}

/** Takes the object of a grant as far as the goal. Undefined if another attempt has taken over. */
export async function carryThrough(flow: IntentFlow): Promise<StripeAnswer | undefined> {
  const { vendorReference } = flow.grant;
  let next = vendorReference === "" ? await createAndBind(flow) : await look(flow, vendorReference);
  for (let steps = 0; steps < STEPS_MAX; steps += 1) {
    if (next.kind === "answer") return next.answer;
    if (next.kind === "superseded") return undefined;
    next = await advance(flow, next.intent);
  }
  return doubt(flow, "the PaymentIntent did not come to an end");
}

async function doubt(flow: IntentFlow, reason: string, vendorReference?: string): Promise<never> {
  await flow.call.settlements.reportUnknown(flow.grant, reason);
  throw new SpendInDoubtError(reason, errorContext(flow.call, flow.grant, vendorReference));
}

async function look(flow: IntentFlow, reference: string): Promise<Next> {
  const intent = await readIntent(flow.call, reference, flow.deadline);
  return intent === undefined
    ? doubt(flow, "the bound PaymentIntent could not be read", reference)
    : { kind: "intent", intent };
}

async function createAndBind(flow: IntentFlow): Promise<Next> {
  const { call, grant } = flow;
  const result = await sendStep(call, grant, {
    path: "/v1/payment_intents",
    endpoint: call.endpoint,
    body: joinForm(createFields(call.fields, authorizationMetadata(grant), call.manualConfirmation)),
    key: grant.idempotencyKey,
    replay: grant.mayHaveBeenSent,
    first: true,
    sendUntil: grant.holdUntil,
    deadline: flow.deadline,
  });
  if (result.outcome === "too_late") return { kind: "superseded" };
  const { exchange } = result;
  const intent = exchange.answer === undefined ? undefined : parseIntent(exchange.answer);
  if (result.outcome === "charged" && intent !== undefined) return bindOwn(flow, intent);
  const { signal, answer } = exchange;
  if (signal.kind === "answer" && signal.errorType === "idempotency_error") {
    // Nothing is bound, so nothing can have been confirmed: the hold runs out and is given back by itself.
    throw new SpendMismatchError(["body"], errorContext(call, grant));
  }
  const refused = refusalStatus(exchange);
  if (refused !== undefined && answer !== undefined && refused.status < 500 && refused.status >= 400) {
    // A full queue or a wrong API key says nothing about this spend: the next call tries again.
    const turnedAway = [401, 403, 429].includes(refused.status);
    if (turnedAway && result.replay) {
      await call.settlements.reportUnknown(grant, `Stripe did not take the request (${refused.status})`);
    } else if (turnedAway) {
      await call.settlements.void(grant, { evidence: "not_executed", status: refused.status });
    } else {
      await call.settlements.void(grant, { evidence: "vendor_refused", ...refused });
    }
    return { kind: "answer", answer };
  }
  if (result.outcome === "not_charged") await call.settlements.void(grant, { evidence: "never_sent" });
  else await call.settlements.reportUnknown(grant, "no usable answer to the creation of a PaymentIntent");
  throw new VendorUnreachableError("Stripe did not answer the creation of the PaymentIntent, and none was confirmed", {
    ...errorContext(call, grant),
    cause: exchange.error,
  });
}

async function bindOwn(flow: IntentFlow, intent: Intent): Promise<Next> {
  const { call, grant } = flow;
  const bound = await bind(call, grant, intent.id);
  switch (bound.kind) {
    case "bound":
      return { kind: "intent", intent };
    case "other_bound":
      await cancelIntent(call, grant, intent.id, `${grant.idempotencyKey}-cancel-${intent.id}`, flow.deadline);
      return look(flow, bound.vendorReference);
    case "superseded":
      await abandonOwn(flow, intent.id);
      return { kind: "superseded" };
  }
}

/**
 * Another attempt is in charge. It used the same key, so within a day its object is this very one: cancelling it would
 * cancel the other's charge. Only an object that is surely not the other's is cancelled.
 */
async function abandonOwn(flow: IntentFlow, own: string): Promise<void> {
  const { call, grant } = flow;
  const now = await call.controlPlane.getAuthorization(grant.authorization, flow.deadline).catch(() => undefined);
  if (now === undefined || now.vendorReference === "" || now.vendorReference === own) return;
  await cancelIntent(call, grant, own, `${grant.idempotencyKey}-cancel-${own}`, flow.deadline);
}

async function advance(flow: IntentFlow, intent: Intent): Promise<Next> {
  const { call, grant } = flow;
  switch (intent.status) {
    case "succeeded":
      await commitIntent(call, grant.authorization, intent, grant.attemptId);
      return { kind: "answer", answer: intent.answer };
    case "canceled":
      await call.settlements.void(grant, { evidence: "tombstone", vendorReference: intent.id });
      throw new SpendAlreadyFailedError(grant.generation, errorContext(call, grant, intent.id));
    case "requires_confirmation":
    case "requires_payment_method":
      return flow.goal === "created" ? followed(flow, intent) : confirm(flow, intent);
    case "requires_action":
    case "processing":
    case "requires_capture":
      return followed(flow, intent);
    default:
      return doubt(flow, `the PaymentIntent is in the unknown state ${intent.status}`, intent.id);
  }
}

/** Somebody else may finish it: the state is written down, and the caller gets the object. */
async function followed(flow: IntentFlow, intent: Intent): Promise<Next> {
  const bound = await bind(flow.call, flow.grant, intent.id, intent.status);
  return bound.kind === "superseded" ? bound : { kind: "answer", answer: intent.answer };
}

async function confirm(flow: IntentFlow, intent: Intent): Promise<Next> {
  const { call, grant } = flow;
  if (flow.confirmations >= CONFIRMATIONS_MAX) return doubt(flow, "no confirmation was conclusive", intent.id);
  const asked = intent.amount === undefined ? undefined : moneyFrom(intent.amount, intent.currency);
  if (asked !== undefined && flow.ownConfirmation !== true) {
    // It may have been made dearer since it was created.
    const own = { ...grant, vendorReference: intent.id };
    if (!(await holdOrFollowAgain(call, own, call.money, asked, intent.status))) return { kind: "superseded" };
  }
  // Only where a declined object is kept does a later call bring another card; elsewhere the same request is repeated,
  // so that a decline of an earlier attempt comes back as it was.
  const otherCard = call.onDecline === "keep" && grant.vendorReference !== "";
  const number = flow.confirmations + 1;
  const result = await sendStep(call, grant, {
    path: `${intentPath(intent.id)}/confirm`,
    endpoint: "POST /v1/payment_intents/:id/confirm",
    body:
      flow.ownConfirmation === true
        ? call.body
        : joinForm(
            confirmFields(call.fields, { withPaymentMethod: otherCard && intent.status === "requires_payment_method" }),
          ),
    key: `${grant.idempotencyKey}-confirm-${number}`,
    replay: grant.mayHaveBeenSent,
    first: false,
    sendUntil: grant.holdUntil,
    deadline: flow.deadline,
  });
  if (result.outcome === "too_late") {
    await call.settlements.reportUnknown(grant, "the hold ran out before the confirmation");
    return { kind: "superseded" };
  }
  const { exchange } = result;
  const { answer, signal } = exchange;
  if (result.outcome === "charged" && answer !== undefined) return confirmed(flow, intent, answer);
  if (signal.kind === "denied" && !(flow.ownConfirmation === true && result.resent)) {
    return stopped(flow, intent, exchange.error);
  }
  if (signal.kind === "not_sent" && !result.replay) {
    await call.settlements.reportUnknown(grant, "the vendor could not be reached to confirm");
    throw new VendorUnreachableError("Stripe could not be reached to confirm the PaymentIntent", {
      ...errorContext(call, grant, intent.id),
      cause: exchange.error,
    });
  }
  if (result.outcome === "not_charged" && answer !== undefined) return declined(flow, intent, answer, signal);
  return afterUnclearConfirm(flow, intent, exchange);
}

/**
 * Something said no right before the confirmation. What this call created is cancelled, which gives its headroom back;
 * an object that the caller had made before stays as it was.
 */
async function stopped(flow: IntentFlow, intent: Intent, cause: unknown): Promise<Next> {
  const { call, grant } = flow;
  const error = new VendorUnreachableError("the confirmation of the PaymentIntent was stopped before it was sent", {
    ...errorContext(call, grant, intent.id),
    cause,
  });
  if (flow.ownConfirmation === true) {
    await followed(flow, intent);
    throw error;
  }
  const after = await cancelIntent(call, grant, intent.id, `${grant.idempotencyKey}-cancel`, flow.deadline);
  // It was charged after all, by the customer or an earlier confirmation.
  if (after?.status === "succeeded") return { kind: "intent", intent: after };
  if (after?.status === "canceled") {
    await call.settlements.void(grant, { evidence: "tombstone", vendorReference: intent.id });
    throw error;
  }
  return doubt(flow, "a confirmation was stopped, and the cancellation is not proven", intent.id);
}

async function confirmed(flow: IntentFlow, intent: Intent, answer: StripeAnswer): Promise<Next> {
  const after = parseIntent(answer);
  if (after === undefined) return look(flow, intent.id);
  if (after.status === "requires_payment_method" || after.status === "requires_confirmation") {
    return giveUp(flow, after.id, answer);
  }
  return { kind: "intent", intent: after };
}

async function declined(
  flow: IntentFlow,
  intent: Intent,
  answer: StripeAnswer,
  signal: Exchange["signal"],
): Promise<Next> {
  flow.confirmations += 1;
  const cardDecline = answer.status === 402;
  if (flow.call.onDecline === "keep" && cardDecline) {
    // A saved decline of an earlier attempt is a proven refusal of that number; this attempt tries its own card.
    if (signal.kind === "answer" && signal.replayed && flow.declines === 0) return look(flow, intent.id);
    flow.declines += 1;
    // Kept for another card: the next call may go on with it at once.
    await bind(flow.call, flow.grant, intent.id, "requires_payment_method").catch(() =>
      flow.call.settlements.reportUnknown(
        flow.grant,
        "the declined object is kept, and its state could not be written",
      ),
    );
    return { kind: "answer", answer };
  }
  return giveUp(flow, intent.id, answer);
}

/** Cancels the intent, which proves that it will never charge, and hands the vendor's own answer on. */
async function giveUp(flow: IntentFlow, id: string, answer: StripeAnswer): Promise<Next> {
  const { call, grant } = flow;
  const after = await cancelIntent(call, grant, id, `${grant.idempotencyKey}-cancel`, flow.deadline);
  if (after?.status === "canceled") {
    await call.settlements.void(grant, { evidence: "tombstone", vendorReference: id });
    return { kind: "answer", answer };
  }
  // It was charged after all, by the customer or an earlier confirmation.
  if (after?.status === "succeeded") return { kind: "intent", intent: after };
  await call.settlements.reportUnknown(grant, "the vendor refused, and the cancellation is not proven");
  return { kind: "answer", answer };
}

async function afterUnclearConfirm(flow: IntentFlow, intent: Intent, { signal, answer }: Exchange): Promise<Next> {
  const after = await readIntent(flow.call, intent.id, flow.deadline);
  if (after === undefined) return doubt(flow, "the confirmation was not answered and the object not read", intent.id);
  const open = after.status === "requires_confirmation" || after.status === "requires_payment_method";
  if (!open) return { kind: "intent", intent: after };
  if (signal.kind === "answer" && signal.readable && answer !== undefined) {
    // The key was used up by an answer that moved nothing: the object is open, so the next number is free.
    if (signal.errorType === "idempotency_error" || signal.replayed) {
      flow.confirmations += 1;
      return { kind: "intent", intent: after };
    }
    if (signal.status >= 400 && signal.status < 500 && ![409, 424, 429].includes(signal.status)) {
      return giveUp(flow, intent.id, answer);
    }
  }
  return doubt(flow, "the confirmation of the PaymentIntent was not answered", intent.id);
}

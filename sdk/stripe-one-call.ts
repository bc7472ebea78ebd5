import { type Authorization, Direction, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendAlreadyFailedError, SpendInDoubtError, SpendInProgressError, VendorUnreachableError } from "./errors.ts";
import { moneyFrom } from "./money.ts";
import { isStateError } from "./outcome.ts";
import type { Decision, Grant, SpendRequest } from "./spend.ts";
import { amountOf } from "./stripe-amount.ts";
import {
  authorizationMetadata,
  bind,
  continuation,
  errorContext,
  findBound,
  type GuardedCall,
  readCommitted,
  refusalStatus,
  refuseOwnSending,
  requireSpend,
  spendRequest,
  type StripeCall,
  stringField,
} from "./stripe-call.ts";
import { holdAtLeast, isSuperseded, totalOf } from "./stripe-hold.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { FAMILIES, type ObjectFamily } from "./stripe-object.ts";
import type { OneCallPlan } from "./stripe-plan.ts";
import { joinForm, newField } from "./stripe-request.ts";
import {
  commitVerdict,
  compositeReference,
  endObject,
  heldMoney,
  judge,
  objectPath,
  readFamily,
  settleByObject,
} from "./stripe-settle.ts";
import { sendStep, type StepResult } from "./stripe-step.ts";

/**
 * Carries one write out by one request. Its one key is sent again only while the hold is this attempt's and the vendor
 * surely remembers the key; both are measured from before the grant was asked for and looked at right before each
 * write. Throws a HoldfastError where there is no vendor answer to give.
 */
export async function payByOneCall(stripeCall: StripeCall, plan: OneCallPlan): Promise<StripeAnswer> {
  refuseOwnSending(stripeCall);
  const { money, refundOf } = await amountOf(stripeCall, plan.amount);
  const call: GuardedCall = { ...stripeCall, spend: requireSpend(stripeCall), money };
  const request: SpendRequest = {
    ...spendRequest(call, plan.resendSafe ? Settlement.RESEND_SAFE : Settlement.SEND_ONCE),
    direction: plan.direction === "refund" ? Direction.REFUND : Direction.SPEND,
    ...(refundOf === undefined ? {} : { refundOf }),
  };
  const decision = await decide(call, request);
  switch (decision.kind) {
    case "already_committed":
      return readCommitted(call, committedPath(call, plan, decision.authorization), decision.authorization);
    case "unfinished":
      return lookAgain(call, plan, decision.authorization);
    case "granted":
      return send(call, plan, decision.grant);
  }
}

/** Asks; a doubt about an object that is known is settled by looking at the object. */
async function decide(call: GuardedCall, request: SpendRequest): Promise<Decision> {
  try {
    return await call.authorize(request, call.deadline);
  } catch (error) {
    if (!(error instanceof SpendInDoubtError) || !error.vendorReference) throw error;
    const authorization = await findBound(call, error.vendorReference);
    if (authorization === undefined) throw error;
    return { kind: "unfinished", authorization };
  }
}

function familyOf(plan: OneCallPlan): ObjectFamily | undefined {
  return plan.family === undefined ? undefined : FAMILIES[plan.family];
}

/** Where the object of a committed spend is read, or undefined if it cannot be read by itself. */
function committedPath(call: StripeCall, plan: OneCallPlan, { vendorReference }: Authorization): string | undefined {
  const family = familyOf(plan);
  if (family !== undefined) return objectPath(family, vendorReference);
  const id = vendorReference.split("+", 1)[0] ?? "";
  if (id === "") return undefined;
  // A write on an object answers with that object; a new one lives in the collection that was written to.
  const about = call.ids.at(-1);
  if (about === id) return call.path.slice(0, call.path.lastIndexOf(about) + about.length);
  return `${call.path}/${encodeURIComponent(id)}`;
}

/** The vendor object is in a known state, which may have changed since. */
async function lookAgain(call: GuardedCall, plan: OneCallPlan, authorization: Authorization): Promise<StripeAnswer> {
  const { name, vendorReference, vendorState } = authorization;
  const family = familyOf(plan);
  const answer = family === undefined ? undefined : await readFamily(call, family, vendorReference);
  if (family === undefined || answer === undefined) {
    throw new SpendInProgressError({ spend: call.spend, authorization: name, vendorReference, vendorState });
  }
  const verdict = judge(family, answer);
  if (verdict.kind === "charged" || verdict.kind === "obliged") {
    await commitVerdict(call, name, verdict, vendorReference, heldMoney(authorization, call.money));
  }
  if (verdict.kind === "gone") {
    const decision = await call.authorize(continuation(authorization, vendorReference), call.deadline);
    if (decision.kind === "granted") {
      await call.settlements.void(decision.grant, { evidence: "tombstone", vendorReference });
      throw new SpendAlreadyFailedError(authorization.generation, {
        spend: call.spend,
        authorization: name,
      });
    }
  }
  return answer;
}

async function send(call: GuardedCall, plan: OneCallPlan, grant: Grant): Promise<StripeAnswer> {
  const own = plan.metadata ? [newField("metadata[holdfast_authorization]", authorizationMetadata(grant))] : [];
  const result = await sendStep(call, grant, {
    method: call.method,
    path: `${call.path}${call.query}`,
    endpoint: call.endpoint,
    body: own.length === 0 ? call.body : joinForm([...call.fields, ...own]),
    key: grant.idempotencyKey,
    replay: grant.mayHaveBeenSent,
    first: true,
    once: !plan.resendSafe,
    sendUntil: plan.resendSafe ? Math.min(grant.holdUntil, grant.resendUntil) : grant.holdUntil,
    deadline: call.runtime.clock.now() + call.vendorDeadlineMs,
  });
  if (result.outcome === "too_late") {
    if (!grant.mayHaveBeenSent) {
      if (await call.settlements.void(grant, { evidence: "never_sent" })) {
        throw new VendorUnreachableError(
          "this process was stopped until its hold had run out, and sent nothing",
          errorContext(call, grant),
        );
      }
      // This attempt sent nothing, but another one may have taken over meanwhile: only the answer would tell.
      throw new SpendInDoubtError("this process was stopped until its hold had run out", errorContext(call, grant));
    }
    return doubt(call, grant, "the time in which the key may be sent again is over");
  }
  const { exchange } = result;
  const outcome = refusedForState(result) ? "not_charged" : result.outcome;
  if (outcome === "charged" && exchange.answer !== undefined) return carriedOut(call, plan, grant, exchange.answer);
  if (outcome === "unknown") return doubt(call, grant, "Stripe did not say whether it charged", exchange.error);
  const refused = refusalStatus(exchange);
  if (refused !== undefined && exchange.answer !== undefined) {
    const turnedAway = !result.replay && [401, 403, 429].includes(refused.status);
    await call.settlements.void(
      grant,
      turnedAway ? { evidence: "not_executed", status: refused.status } : { evidence: "vendor_refused", ...refused },
    );
    return exchange.answer;
  }
  await call.settlements.void(grant, { evidence: "never_sent" });
  throw new VendorUnreachableError("Stripe could not be reached, nothing was sent", {
    ...errorContext(call, grant),
    cause: exchange.error,
  });
}

/**
 * An error about the state of an object speaks of what others did to it: if nothing was sent before, or if it is the
 * saved answer to what was, this spend moved nothing.
 */
function refusedForState(result: Exclude<StepResult, { outcome: "too_late" }>): boolean {
  const { signal } = result.exchange;
  return (
    isStateError(signal) && signal.kind === "answer" && signal.status === 400 && (!result.replay || signal.replayed)
  );
}

/** The vendor carried the request out: whatever happens here, the caller gets its answer. */
async function carriedOut(
  call: GuardedCall,
  plan: OneCallPlan,
  grant: Grant,
  answer: StripeAnswer,
): Promise<StripeAnswer> {
  const family = familyOf(plan);
  const id = stringField(answer.body, "id");
  if (family === undefined) {
    await commitVerdict(
      call,
      grant.authorization,
      { kind: "obliged" },
      compositeReference(grant, answer),
      call.money,
      grant.attemptId,
    );
    return answer;
  }
  if (id === "") return doubt(call, grant, "Stripe's answer names no object");
  // The saved answer to a creation never changes, and a debit takes days: the object itself is looked at.
  const verdict = judge(family, answer);
  const look = family.readBeforeJudging === true || (verdict.kind === "open" && result(answer) === "replayed");
  const judged = look ? await readFamily(call, family, id) : answer;
  if (judged === undefined) {
    // Bound, it can be looked at again by whoever comes next.
    await bind(call, grant, id, "unread").catch(() =>
      call.settlements.reportUnknown(grant, `the object ${id} could not be read or bound`),
    );
    return answer;
  }
  await coverTotal(call, grant, family, judged);
  await settled(call, grant, family, judged, id);
  return look && family.readBeforeJudging !== true ? judged : answer;
}

/**
 * Taxes and shipping may make the object dearer than what was stated. What the caps have no room for is ended before
 * anybody can pay it.
 */
async function coverTotal(call: GuardedCall, grant: Grant, family: ObjectFamily, answer: StripeAnswer): Promise<void> {
  const currency = stringField(answer.body, "currency");
  // A link does not say what it may bring in, but in which currency.
  const other = currency === "" || currency === call.money.currency ? undefined : moneyFrom(1n, currency);
  const total = totalOf(family, answer) ?? other;
  if (total === undefined || judge(family, answer).kind !== "open") return;
  const id = stringField(answer.body, "id");
  try {
    await holdAtLeast(call, { ...grant, lease: undefined }, call.money, total);
  } catch (error) {
    if (isSuperseded(error)) return;
    if (await endObject(call, grant, family, answer)) {
      await bind(call, grant, id, "ended").catch(() => undefined);
      await call.settlements.void(grant, { evidence: "tombstone", vendorReference: id });
    } else {
      await call.settlements.reportUnknown(
        grant,
        `the object ${id} asks for more than is held, and could not be ended`,
      );
    }
    throw error;
  }
}

function result(answer: StripeAnswer): "replayed" | "fresh" {
  return answer.headers["idempotent-replayed"] === "true" ? "replayed" : "fresh";
}

async function settled(
  call: GuardedCall,
  grant: Grant,
  family: ObjectFamily,
  answer: StripeAnswer,
  id: string,
): Promise<void> {
  try {
    const outcome = await settleByObject(call, grant, family, answer, call.money);
    if (outcome.kind === "unclear") {
      await call.settlements.reportUnknown(grant, `the object ${id} is in the unknown state ${outcome.state}`);
    }
  } catch {
    // The object exists and the caller must learn of it; the spend waits in doubt until it is looked at again.
    await call.settlements.reportUnknown(grant, `the object ${id} could not be bound`);
  }
}

async function doubt(call: GuardedCall, grant: Grant, reason: string, cause?: unknown): Promise<never> {
  await call.settlements.reportUnknown(grant, reason);
  throw new SpendInDoubtError(reason, { spend: call.spend, authorization: grant.authorization, cause });
}

import { SpendInDoubtError, SpendUnsupportedError, VendorUnreachableError } from "./errors.ts";
import { type DecimalMoney, moneyFrom } from "./money.ts";
import type { Grant } from "./spend.ts";
import { possess } from "./stripe-bound.ts";
import {
  errorContext,
  findBound,
  type GuardedCall,
  readCommitted,
  readObject,
  refuseOwnSending,
  type StripeCall,
  stringField,
} from "./stripe-call.ts";
import { holdAtLeast, holdOrFollowAgain, isSuperseded, totalOf } from "./stripe-hold.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { carryThrough, newFlow } from "./stripe-payment-intent.ts";
import { FAMILIES, minor, type ObjectFamily, text } from "./stripe-object.ts";
import type { Plan, StepName } from "./stripe-plan.ts";
import { fieldValue } from "./stripe-request.ts";
import { isRecord } from "./stripe-send.ts";
import { endObject, judge, objectPath, readFamily, settleByObject } from "./stripe-settle.ts";
import { sendStep, type StepResult } from "./stripe-step.ts";

type StepPlan = Extract<Plan, { flow: "step" }>;

/**
 * Carries out one step of a vendor object under the authorization that it is bound to. The object itself is the guard
 * against a second movement: it is captured or paid once. So a step whose key was used up by a refusal gets the next
 * number, and a step that was not answered is settled by reading the object.
 */
export async function payByStep(call: StripeCall, plan: StepPlan): Promise<StripeAnswer> {
  if (plan.step === "pay" && fieldValue(call.fields, "paid_out_of_band") === "true") return call.passOn();
  refuseOwnSending(call);
  refusePartialCapture(call);
  refuseUnusableAmount(call);
  const { family, reference } = await objectOf(call, plan);
  return possess(call, family, reference, async (possession) => {
    if (possession.kind === "committed") {
      return readCommitted(call, committedPath(call, plan, family, reference), possession.authorization);
    }
    const { grant, held } = possession;
    if (plan.step === "confirm") return confirm(possession.call, grant, held);
    return takeStep({ call: possession.call, grant, held, family, reference, name: plan.step });
  });
}

/** A capture that keeps more to capture can be told from its own retry only by a name, which Stripe has none for. */
function refusePartialCapture(call: StripeCall): void {
  if (fieldValue(call.fields, "final_capture") !== "false") return;
  throw new SpendUnsupportedError(
    call.endpoint,
    "with final_capture: false captures again when it is retried",
    "Capture once, up to the whole amount; charge the rest as a spend of its own.",
  );
}

/** An amount that only one side could read must not decide what is held. */
function refuseUnusableAmount({ endpoint, fields }: StripeCall): void {
  for (const name of ["amount", "amount_to_capture", "amount_to_confirm"]) {
    const amount = fieldValue(fields, name);
    if (amount === undefined || /^[1-9][0-9]{0,14}$/.test(amount)) continue;
    throw new SpendUnsupportedError(endpoint, `has no usable ${name}`, "State a whole number above 0.");
  }
}

/** The object whose money the step moves. A charge of a PaymentIntent belongs to the PaymentIntent. */
async function objectOf(call: StripeCall, plan: StepPlan): Promise<{ family: ObjectFamily; reference: string }> {
  const family = FAMILIES[plan.family];
  const id = call.endpoint.includes("/readers/") ? fieldValue(call.fields, "payment_intent") : call.ids[0];
  if (id === undefined || id === "") {
    throw new SpendUnsupportedError(call.endpoint, "names no payment_intent", "Name the object whose money it moves.");
  }
  if (plan.family !== "charge") return { family, reference: id };
  const answer = await readFamily(call, family, id);
  if (answer === undefined && (await findBound(call, id)) === undefined) {
    // It may belong to the spend of a PaymentIntent.
    throw new SpendUnsupportedError(call.endpoint, "is about a charge that could not be read", "Try again.");
  }
  const intent = isRecord(answer?.body) ? answer.body["payment_intent"] : undefined;
  const ofIntent = typeof intent === "string" ? intent : isRecord(intent) ? text(intent, "id") : "";
  return ofIntent === "" ? { family, reference: id } : { family: FAMILIES.payment_intent, reference: ofIntent };
}

/** Where the object that the caller expects in the answer is read. */
function committedPath(call: StripeCall, plan: StepPlan, family: ObjectFamily, reference: string): string | undefined {
  if (call.endpoint.includes("/readers/")) return `/v1/terminal/readers/${encodeURIComponent(call.ids[0] ?? "")}`;
  return plan.family === "charge" ? objectPath(FAMILIES.charge, call.ids[0] ?? "") : objectPath(family, reference);
}

/** The flow of a created-and-confirmed PaymentIntent, from its confirmation on. */
async function confirm(call: GuardedCall, grant: Grant, held: DecimalMoney): Promise<StripeAnswer | undefined> {
  const intent = await readFamily(call, FAMILIES.payment_intent, grant.vendorReference);
  const asked = fieldValue(call.fields, "amount_to_confirm");
  if (intent === undefined) {
    // Read later, its amount would be confirmed without having been held.
    await call.settlements.reportUnknown(grant, "the object could not be read");
    throw new SpendInDoubtError("the object could not be read", errorContext(call, grant, grant.vendorReference));
  }
  if (isRecord(intent.body)) {
    const amount = asked === undefined ? minor(intent.body, "amount") : BigInt(asked);
    const money = amount === undefined ? undefined : moneyFrom(amount, text(intent.body, "currency"));
    const status = stringField(intent.body, "status");
    if (money !== undefined && !(await holdOrFollowAgain(call, grant, held, money, status))) return undefined;
  }
  return carryThrough({ ...newFlow(call, grant, "confirmed"), ownConfirmation: true });
}

interface StepAt {
  readonly call: GuardedCall;
  readonly grant: Grant;
  readonly held: DecimalMoney;
  readonly family: ObjectFamily;
  readonly reference: string;
  readonly name: StepName;
}

const NUMBERS_MAX = 10;

async function takeStep(step: StepAt): Promise<StripeAnswer | undefined> {
  const { call, grant, family, reference } = step;
  const read = await readFamily(call, family, reference);
  if (read === undefined) return doubt(step, "the object could not be read");
  const prepared = step.name === "pay" && isDraft(read) ? await finalizeFirst(step) : { object: read };
  if ("refusal" in prepared) return prepared.refusal;
  const before = prepared.object;
  const verdict = judge(family, before);
  // It was finished meanwhile, by the customer or by a request whose answer was lost.
  if (verdict.kind === "charged" || verdict.kind === "gone") return finished(step, before);
  const wanted = wantedMoney(step, before);
  const status = stringField(before.body, "status");
  if (wanted !== undefined && !(await holdOrFollowAgain(call, grant, step.held, wanted, status))) return undefined;
  const result = await sendNumbered(step);
  if (result.outcome === "too_late") {
    await call.settlements.reportUnknown(grant, `the hold ran out before the step ${step.name}`);
    return undefined;
  }
  const { exchange, outcome } = result;
  const { answer } = exchange;
  if (outcome === "charged" && answer !== undefined) return settled(step, answer);
  if (outcome === "not_charged" && answer !== undefined) {
    // Refused, so the object is where it was; what the caller gets is the vendor's own error.
    await followed(step);
    return answer;
  }
  // Stopped, it stays as it is, whatever an earlier attempt may still do: the hold covers that.
  const stopped = isStopped(result);
  if (stopped || (exchange.signal.kind === "not_sent" && !result.replay)) {
    await followed(step);
    const why = stopped ? `the step ${step.name} was stopped before it was sent` : undefined;
    throw new VendorUnreachableError(why ?? `Stripe could not be reached for the step ${step.name}`, {
      ...errorContext(call, grant, reference),
      cause: exchange.error,
    });
  }
  return afterUnclear(step, before, answer);
}

/**
 * Paying a draft finalizes it first, which adds taxes and what the customer owes: that is done as a step of its own, so
 * that the price is known before it is paid.
 */
async function finalizeFirst(
  step: StepAt,
): Promise<{ readonly object: StripeAnswer } | { readonly refusal: StripeAnswer }> {
  const { call, reference } = step;
  const result = await sendNumbered(step, {
    method: "POST",
    path: `${call.path.slice(0, call.path.lastIndexOf("/"))}/finalize`,
    endpoint: "POST /v1/invoices/:id/finalize",
    body: "",
    name: "finalize",
  });
  const object = await readFamily(call, step.family, reference);
  if (object !== undefined && !isDraft(object)) return { object };
  const answer = result.outcome === "too_late" ? undefined : result.exchange.answer;
  if (object !== undefined && result.outcome !== "too_late" && isStopped(result)) {
    await settle(step, object);
    throw new VendorUnreachableError("the step finalize was stopped before it was sent", {
      ...errorContext(step.call, step.grant, reference),
      cause: result.exchange.error,
    });
  }
  if (object === undefined || result.outcome !== "not_charged" || answer === undefined) {
    return doubt(step, "the draft could not be finalized before it is paid");
  }
  await settle(step, object);
  return { refusal: answer };
}

/** It was kept from being sent, and this attempt had not sent it before. */
function isStopped({ exchange, resent }: Exclude<StepResult, { outcome: "too_late" }>): boolean {
  return exchange.signal.kind === "denied" && !resent;
}

function isDraft({ body }: StripeAnswer): boolean {
  return stringField(body, "status") === "draft";
}

/** What the step asks the object to move in all, where that is known before. */
function wantedMoney({ call, family, name }: StepAt, before: StripeAnswer): DecimalMoney | undefined {
  if (!isRecord(before.body)) return undefined;
  const currency = text(before.body, "currency");
  const asked = fieldValue(
    call.fields,
    name === "capture" && family !== FAMILIES.charge ? "amount_to_capture" : "amount",
  );
  if (asked !== undefined) return moneyFrom(BigInt(asked), currency);
  if (name === "capture") {
    const capturable = minor(before.body, "amount_capturable", "amount");
    return capturable === undefined ? undefined : moneyFrom(capturable, currency);
  }
  return totalOf(family, before);
}

interface NumberedRequest {
  readonly method: "POST" | "DELETE";
  readonly path: string;
  readonly endpoint: string;
  readonly body: string;
  /** Tells it from the other steps of the object. */
  readonly name: string;
}

function ownRequest(step: StepAt): NumberedRequest {
  const { method, path, query, endpoint, body } = step.call;
  return { method, path: `${path}${query}`, endpoint, body, name: stepKey(step) };
}

/** Sends the step under the first of its numbers that no refusal of an earlier attempt has used up. */
async function sendNumbered(step: StepAt, request: NumberedRequest = ownRequest(step)): Promise<StepResult> {
  const { call, grant } = step;
  const { name, ...send } = request;
  const deadline = call.runtime.clock.now() + call.vendorDeadlineMs;
  let result: StepResult = { outcome: "too_late" };
  for (let number = 1; number <= NUMBERS_MAX; number += 1) {
    result = await sendStep(call, grant, {
      ...send,
      key: `${grant.idempotencyKey}-${name}-${number}`,
      replay: grant.mayHaveBeenSent,
      first: false,
      sendUntil: grant.holdUntil,
      deadline,
    });
    if (!usedUp(result) && !startedBefore(step, result)) return result;
  }
  return result;
}

/** Two increments to different totals are two steps; two to the same total are one. */
function stepKey({ call, name }: StepAt): string {
  return name === "increment" ? `${name}-${fieldValue(call.fields, "amount") ?? ""}` : name;
}

/** An earlier attempt's refusal, or other parameters, are saved under the key: the object is unmoved, the key is not. */
function usedUp(result: StepResult): boolean {
  if (result.outcome === "too_late") return false;
  const { signal } = result.exchange;
  if (signal.kind !== "answer" || !signal.readable) return false;
  if (signal.errorType === "idempotency_error") return true;
  return result.outcome === "not_charged" && signal.replayed;
}

/**
 * A reader is only started by the answer: an earlier start is over by now, or the reader says that it is busy. Whether
 * the card is asked for again or not, the PaymentIntent charges once.
 */
function startedBefore({ name }: StepAt, result: StepResult): boolean {
  if (result.outcome !== "charged" || (name !== "process" && name !== "collect")) return false;
  const { signal } = result.exchange;
  return signal.kind === "answer" && signal.replayed && !result.resent;
}

/** The step was carried out. A terminal answers with its reader, so the object itself is read. */
async function settled(step: StepAt, answer: StripeAnswer): Promise<StripeAnswer | undefined> {
  const { family, reference } = step;
  const own = stringField(answer.body, "id") === reference;
  const object = own ? answer : await readFamily(step.call, family, reference);
  if (object === undefined) {
    await step.call.settlements.reportUnknown(step.grant, `the object ${reference} could not be read`);
    return answer;
  }
  await coverTotal(step, object);
  return (await settle(step, object)) === "superseded" ? undefined : answer;
}

/** Finalizing adds taxes: what the caps have no room for is ended before anybody can pay it. */
async function coverTotal(step: StepAt, object: StripeAnswer): Promise<void> {
  const { call, grant, family, reference } = step;
  const total = step.name === "finalize" && judge(family, object).kind === "open" ? totalOf(family, object) : undefined;
  if (total === undefined) return;
  try {
    await holdAtLeast(call, { ...grant, lease: undefined }, step.held, total);
  } catch (error) {
    if (isSuperseded(error)) return;
    if (await endObject(call, grant, family, object)) {
      await call.settlements.void(grant, { evidence: "tombstone", vendorReference: reference });
    } else await followed(step);
    throw error;
  }
}

/** The object is at its end without this step. */
async function finished(step: StepAt, object: StripeAnswer): Promise<StripeAnswer | undefined> {
  const how = await settle(step, object);
  if (how === "superseded") return undefined;
  if (how === "committed" && stringField(object.body, "id") === step.call.ids[0]) return object;
  // The vendor's own error about its state is what the caller would have got.
  return how === "committed" ? readCaller(step) : step.call.passOn();
}

async function readCaller(step: StepAt): Promise<StripeAnswer> {
  const { call } = step;
  const id = call.ids[0] ?? "";
  const path = call.path.slice(0, call.path.indexOf(id) + id.length);
  return (await readObject(call, path)) ?? call.passOn();
}

async function settle(step: StepAt, object: StripeAnswer): Promise<"committed" | "followed" | "voided" | "superseded"> {
  const { call, grant, family, held } = step;
  const outcome = await settleByObject(call, grant, family, object, held);
  if (outcome.kind !== "unclear") return outcome.kind;
  return doubt(step, `the object is in the unknown state ${outcome.state}`);
}

async function followed(step: StepAt): Promise<void> {
  const now = await readFamily(step.call, step.family, step.reference);
  if (now === undefined) {
    await step.call.settlements.reportUnknown(step.grant, `the object ${step.reference} could not be read`);
    return;
  }
  await settle(step, now);
}

/** Not answered: the object says whether the step was carried out. */
async function afterUnclear(
  step: StepAt,
  before: StripeAnswer,
  answer: StripeAnswer | undefined,
): Promise<StripeAnswer | undefined> {
  const { call, family, reference } = step;
  const after = await readFamily(call, family, reference);
  if (after === undefined) return doubt(step, `the step ${step.name} was not answered and the object not read`);
  if (judge(family, after).kind !== "open" || moved(before, after)) {
    return (await settle(step, after)) === "superseded" ? undefined : after;
  }
  // A definite error about the object's state, which was looked at: the caller gets it, and the object is followed.
  const status = answer?.status ?? 0;
  if (answer !== undefined && status >= 400 && status < 500 && ![409, 424, 429].includes(status)) {
    await settle(step, after);
    return answer;
  }
  return doubt(step, `the step ${step.name} was not answered`);
}

function moved(before: StripeAnswer, after: StripeAnswer): boolean {
  const seen = ({ body }: StripeAnswer): string =>
    isRecord(body)
      ? JSON.stringify([body["status"], body["amount"], body["amount_received"], body["amount_paid"]])
      : "";
  return seen(before) !== seen(after);
}

async function doubt(step: StepAt, reason: string): Promise<never> {
  const { call, grant, reference } = step;
  await call.settlements.reportUnknown(grant, reason);
  throw new SpendInDoubtError(reason, errorContext(call, grant, reference));
}

import { type Authorization, AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendUnsupportedError } from "./errors.ts";
import { moneyFrom } from "./money.ts";
import type { Grant } from "./spend.ts";
import { statedMost } from "./stripe-amount.ts";
import { continuation, findBound, type StripeCall } from "./stripe-call.ts";
import { holdAtLeast, totalOf } from "./stripe-hold.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { FAMILIES, type ObjectFamily, text } from "./stripe-object.ts";
import { payByOneCall } from "./stripe-one-call.ts";
import type { Plan } from "./stripe-plan.ts";
import { fieldValue, type FormField } from "./stripe-request.ts";
import { isRecord } from "./stripe-send.ts";
import { commitVerdict, endObject, heldMoney, judge, readFamily } from "./stripe-settle.ts";
import { sendStep } from "./stripe-step.ts";

type EditPlan = Extract<Plan, { flow: "edit" }>;
type ReleasePlan = Extract<Plan, { flow: "release" }>;

/** Changes an object that may move money later. What it will cost is held before, and checked after. */
export async function payByEdit(call: StripeCall, plan: EditPlan): Promise<StripeAnswer> {
  const reference = call.ids[0] ?? "";
  const bound = await findBound(call, reference);
  if (bound === undefined) return payByOneCall(call, plan.otherwise);
  const family = FAMILIES[plan.family];
  if (!isOpen(bound)) {
    // A settled object takes no more money; Stripe itself refuses what would change that, but for a link.
    const reopens = plan.family === "payment_link" && !closes(call);
    return reopens ? payByOneCall(call, plan.otherwise) : call.passOn();
  }
  if (plan.family === "payment_link" && statedMost(call) === undefined && !only(call.fields, "active")) {
    throw new SpendUnsupportedError(
      call.endpoint,
      "changes what a link may bring in, which only the caller knows",
      'State the most it may bring in: spend: { …, upTo: { amount: "49.00", currency: "usd" } }.',
    );
  }
  const held = heldMoney(bound, call.spend?.upTo ?? { currency: "", amount: "0" });
  const wanted = await wantedMoney(call, family, reference);
  if (wanted !== undefined) {
    await holdAtLeast(call, { authorization: bound.name, attemptId: "", lease: call.lease }, held, wanted);
  }
  const answer = await call.passOn();
  if (answer.status >= 200 && answer.status <= 299) await checkAfter(call, family, bound, reference, answer);
  return answer;
}

function isOpen({ state }: Authorization): boolean {
  return state === AuthorizationState.HELD || state === AuthorizationState.IN_DOUBT;
}

function closes({ fields }: StripeCall): boolean {
  return fieldValue(fields, "active") === "false" && only(fields, "active", ...LINK_TEXTS);
}

/** The new total that the request names, or that the caller states. */
async function wantedMoney(call: StripeCall, family: ObjectFamily, reference: string) {
  const amount = fieldValue(call.fields, "amount");
  const upTo = statedMost(call);
  if (amount === undefined && fieldValue(call.fields, "currency") === undefined) return upTo;
  if (amount !== undefined && !/^[1-9][0-9]{0,14}$/.test(amount)) {
    throw new SpendUnsupportedError(call.endpoint, "has no usable amount", "State a whole number above 0.");
  }
  const object = await readFamily(call, family, reference);
  const currency = fieldValue(call.fields, "currency") ?? (isRecord(object?.body) ? text(object.body, "currency") : "");
  const total = isRecord(object?.body) ? family.total?.(object.body) : undefined;
  const minor = amount === undefined ? total : BigInt(amount);
  const money = minor === undefined ? undefined : moneyFrom(minor, currency);
  if (money !== undefined) return money;
  throw new SpendUnsupportedError(call.endpoint, "is about an object that could not be read", "Try again.");
}

/** An edit whose price only Stripe computes may have made the object dearer than what is held. */
async function checkAfter(
  call: StripeCall,
  family: ObjectFamily,
  bound: Authorization,
  reference: string,
  answer: StripeAnswer,
): Promise<void> {
  const own = isRecord(answer.body) && text(answer.body, "id") === reference;
  const object = own ? answer : await readFamily(call, family, reference);
  if (object === undefined) return;
  await settleEnded(call, family, bound, object);
  const total = judge(family, object).kind === "open" ? totalOf(family, object) : undefined;
  if (total === undefined) return;
  try {
    await holdAtLeast(call, { authorization: bound.name, attemptId: "" }, heldMoney(bound, total), total);
  } catch (error) {
    await stop(call, family, bound, object);
    throw error;
  }
}

/**
 * The object asks for more than is held. What others may pay is ended; a draft stays, but Stripe must not finish it by
 * itself, and the guard does not before the caps have room.
 */
async function stop(call: StripeCall, family: ObjectFamily, bound: Authorization, object: StripeAnswer): Promise<void> {
  const grant = continuedGrant(bound);
  const body = isRecord(object.body) ? object.body : {};
  if (family === FAMILIES.invoice && text(body, "status") === "draft") {
    if (body["auto_advance"] !== false) await keepDraft(call, grant);
  } else if (await endObject(call, grant, family, object)) {
    await call.settlements.void(grant, { evidence: "tombstone", vendorReference: bound.vendorReference });
  }
}

async function keepDraft(call: StripeCall, grant: Grant): Promise<void> {
  await sendStep(call, grant, {
    path: `/v1/invoices/${encodeURIComponent(grant.vendorReference)}`,
    endpoint: "POST /v1/invoices/:id",
    body: "auto_advance=false",
    // The same draft may have to be kept more than once, which one saved answer would not do.
    key: `holdfast-keep-${call.runtime.random.hex128()}`,
    replay: false,
    first: false,
    ends: true,
    sendUntil: Number.POSITIVE_INFINITY,
    deadline: call.runtime.clock.now() + call.vendorDeadlineMs,
  });
}

/** For writes that move no money: they need neither an attempt nor a running hold. */
function continuedGrant(bound: Authorization): Grant {
  const { name, generation, idempotencyKey, vendorReference } = bound;
  return {
    spend: continuation(bound, vendorReference).spend,
    authorization: name,
    generation,
    attemptId: "",
    idempotencyKey,
    mayHaveBeenSent: true,
    vendorReference,
    holdUntil: Number.POSITIVE_INFINITY,
    resendUntil: Number.POSITIVE_INFINITY,
    lease: undefined,
  };
}

/** Passes a write on that ends objects, and settles the spend of an object that has come to its end. */
export async function payByRelease(call: StripeCall, plan: ReleasePlan): Promise<StripeAnswer> {
  const answer = await call.passOn();
  if (answer.status < 200 || answer.status > 299) return answer;
  const family = FAMILIES[plan.family];
  const { kind } = judge(family, answer);
  if (kind === "open" || kind === "unclear") return answer;
  try {
    const bound = await findBound(call, call.ids[0] ?? "");
    if (bound !== undefined && isOpen(bound)) await settleEnded(call, family, bound, answer);
  } catch {
    // The object is at its end whether this is written down now or when its spend is looked at next.
  }
  return answer;
}

async function settleEnded(
  call: StripeCall,
  family: ObjectFamily,
  bound: Authorization,
  object: StripeAnswer,
): Promise<void> {
  const verdict = judge(family, object);
  const { name, vendorReference } = bound;
  if (verdict.kind === "gone") {
    await call.settlements.void({ authorization: name, attemptId: "" }, { evidence: "tombstone", vendorReference });
  } else if (verdict.kind === "charged" || verdict.kind === "obliged") {
    await commitVerdict(call, name, verdict, vendorReference, heldMoney(bound, { currency: "", amount: "0" }));
  }
}

const LINK_TEXTS = ["metadata", "expand", "after_completion", "custom_text", "inactive_message", "submit_type"];

// What a customer owes or is owed, and in old versions a subscription.
const CUSTOMER_MONEY = ["account_balance", "balance", "cash_balance", "plan"];

/** Fields of a write that say nothing about money, by its endpoint. */
const HARMLESS: Readonly<Record<string, (fields: readonly FormField[]) => boolean>> = {
  "POST /v1/payment_intents/:id": (fields) => !names(fields, "amount", "currency", "application_fee_amount"),
  "POST /v1/invoices/:id": (fields) =>
    only(fields, "metadata", "expand", "description", "footer", "custom_fields", "number", "statement_descriptor"),
  "POST /v1/checkout/sessions/:id": (fields) => only(fields, "metadata", "expand"),
  "POST /v1/payment_links/:id": (fields) => only(fields, ...LINK_TEXTS),
  "POST /v1/quotes/:id": (fields) => only(fields, "metadata", "expand", "description", "footer", "header"),
  "POST /v1/subscriptions/:id": (fields) =>
    only(fields, "metadata", "expand", "description", "cancel_at_period_end", "cancellation_details"),
  "POST /v1/subscription_schedules/:id": (fields) => only(fields, "metadata", "expand"),
  "POST /v1/subscription_items/:id": (fields) => only(fields, "metadata", "expand"),
  "POST /v1/issuing/disputes/:id": (fields) => only(fields, "metadata", "expand", "evidence"),
  // Without these a cancellation ends the subscription and bills nothing.
  "DELETE /v1/subscriptions/:id": (fields) => !["invoice_now", "prorate"].some((name) => isTrue(fields, name)),
  "DELETE /v1/customers/:id/subscriptions/:id": (fields) =>
    !["invoice_now", "prorate"].some((name) => isTrue(fields, name)),
  // A new source makes Stripe try every past-due invoice again; a balance is money.
  "POST /v1/customers/:id": (fields) => !names(fields, "source", "card", "bank_account", ...CUSTOMER_MONEY),
  "POST /v1/customers": (fields) => !names(fields, ...CUSTOMER_MONEY),
  // Where an account's remaining money goes.
  "POST /v1/treasury/financial_accounts/:id": (fields) => !names(fields, "forwarding_settings"),
  "POST /v1/treasury/financial_accounts/:id/close": (fields) => !names(fields, "forwarding_settings"),
};

/** True if the parameters of a write that can move money only change what has nothing to do with it. */
export function isHarmless(endpoint: string, fields: readonly FormField[]): boolean {
  return HARMLESS[endpoint]?.(fields) ?? false;
}

function baseOf(key: string): string {
  return key.split("[", 1)[0] ?? key;
}

function only(fields: readonly FormField[], ...allowed: readonly string[]): boolean {
  return fields.every(({ key }) => allowed.includes(baseOf(key)));
}

function names(fields: readonly FormField[], ...listed: readonly string[]): boolean {
  return fields.some(({ key }) => listed.includes(baseOf(key)));
}

function isTrue(fields: readonly FormField[], name: string): boolean {
  return fields.some(({ key, value }) => baseOf(key) === name && value !== "false");
}

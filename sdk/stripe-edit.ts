import { type Authorization, AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendUnsupportedError } from "./errors.ts";
import { findBound, moneyFrom, type StripeCall } from "./stripe-call.ts";
import { holdAtLeast, totalOf } from "./stripe-hold.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { FAMILIES, type ObjectFamily, text } from "./stripe-object.ts";
import { payByOneCall } from "./stripe-one-call.ts";
import type { Plan } from "./stripe-plan.ts";
import { fieldValue, type FormField } from "./stripe-request.ts";
import { isRecord } from "./stripe-send.ts";
import { commitVerdict, heldMoney, judge, readFamily } from "./stripe-settle.ts";

type EditPlan = Extract<Plan, { flow: "edit" }>;
type ReleasePlan = Extract<Plan, { flow: "release" }>;

/** Changes an object that may move money later. What it will cost is held before, and checked after. */
export async function payByEdit(call: StripeCall, plan: EditPlan): Promise<StripeAnswer> {
  const reference = call.ids[0] ?? "";
  const bound = await findBound(call, reference);
  if (bound === undefined) return payByOneCall(call, plan.otherwise);
  // A settled object takes no more money; Stripe itself refuses what would change that.
  if (!isOpen(bound)) return call.passOn();
  const family = FAMILIES[plan.family];
  const held = heldMoney(bound, call.spend?.upTo ?? { currency: "", amount: "0" });
  const wanted = await wantedMoney(call, family, reference);
  if (wanted !== undefined) await holdAtLeast(call, bound.name, held, wanted);
  const answer = await call.passOn();
  if (answer.status >= 200 && answer.status <= 299) await checkAfter(call, family, bound, reference, answer);
  return answer;
}

function isOpen({ state }: Authorization): boolean {
  return state === AuthorizationState.HELD || state === AuthorizationState.IN_DOUBT;
}

/** The new total that the request names, or that the caller states. */
async function wantedMoney(call: StripeCall, family: ObjectFamily, reference: string) {
  const amount = fieldValue(call.fields, "amount");
  if (amount === undefined) return call.spend?.upTo;
  if (!/^[1-9][0-9]{0,14}$/.test(amount)) {
    throw new SpendUnsupportedError(call.endpoint, `has no usable amount (${amount})`, "State a whole number above 0.");
  }
  const object = await readFamily(call, family, reference);
  const currency = fieldValue(call.fields, "currency") ?? (isRecord(object?.body) ? text(object.body, "currency") : "");
  const money = moneyFrom(BigInt(amount), currency);
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
  if (total !== undefined) await holdAtLeast(call, bound.name, heldMoney(bound, total), total);
}

/** Passes a write on that ends objects, and settles the spend of an object that has come to its end. */
export async function payByRelease(call: StripeCall, plan: ReleasePlan): Promise<StripeAnswer> {
  const answer = await call.passOn();
  if (answer.status < 200 || answer.status > 299) return answer;
  const family = FAMILIES[plan.family];
  const deleted = isRecord(answer.body) && answer.body["deleted"] === true;
  const ended = deleted ? { ...answer, body: { ...(answer.body as object), status: "deleted" } } : answer;
  const kind = judge(family, ended).kind;
  if (kind !== "gone" && kind !== "obliged") return answer;
  try {
    const bound = await findBound(call, call.ids[0] ?? "");
    if (bound !== undefined && isOpen(bound)) await settleEnded(call, family, bound, ended);
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

/** Fields of a write that say nothing about money, by its endpoint. */
const HARMLESS: Readonly<Record<string, (fields: readonly FormField[]) => boolean>> = {
  "POST /v1/payment_intents/:id": (fields) => !names(fields, "amount", "currency", "application_fee_amount"),
  "POST /v1/invoices/:id": (fields) =>
    only(fields, "metadata", "expand", "description", "footer", "custom_fields", "number", "statement_descriptor"),
  "POST /v1/checkout/sessions/:id": (fields) => only(fields, "metadata", "expand"),
  "POST /v1/payment_links/:id": (fields) => only(fields, "metadata", "expand", "after_completion", "custom_text"),
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
const LINK_TEXTS = ["metadata", "expand", "after_completion", "custom_text", "inactive_message", "submit_type"];

// What a customer owes or is owed, and in old versions a subscription.
const CUSTOMER_MONEY = ["account_balance", "balance", "cash_balance", "plan"];


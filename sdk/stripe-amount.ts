import { type Authorization, AuthorizationState, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { checkUpTo } from "./context.ts";
import { toDecimalMoney } from "./convert.ts";
import { SpendUnsupportedError } from "./errors.ts";
import {
  type DecimalMoney,
  fromStripeChargeAmount,
  fromStripePayoutAmount,
  toStripeAmount,
  moneyFrom,
} from "./money.ts";
import { translateFailure } from "./refusal.ts";
import { authorizationName } from "./stable-key.ts";
import { errorContext, requireSpend, type StripeCall } from "./stripe-call.ts";
import { sourceOf } from "./stripe-amount-sources.ts";
import { previewAmount } from "./stripe-preview.ts";
import type { AmountSource } from "./stripe-plan.ts";
import { fieldValue } from "./stripe-request.ts";

/** What a spend will hold, and of which charge money is given back. */
export interface SpendAmount {
  readonly money: DecimalMoney;
  /** The vendor reference of the charge, for money that is given back. */
  readonly refundOf?: string;
}

/** Finds out what a call will cost before it is made. Throws a typed error if that is not certain. */
export async function amountOf(call: StripeCall, source: AmountSource): Promise<SpendAmount> {
  requireSpend(call);
  const upTo = statedMost(call);
  if (source === "body") {
    const stated = bodyMoney(call);
    if (stated !== undefined) return { money: within(call, stated) };
  }
  if (source === "object") return withinObject(call, await objectAmount(call));
  if (upTo !== undefined) return { money: upTo };
  if (source === "preview") return { money: (await recordedMoney(call)) ?? (await previewAmount(call)) };
  throw new SpendUnsupportedError(
    call.endpoint,
    "has a price that only Stripe computes",
    'State the most it may cost: spend: { …, upTo: { amount: "49.00", currency: "usd" } }.',
  );
}

/** The most that the caller states for the call. Throws on one that no amount of Stripe's can be compared with. */
export function statedMost(call: StripeCall): DecimalMoney | undefined {
  const upTo = call.spend?.upTo;
  if (upTo === undefined) return undefined;
  checkUpTo(upTo);
  try {
    toStripeAmount(upTo);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : "";
    const error = new SpendUnsupportedError(call.endpoint, "has an upTo that Stripe's currency cannot carry", why);
    error.cause = cause;
    throw error;
  }
  return upTo;
}

/** Refuses an amount above what the caller stated for the call. */
export function within(call: StripeCall, money: DecimalMoney): DecimalMoney {
  const upTo = call.spend?.upTo;
  if (upTo === undefined) return money;
  const more = upTo.currency !== money.currency || toStripeAmount(money) > toStripeAmount(upTo);
  if (!more) return money;
  throw new SpendUnsupportedError(
    call.endpoint,
    `asks for ${money.amount} ${money.currency}, more than the stated upTo of ${upTo.amount} ${upTo.currency}`,
    "Correct one of the two.",
  );
}

function withinObject(call: StripeCall, amount: SpendAmount): SpendAmount {
  return { ...amount, money: within(call, amount.money) };
}

const AMOUNT = /^-?[1-9][0-9]{0,14}$/;
const NEGATIVE_ALLOWED = new Set([
  "POST /v1/customers/:id/balance_transactions",
  "POST /v1/invoiceitems",
  "POST /v1/invoiceitems/:id",
]);

/** The amount and currency that the request asks for, as Stripe would read them; undefined where it names none. */
export function bodyMoney(call: Pick<StripeCall, "endpoint" | "fields" | "spend">): DecimalMoney | undefined {
  const { endpoint, fields } = call;
  const [amountName, currencyName] = endpoint.includes(" /v2/")
    ? ["amount[value]", "amount[currency]"]
    : endpoint === "POST /v1/billing/credit_grants"
      ? ["amount[monetary][value]", "amount[monetary][currency]"]
      : ["amount", "currency"];
  const amount = fieldValue(fields, amountName) ?? fieldValue(fields, "unit_amount");
  const currency = fieldValue(fields, currencyName);
  if (amount === undefined && call.spend?.upTo !== undefined) return undefined;
  if (amount === undefined || !AMOUNT.test(amount) || (amount.startsWith("-") && !NEGATIVE_ALLOWED.has(endpoint))) {
    throw new SpendUnsupportedError(endpoint, "has no usable amount", "State a whole number above 0.");
  }
  const times = fieldValue(fields, "amount") === undefined ? quantity(call) : 1n;
  return chargeMoney(endpoint, absolute(BigInt(amount)) * times, currency ?? "");
}

function absolute(amount: bigint): bigint {
  return amount < 0n ? -amount : amount;
}

function quantity({ endpoint, fields }: Pick<StripeCall, "endpoint" | "fields">): bigint {
  const stated = fieldValue(fields, "quantity") ?? "1";
  if (!/^[1-9][0-9]{0,8}$/.test(stated)) {
    throw new SpendUnsupportedError(endpoint, "has no usable quantity", "State a whole number above 0.");
  }
  return BigInt(stated);
}

function chargeMoney(endpoint: string, minor: bigint, currency: string): DecimalMoney {
  try {
    return endpoint === "POST /v1/payouts"
      ? fromStripePayoutAmount(minor, currency)
      : fromStripeChargeAmount(minor, currency);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : "";
    const error = new SpendUnsupportedError(endpoint, "has an amount that Stripe would not charge", why);
    error.cause = cause;
    throw error;
  }
}

/**
 * The amount of an object at Stripe, or the part of it that the request names. A repeat must not read it again: after
 * the first execution the object says something else. So what was authorized before is taken first.
 */
async function objectAmount(call: StripeCall): Promise<SpendAmount> {
  const recorded = await recordedAmount(call);
  const part = fieldValue(call.fields, "amount");
  if (recorded !== undefined && part === undefined) return recorded;
  if (part !== undefined && !AMOUNT.test(part)) {
    throw new SpendUnsupportedError(call.endpoint, "has no usable amount", "State a whole number above 0.");
  }
  if (recorded !== undefined) {
    // What is sent is what is authorized: another amount than before must be seen as one.
    const currency = fieldValue(call.fields, "currency") ?? recorded.money.currency;
    return { ...recorded, money: moneyFrom(BigInt(part ?? "0"), currency) ?? recorded.money };
  }
  const found = await sourceOf(call);
  const minor = part === undefined ? found?.minor : BigInt(part);
  const stated = fieldValue(call.fields, "currency");
  const known = found === undefined || found.currency === "" ? undefined : found.currency;
  if (stated !== undefined && known !== undefined && stated !== known) {
    throw new SpendUnsupportedError(
      call.endpoint,
      `names the currency ${stated} for an object in ${known}`,
      "Leave it out, or correct it.",
    );
  }
  const currency = stated ?? known ?? "";
  const money = minor === undefined || minor === 0n ? undefined : moneyFrom(minor, currency);
  const refundOf = found?.refundOf;
  const upTo = call.spend?.upTo;
  if (money === undefined && upTo === undefined) {
    throw new SpendUnsupportedError(
      call.endpoint,
      minor === 0n ? "has nothing left to move" : "has an amount that could not be read at Stripe",
      'State it: spend: { …, upTo: { amount: "49.00", currency: "usd" } }.',
    );
  }
  return { money: money ?? (upTo as DecimalMoney), ...(refundOf === undefined ? {} : { refundOf }) };
}

const GENERATIONS_MAX = 100;

async function recordedMoney(call: StripeCall): Promise<DecimalMoney | undefined> {
  return (await recordedAmount(call))?.money;
}

// After these the next call starts a new generation at once, with whatever the amount is then.
const RESTARTS: ReadonlySet<VoidEvidence> = new Set([
  VoidEvidence.NEVER_SENT,
  VoidEvidence.NEVER_BOUND,
  VoidEvidence.NOT_EXECUTED,
]);

/** What the generation in question of the call's spend was authorized at, if it exists. */
export async function recordedAmount(call: StripeCall): Promise<SpendAmount | undefined> {
  const spend = requireSpend(call);
  let found: SpendAmount | undefined;
  for (let generation = (spend.retryAfterGeneration ?? 0) + 1; generation < GENERATIONS_MAX; generation += 1) {
    const authorization = await recorded(call, authorizationName(spend, generation));
    if (authorization === undefined) return found;
    const { refundOf, state, voidEvidence } = authorization;
    const money = toDecimalMoney(authorization.spend?.amount);
    found =
      money === undefined || RESTARTS.has(voidEvidence)
        ? undefined
        : { money, ...(refundOf === "" ? {} : { refundOf }) };
    if (state !== AuthorizationState.VOIDED) return found;
  }
  return found;
}

async function recorded(call: StripeCall, name: string): Promise<Authorization | undefined> {
  try {
    return await call.controlPlane.getAuthorization(name, call.deadline);
  } catch (error) {
    throw translateFailure(error, "what was authorized before", errorContext(call));
  }
}

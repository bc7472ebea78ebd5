/** An exact amount of money. Nothing here is ever a floating-point number. */
export interface DecimalMoney {
  /** An ISO 4217 code in lower case, for example "usd". */
  readonly currency: string;
  /** A decimal string in major units, at most 6 decimals: "49.90" is 49 dollars and 90 cents. */
  readonly amount: string;
}

// Stripe's table, not ISO 4217: they differ for ISK and UGX, which Stripe writes with two decimals.
const ZERO_DECIMALS = new Set("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf".split(" "));
const THREE_DECIMALS = new Set("bhd jod kwd omr tnd".split(" "));
/** Written with two decimals that are always zero. */
const WHOLE_UNITS_ONLY = new Set(["isk", "ugx"]);
/** Charged with two decimals, paid out in whole units. */
const WHOLE_UNITS_IN_PAYOUTS = new Set([...WHOLE_UNITS_ONLY, "huf", "twd"]);

const CURRENCY = /^[a-z]{3}$/;
const DECIMAL = /^(0|[1-9][0-9]{0,14})(?:\.([0-9]{1,6}))?$/;
/** 15 digits: more than Stripe takes for any currency, and exact as a JavaScript number. */
const STRIPE_AMOUNT_MAX = 999_999_999_999_999n;
/** The largest amount of one spend, in major units. */
const MAJOR_UNITS_MAX = 1_000_000_000_000n;

/**
 * How many decimals Stripe's integer amounts of a currency carry: 0 for "jpy", 2 for "usd", 3 for "kwd". Throws a
 * TypeError on a malformed code; a well-formed code that nobody uses counts as one with 2.
 */
export function stripeExponent(currency: string): 0 | 2 | 3 {
  if (typeof currency !== "string" || !CURRENCY.test(currency)) {
    throw new TypeError(
      `currency must be three lower-case letters as Stripe writes it, such as "usd"; got ${shown(currency)}.`,
    );
  }
  if (ZERO_DECIMALS.has(currency)) return 0;
  return THREE_DECIMALS.has(currency) ? 3 : 2;
}

/**
 * Stripe's integer amount as money: 4900 of "usd" is "49.00". Takes a number as Stripe's client gives it, or a bigint.
 * Throws a RangeError on what is no amount of Stripe's: negative, fractional, not exact, more than 15 digits.
 */
export function fromStripeAmount(minor: bigint | number, currency: string): DecimalMoney {
  const exponent = stripeExponent(currency);
  const exact = exactAmount(minor);
  if (exponent === 0) return { currency, amount: exact.toString() };
  const digits = exact.toString().padStart(exponent + 1, "0");
  return { currency, amount: `${digits.slice(0, -exponent)}.${digits.slice(-exponent)}` };
}

/** Stripe's integer amount as money without its sign, or undefined where the currency or the amount is none. */
export function moneyFrom(minor: bigint, currency: string): DecimalMoney | undefined {
  try {
    return fromStripeAmount(minor < 0n ? -minor : minor, currency);
  } catch {
    return undefined;
  }
}

function exactAmount(minor: bigint | number): bigint {
  if (typeof minor !== "bigint" && !Number.isSafeInteger(minor)) {
    throw new RangeError(`amount must be a whole number of Stripe's smallest unit; got ${shown(minor)}.`);
  }
  const exact = BigInt(minor);
  if (exact < 0n) throw new RangeError(`amount must not be negative; got ${minor}.`);
  if (exact > STRIPE_AMOUNT_MAX) throw new RangeError(`amount must have at most 15 digits; got ${minor}.`);
  return exact;
}

/**
 * Like `fromStripeAmount`, for an amount that is about to be charged: refuses what Stripe does not charge (fractions
 * of a króna or shilling, a third decimal that is not 0) with a RangeError, which also catches a mistaken factor.
 */
export function fromStripeChargeAmount(minor: bigint | number, currency: string): DecimalMoney {
  const money = fromStripeAmount(minor, currency);
  checkSmallestUnit(BigInt(minor), currency, WHOLE_UNITS_ONLY, "charges");
  return money;
}

/** Like `fromStripeChargeAmount`, for a payout: forints and Taiwan dollars are paid out in whole units too. */
export function fromStripePayoutAmount(minor: bigint | number, currency: string): DecimalMoney {
  const money = fromStripeAmount(minor, currency);
  checkSmallestUnit(BigInt(minor), currency, WHOLE_UNITS_IN_PAYOUTS, "pays out");
  return money;
}

function checkSmallestUnit(minor: bigint, currency: string, wholeUnits: ReadonlySet<string>, does: string): void {
  if (wholeUnits.has(currency) && minor % 100n !== 0n) {
    throw new RangeError(`amount must end in 00, since Stripe ${does} ${currency} in whole units; got ${minor}.`);
  }
  if (stripeExponent(currency) === 3 && minor % 10n !== 0n) {
    throw new RangeError(`amount must end in 0, as Stripe ${does} ${currency}; got ${minor}.`);
  }
}

/**
 * Money as Stripe's integer amount: "49.90" of "usd" is 4990n; `Number(…)` of it is exact. Throws a RangeError on a
 * malformed amount, on decimals that the currency cannot carry, and above 15 digits.
 */
export function toStripeAmount(money: DecimalMoney): bigint {
  const exponent = stripeExponent(money.currency);
  const [whole, fraction] = parseDecimal(money.amount, "amount");
  const carried = fraction.replace(/0+$/, "");
  if (carried.length > exponent) {
    const decimals = exponent === 0 ? "no decimals" : `at most ${exponent} decimals`;
    throw new RangeError(`amount must have ${decimals}, as Stripe's ${money.currency} does; got ${money.amount}.`);
  }
  return exactAmount(BigInt(whole + carried.padEnd(exponent, "0")));
}

/**
 * Throws a TypeError or RangeError on money that the API would refuse; `field` is how the caller knows the money, for
 * example "upTo". Zero passes: a vendor may charge nothing for what was authorized.
 */
export function checkMoney(money: DecimalMoney, field = ""): void {
  const prefix = field === "" ? "" : `${field}.`;
  if (typeof money.currency !== "string" || !CURRENCY.test(money.currency)) {
    throw new TypeError(
      `${prefix}currency must be three lower-case letters, such as "usd"; got ${shown(money.currency)}.`,
    );
  }
  const [whole, fraction] = parseDecimal(money.amount, `${prefix}amount`);
  const units = BigInt(whole);
  if (units > MAJOR_UNITS_MAX || (units === MAJOR_UNITS_MAX && /[1-9]/.test(fraction))) {
    throw new RangeError(`${prefix}amount must be at most 1000000000000, for one spend; got ${money.amount}.`);
  }
}

/** The digits before and after the point. */
function parseDecimal(amount: string, field: string): readonly [whole: string, fraction: string] {
  const match = typeof amount === "string" ? DECIMAL.exec(amount) : null;
  if (match === null) {
    throw new RangeError(
      `${field} must be a decimal string in major units with at most 6 decimals, such as "49.90"; got ${shown(amount)}.`,
    );
  }
  return [match[1] ?? "0", match[2] ?? ""];
}

/** A value that a caller without types may have passed. */
function shown(value: unknown): string {
  return typeof value === "string" ? JSON.stringify(value.slice(0, 40)) : String(value);
}

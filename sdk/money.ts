/** An exact amount: a decimal string in major units and a lower-case ISO 4217 code. */
export interface DecimalMoney {
  readonly currency: string;
  readonly amount: string;
}

// Stripe's table, not ISO 4217: they differ for ISK and UGX, which Stripe writes with two decimals.
const ZERO_DECIMALS = new Set("bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf".split(" "));
const THREE_DECIMALS = new Set("bhd jod kwd omr tnd".split(" "));
const WHOLE_UNITS_ONLY = new Set(["isk", "ugx"]);

const CURRENCY = /^[a-z]{3}$/;
const DECIMAL = /^(0|[1-9][0-9]{0,12})(?:\.([0-9]{1,6}))?$/;

/** How many decimals Stripe's integer amounts of a currency carry. Throws a TypeError on a malformed code. */
export function stripeExponent(currency: string): 0 | 2 | 3 {
  if (!CURRENCY.test(currency)) {
    throw new TypeError(
      `A currency is three lower-case letters, as Stripe writes it; got ${JSON.stringify(currency)}.`,
    );
  }
  if (ZERO_DECIMALS.has(currency)) return 0;
  return THREE_DECIMALS.has(currency) ? 3 : 2;
}

/** Stripe's integer amount as a decimal string: 4900n of "usd" is "49.00". */
export function fromStripeAmount(minor: bigint, currency: string): DecimalMoney {
  if (minor < 0n) throw new RangeError(`An amount cannot be negative; got ${minor}.`);
  const exponent = stripeExponent(currency);
  if (exponent === 0) return { currency, amount: minor.toString() };
  const digits = minor.toString().padStart(exponent + 1, "0");
  return { currency, amount: `${digits.slice(0, -exponent)}.${digits.slice(-exponent)}` };
}

/**
 * Like `fromStripeAmount`, for an amount that is about to be charged: refuses what Stripe does not charge (fractions
 * of a króna or shilling, a third decimal that is not 0) with a RangeError, which also catches a mistaken factor.
 */
export function fromStripeChargeAmount(minor: bigint, currency: string): DecimalMoney {
  const money = fromStripeAmount(minor, currency);
  if (WHOLE_UNITS_ONLY.has(currency) && minor % 100n !== 0n) {
    throw new RangeError(`Stripe charges ${currency} in whole units, written with two zeros; got ${minor}.`);
  }
  if (stripeExponent(currency) === 3 && minor % 10n !== 0n) {
    throw new RangeError(`Stripe charges ${currency} with a last digit of 0; got ${minor}.`);
  }
  return money;
}

/** A decimal string as Stripe's integer amount. Throws a RangeError where the currency cannot carry the decimals. */
export function toStripeAmount(money: DecimalMoney): bigint {
  const exponent = stripeExponent(money.currency);
  const match = DECIMAL.exec(money.amount);
  if (match === null) {
    throw new RangeError(`An amount is a decimal string such as "49.90"; got ${JSON.stringify(money.amount)}.`);
  }
  const fraction = (match[2] ?? "").replace(/0+$/, "");
  if (fraction.length > exponent) {
    throw new RangeError(`Stripe's ${money.currency} has ${exponent} decimals; got ${money.amount}.`);
  }
  return BigInt((match[1] ?? "0") + fraction.padEnd(exponent, "0"));
}

/** Throws a RangeError or TypeError on money that the API would refuse. The amount must be greater than zero. */
export function checkMoney(money: DecimalMoney): void {
  stripeExponent(money.currency);
  if (!DECIMAL.test(money.amount)) {
    throw new RangeError(`An amount is a decimal string such as "49.90"; got ${JSON.stringify(money.amount)}.`);
  }
}

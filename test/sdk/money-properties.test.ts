import {
  fromStripeAmount,
  fromStripeChargeAmount,
  fromStripePayoutAmount,
  stripeExponent,
  toStripeAmount,
} from "@holdfast/sdk";
import fc from "fast-check";
import { describe, expect, it } from "vitest";

// Stripe's rules once more, written apart from the SDK: how many smallest units one major unit has, and of what a
// charge and a payout must be a multiple. What is not listed has 100 and may be any number.
const rules: Readonly<Record<string, { readonly unit: bigint; readonly charge: bigint; readonly payout: bigint }>> = {
  BIF: { unit: 1n, charge: 1n, payout: 1n },
  CLP: { unit: 1n, charge: 1n, payout: 1n },
  DJF: { unit: 1n, charge: 1n, payout: 1n },
  GNF: { unit: 1n, charge: 1n, payout: 1n },
  JPY: { unit: 1n, charge: 1n, payout: 1n },
  KMF: { unit: 1n, charge: 1n, payout: 1n },
  KRW: { unit: 1n, charge: 1n, payout: 1n },
  MGA: { unit: 1n, charge: 1n, payout: 1n },
  PYG: { unit: 1n, charge: 1n, payout: 1n },
  RWF: { unit: 1n, charge: 1n, payout: 1n },
  VND: { unit: 1n, charge: 1n, payout: 1n },
  VUV: { unit: 1n, charge: 1n, payout: 1n },
  XAF: { unit: 1n, charge: 1n, payout: 1n },
  XOF: { unit: 1n, charge: 1n, payout: 1n },
  XPF: { unit: 1n, charge: 1n, payout: 1n },
  ISK: { unit: 100n, charge: 100n, payout: 100n },
  UGX: { unit: 100n, charge: 100n, payout: 100n },
  HUF: { unit: 100n, charge: 1n, payout: 100n },
  TWD: { unit: 100n, charge: 1n, payout: 100n },
  BHD: { unit: 1000n, charge: 10n, payout: 10n },
  JOD: { unit: 1000n, charge: 10n, payout: 10n },
  KWD: { unit: 1000n, charge: 10n, payout: 10n },
  OMR: { unit: 1000n, charge: 10n, payout: 10n },
  TND: { unit: 1000n, charge: 10n, payout: 10n },
};
const ordinary = { unit: 100n, charge: 1n, payout: 1n };
const ruleOf = (currency: string) => rules[currency.toUpperCase()] ?? ordinary;

// Every currency this Node knows, and the special ones often enough.
const known = Intl.supportedValuesOf("currency").map((code) => code.toLowerCase());
const special = Object.keys(rules).map((code) => code.toLowerCase());
const currencies = fc.oneof(fc.constantFrom(...special), fc.constantFrom(...known));
const minors = fc.oneof(
  fc.bigInt({ min: 0n, max: 999_999_999_999_999n }),
  fc.bigInt({ min: 0n, max: 20_000n }),
  fc.bigInt({ min: 0n, max: 9_999n }).map((units) => units * 100n),
);

/** Whether a call gives a value rather than throws. */
function gives(call: () => unknown): boolean {
  try {
    call();
    return true;
  } catch (error) {
    expect(error).toBeInstanceOf(RangeError);
    return false;
  }
}

describe("for every currency", () => {
  it("the number of decimals is that of the table", () => {
    for (const currency of new Set([...known, ...special])) {
      expect(10n ** BigInt(stripeExponent(currency)), currency).toBe(ruleOf(currency).unit);
    }
    expect(known.length).toBeGreaterThan(150);
  });

  it("an amount is worth what its digits say, and comes back the same", () => {
    fc.assert(
      fc.property(currencies, minors, (currency, minor) => {
        const { unit } = ruleOf(currency);
        const money = fromStripeAmount(minor, currency);
        const [whole = "", fraction = ""] = money.amount.split(".");
        expect(BigInt(whole)).toBe(minor / unit);
        expect(BigInt(fraction === "" ? "0" : fraction)).toBe(minor % unit);
        expect(10n ** BigInt(fraction.length)).toBe(unit);
        expect(toStripeAmount(money)).toBe(minor);
        expect(fromStripeAmount(Number(minor), currency)).toEqual(money);
      }),
    );
  });

  it("exactly the multiples that Stripe moves are charged and paid out", () => {
    fc.assert(
      fc.property(currencies, minors, (currency, minor) => {
        const { charge, payout } = ruleOf(currency);
        expect(gives(() => fromStripeChargeAmount(minor, currency))).toBe(minor % charge === 0n);
        expect(gives(() => fromStripePayoutAmount(minor, currency))).toBe(minor % payout === 0n);
      }),
    );
  });

  it("a decimal string is read exactly, or refused for digits that would be lost", () => {
    const decimals = fc.tuple(fc.bigInt({ min: 0n, max: 999_999_999_999n }), fc.stringMatching(/^[0-9]{0,6}$/));
    fc.assert(
      fc.property(currencies, decimals, (currency, [whole, fraction]) => {
        const amount = fraction === "" ? whole.toString() : `${whole}.${fraction}`;
        const { unit } = ruleOf(currency);
        // In millionths of the major unit, which carry every decimal string.
        const millionths = whole * 1_000_000n + BigInt(fraction.padEnd(6, "0"));
        const scaled = millionths * unit;
        const isExact = scaled % 1_000_000n === 0n;
        const fits = scaled / 1_000_000n < 10n ** 15n;
        if (gives(() => toStripeAmount({ currency, amount }))) {
          expect(toStripeAmount({ currency, amount }) * 1_000_000n).toBe(scaled);
        }
        expect(gives(() => toStripeAmount({ currency, amount }))).toBe(isExact && fits);
      }),
    );
  });

  it("nothing but a plain decimal string is an amount", () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...Array.from("0123456789.-+eE, ")) }), (amount) => {
        const plain = /^(0|[1-9]\d{0,14})(\.\d{1,6})?$/.test(amount);
        if (!plain) expect(gives(() => toStripeAmount({ currency: "usd", amount }))).toBe(false);
      }),
    );
  });
});

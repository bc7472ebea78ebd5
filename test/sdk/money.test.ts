import {
  fromStripeAmount,
  fromStripeChargeAmount,
  fromStripePayoutAmount,
  stripeExponent,
  toStripeAmount,
} from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { checkMoney } from "../../sdk/money.ts";

describe("Stripe's amounts", () => {
  it.each([
    [4900n, "usd", "49.00"],
    [5n, "usd", "0.05"],
    [0n, "usd", "0.00"],
    [4900n, "jpy", "4900"],
    [4900n, "isk", "49.00"],
    [4900n, "ugx", "49.00"],
    [1234n, "kwd", "1.234"],
    [10n, "bhd", "0.010"],
    [999_999_999_999_999n, "eur", "9999999999999.99"],
    [999_999_999_999_999n, "jpy", "999999999999999"],
  ])("%d of %s is %s and back", (minor, currency, amount) => {
    expect(fromStripeAmount(minor, currency)).toEqual({ currency, amount });
    expect(fromStripeAmount(Number(minor), currency)).toEqual({ currency, amount });
    expect(toStripeAmount({ currency, amount })).toBe(minor);
  });

  it("are never charged in fractions that Stripe does not charge", () => {
    expect(() => fromStripeChargeAmount(4950n, "isk")).toThrow(/^amount must end in 00, since Stripe charges isk/);
    expect(() => fromStripeChargeAmount(4950, "ugx")).toThrow(RangeError);
    expect(() => fromStripeChargeAmount(1234n, "kwd")).toThrow(/^amount must end in 0, as Stripe charges kwd/);
    expect(fromStripeChargeAmount(1230n, "kwd").amount).toBe("1.230");
    expect(fromStripeChargeAmount(4950n, "huf").amount).toBe("49.50");
    expect(fromStripeChargeAmount(4950, "twd").amount).toBe("49.50");
  });

  it("are never paid out in fractions that Stripe does not pay out", () => {
    for (const currency of ["huf", "twd", "isk", "ugx"]) {
      expect(() => fromStripePayoutAmount(4950n, currency)).toThrow(/^amount must end in 00, since Stripe pays out/);
      expect(fromStripePayoutAmount(4900n, currency).amount).toBe("49.00");
    }
    expect(fromStripePayoutAmount(4950n, "usd").amount).toBe("49.50");
  });

  it.each<[string, () => unknown, RegExp]>([
    [
      "decimals of a currency without",
      () => toStripeAmount({ currency: "jpy", amount: "49.90" }),
      /^amount must have no decimals, as Stripe's jpy/,
    ],
    [
      "too many decimals",
      () => toStripeAmount({ currency: "usd", amount: "0.0079" }),
      /^amount must have at most 2 decimals/,
    ],
    [
      "a number in scientific notation",
      () => toStripeAmount({ currency: "usd", amount: "1e3" }),
      /^amount must be a decimal string/,
    ],
    ["a sign", () => toStripeAmount({ currency: "usd", amount: "-1" }), /^amount must be a decimal string/],
    [
      "a group separator",
      () => toStripeAmount({ currency: "usd", amount: "1,000" }),
      /^amount must be a decimal string/,
    ],
    [
      "a number instead of text",
      () => toStripeAmount({ currency: "usd", amount: 49.9 as unknown as string }),
      /got 49\.9\.$/,
    ],
    [
      "16 digits",
      () => toStripeAmount({ currency: "usd", amount: "10000000000000" }),
      /^amount must have at most 15 digits/,
    ],
    [
      "16 digits of Stripe's",
      () => fromStripeAmount(1_000_000_000_000_000n, "usd"),
      /^amount must have at most 15 digits/,
    ],
    ["a fraction of a cent", () => fromStripeAmount(49.5, "usd"), /^amount must be a whole number/],
    ["a number that is not exact", () => fromStripeAmount(2 ** 53, "usd"), /^amount must be a whole number/],
    ["nothing", () => fromStripeAmount(undefined as unknown as number, "usd"), /^amount must be a whole number/],
    ["a negative amount", () => fromStripeAmount(-1n, "usd"), /^amount must not be negative/],
    ["a code in capitals", () => stripeExponent("USD"), /^currency must be three lower-case letters/],
    ["no code", () => fromStripeAmount(1n, undefined as unknown as string), /^currency must be .*got undefined/],
  ])("refuse %s, and say which field is wrong", (_, call, message) => {
    expect(call).toThrow(message);
  });

  it("ignore zeros at the end", () => {
    expect(toStripeAmount({ currency: "usd", amount: "49.900000" })).toBe(4990n);
    expect(toStripeAmount({ currency: "jpy", amount: "49.00" })).toBe(49n);
  });
});

describe("money for the API", () => {
  it("passes as it is, zero and the largest included", () => {
    for (const amount of ["49.90", "0.0079", "0", "1000000000000", "1000000000000.000000"]) {
      expect(() => checkMoney({ currency: "usd", amount })).not.toThrow();
    }
  });

  it("is refused with the caller's name of the field", () => {
    expect(() => checkMoney({ currency: "usd", amount: "1000000000000.01" }, "upTo")).toThrow(
      /^upTo\.amount must be at most/,
    );
    expect(() => checkMoney({ currency: "usd", amount: "0.0000001" })).toThrow(/^amount must be a decimal string/);
    expect(() => checkMoney({ currency: "Usd", amount: "1" }, "upTo")).toThrow(/^upTo\.currency must be three/);
  });
});

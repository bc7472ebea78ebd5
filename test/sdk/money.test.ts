import { fromStripeAmount, stripeExponent, toStripeAmount } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { fromStripeChargeAmount } from "../../sdk/money.ts";

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
  ])("%d of %s is %s and back", (minor, currency, amount) => {
    expect(fromStripeAmount(minor, currency)).toEqual({ currency, amount });
    expect(toStripeAmount({ currency, amount })).toBe(minor);
  });

  it("knows every currency without decimals", () => {
    for (const code of "bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf".split(" ")) {
      expect(stripeExponent(code)).toBe(0);
    }
  });

  it("refuses to charge what Stripe does not charge", () => {
    expect(() => fromStripeChargeAmount(4950n, "isk")).toThrow(RangeError);
    expect(() => fromStripeChargeAmount(1234n, "kwd")).toThrow(RangeError);
    expect(fromStripeChargeAmount(1230n, "kwd").amount).toBe("1.230");
    expect(fromStripeChargeAmount(4950n, "huf").amount).toBe("49.50");
  });

  it("refuses decimals that the currency cannot carry, and codes that Stripe does not write", () => {
    expect(() => toStripeAmount({ currency: "jpy", amount: "49.90" })).toThrow(RangeError);
    expect(() => toStripeAmount({ currency: "usd", amount: "0.0079" })).toThrow(RangeError);
    expect(() => toStripeAmount({ currency: "usd", amount: "1e3" })).toThrow(RangeError);
    expect(toStripeAmount({ currency: "usd", amount: "49.900" })).toBe(4990n);
    expect(() => stripeExponent("USD")).toThrow(TypeError);
  });
});

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { HoldfastError } from "../../server/domain/errors.ts";
import { formatMicros, microsMax, parseAmount, parseMoney } from "../../server/domain/money.ts";

function refusal(act: () => unknown): { reason: string; field: string | undefined } {
  try {
    act();
  } catch (error) {
    if (error instanceof HoldfastError) return { reason: error.reason, field: error.metadata["field"] };
    throw error;
  }
  throw new Error("nothing was refused");
}

const anyMicros = fc.bigInt({ min: -microsMax, max: microsMax });

describe("an amount", () => {
  test("is read back exactly as it was written, for every amount", () => {
    fc.assert(
      fc.property(anyMicros, (micros) => {
        expect(parseMoney("usd", formatMicros(micros), "amount")).toEqual({ currency: "usd", micros });
      }),
    );
  });

  test("is written with two decimals unless it is whole or finer, and without needless zeros", () => {
    fc.assert(
      fc.property(anyMicros, (micros) => {
        expect(formatMicros(micros)).toMatch(/^-?(0|[1-9]\d*)(\.\d{2}|\.\d{2,5}[1-9])?$/);
      }),
    );
  });

  test.each([
    [0n, "0"],
    [49_900_000n, "49.90"],
    [4_900_000_000n, "4900"],
    [7_900n, "0.0079"],
    [1n, "0.000001"],
    [-12_500_000n, "-12.50"],
    [-1n, "-0.000001"],
    [microsMax, "1000000000000"],
  ])("of %s micros is written %s", (micros, text) => {
    expect(formatMicros(micros)).toBe(text);
  });

  test.each([
    ["49.9", 49_900_000n],
    ["49.900000", 49_900_000n],
    ["0.000001", 1n],
    ["-0", 0n],
    ["1000000000000", microsMax],
    ["9007199254.740993", 9_007_199_254_740_993n],
  ])("%s is read exactly", (text, micros) => {
    expect(parseMoney("usd", text, "amount").micros).toBe(micros);
  });

  test.each(["", " 1", "1 ", "+1", "1.", ".5", "01", "1.0000001", "1e3", "1,000", "0x10", "NaN", "--1", "１", "1\n"])(
    "%j is refused and the field is named",
    (text) => {
      expect(refusal(() => parseMoney("usd", text, "cap.limit"))).toEqual({
        reason: "INVALID_FIELD",
        field: "cap.limit.amount",
      });
    },
  );

  test.each(["1000000000000.000001", "9999999999999", "-1000000000000.000001"])("%s is out of range", (text) => {
    expect(refusal(() => parseMoney("usd", text, "amount"))).toEqual({
      reason: "AMOUNT_OUT_OF_RANGE",
      field: "amount.amount",
    });
  });

  test.each(["", "USD", "us", "usdd", "u1d", "usd\n"])("in the currency %j is refused", (currency) => {
    expect(refusal(() => parseMoney(currency, "1", "amount"))).toEqual({
      reason: "INVALID_FIELD",
      field: "amount.currency",
    });
  });

  test("below zero is refused where an amount is asked for, and zero where it must be more", () => {
    const negative = { reason: "INVALID_FIELD", field: "amount.amount" };
    expect(refusal(() => parseAmount("usd", "-0.000001", "amount", true))).toEqual(negative);
    expect(refusal(() => parseAmount("usd", "0.00", "amount", false))).toEqual(negative);
    expect(parseAmount("usd", "0.00", "amount", true).micros).toBe(0n);
    expect(parseAmount("usd", "0.000001", "amount", false).micros).toBe(1n);
  });
});

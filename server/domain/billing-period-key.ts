import { roundUp } from "./currency.ts";
import { invalidField } from "./errors.ts";
import { type Money, microsMax, toMicros } from "./money.ts";

const marginScale = 10_000n;
const marginDefault = "0.10";

/**
 * What the cap of a billing period allows: `expectedTotal` × (1 + `margin`), rounded up to the currency's smallest unit.
 * `margin` is a decimal fraction with at most 4 decimals; empty means 0.10. Throws INVALID_FIELD above 10¹² major units.
 */
export function billingPeriodLimit(expectedTotal: Money, margin: string): Money {
  const [whole = "0", fraction = ""] = (margin === "" ? marginDefault : margin).split(".");
  const scaled = BigInt(whole) * marginScale + BigInt(fraction.padEnd(4, "0"));
  const exact = expectedTotal.micros * (marginScale + scaled);
  const micros = roundUp(expectedTotal.currency, (exact + marginScale - 1n) / marginScale);
  if (micros > microsMax) {
    throw invalidField(
      "expected_total.amount",
      "and its margin are above 1,000,000,000,000 together; lower one of them.",
    );
  }
  return { currency: expectedTotal.currency, micros: toMicros(micros) };
}

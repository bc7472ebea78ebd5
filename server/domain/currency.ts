import { type Micros, toMicros } from "./money.ts";

// As vendors charge them: currencies whose smallest unit is the major one, and those with three decimals. Every other
// one has two.
const zeroDecimals = new Set("bif clp djf gnf isk jpy kmf krw mga pyg rwf ugx vnd vuv xaf xof xpf".split(" "));
const threeDecimals = new Set("bhd iqd jod kwd lyd omr tnd".split(" "));

/** A currency's smallest unit in micros: 10,000 for "usd", 1,000,000 for "jpy", 1,000 for "kwd". */
export function smallestUnit(currency: string): bigint {
  if (zeroDecimals.has(currency)) return 1_000_000n;
  return threeDecimals.has(currency) ? 1_000n : 10_000n;
}

/** An amount in micros, zero or more, rounded up to whole smallest units of its currency. */
export function roundUp(currency: string, micros: bigint): Micros {
  const unit = smallestUnit(currency);
  return toMicros(((micros + unit - 1n) / unit) * unit);
}

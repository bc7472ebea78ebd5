import { HoldfastError, invalidField } from "./errors.ts";

declare const micros: unique symbol;

/** An amount in 10⁻⁶ of a currency's major unit. Made by `parseMoney` or `toMicros` only. */
export type Micros = bigint & { readonly [micros]: true };

/** An exact amount of one currency (ISO 4217 code in lower case). */
export interface Money {
  readonly currency: string;
  readonly micros: Micros;
}

/** The largest amount of one spend and of one limit: 10¹² major units. Sums of several still fit 64 bits. */
export const microsMax = 10n ** 18n;

const decimalPattern = /^(-?)(0|[1-9][0-9]{0,12})(?:\.([0-9]{1,6}))?$/;

/** Brands a number that is known to be in micros, for example one read from the database. */
export function toMicros(value: bigint): Micros {
  return value as Micros;
}

/**
 * Reads a decimal string of major units ("49.90") exactly. `field` is the path for errors.
 * Throws INVALID_FIELD for anything but such a string, AMOUNT_OUT_OF_RANGE above 10¹² major units.
 */
export function parseMoney(currency: string, amount: string, field: string): Money {
  if (!/^[a-z]{3}$/.test(currency)) {
    throw invalidField(`${field}.currency`, 'must be an ISO 4217 code in lower case, for example "usd".');
  }
  const match = decimalPattern.exec(amount);
  if (match === null) {
    throw invalidField(`${field}.amount`, 'must be a decimal string with at most 6 decimals, for example "49.90".');
  }
  const [, sign, whole = "0", fraction = ""] = match;
  const value = BigInt(whole) * 1_000_000n + BigInt(fraction.padEnd(6, "0"));
  if (value > microsMax) {
    throw new HoldfastError("AMOUNT_OUT_OF_RANGE", `${field}.amount: is above 1,000,000,000,000; split the spend.`, {
      metadata: { field: `${field}.amount` },
    });
  }
  return { currency, micros: toMicros(sign === "-" ? -value : value) };
}

/** Like `parseMoney`, and refuses amounts below zero, or below one micro where `allowZero` is false. */
export function parseAmount(currency: string, amount: string, field: string, allowZero: boolean): Money {
  const money = parseMoney(currency, amount, field);
  if (money.micros < 0n || (money.micros === 0n && !allowZero)) {
    throw invalidField(`${field}.amount`, `must be ${allowZero ? "zero or more" : "greater than zero"}.`);
  }
  return money;
}

/** The decimal string of an amount in major units: "49.90", "4900", "0.0079", "-12.50". */
export function formatMicros(value: bigint): string {
  const absolute = value < 0n ? -value : value;
  const fraction = (absolute % 1_000_000n)
    .toString()
    .padStart(6, "0")
    .replace(/0{1,4}$/, "");
  const whole = `${value < 0n ? "-" : ""}${absolute / 1_000_000n}`;
  return fraction === "00" ? whole : `${whole}.${fraction}`;
}

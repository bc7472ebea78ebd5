import { create } from "@bufbuild/protobuf";
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from "@bufbuild/protobuf/wkt";
import { InvalidArgumentError } from "commander";

/** Money as an operator types it, "11000.00 usd", for a request. The server judges the digits. */
export function parseMoney(text: string): { readonly currency: string; readonly amount: string } {
  const match = /^(-?[0-9]+(?:\.[0-9]+)?) ?([A-Za-z]{3})$/.exec(text.trim());
  if (match === null) throw new InvalidArgumentError('Write an amount and a currency, for example "11000.00 usd".');
  const [, amount = "", currency = ""] = match;
  return { currency: currency.toLowerCase(), amount };
}

/** An instant with its zone, or a day in UTC. */
export function parseTime(text: string): Timestamp {
  const match = /^(\d{4}-\d\d-\d\d)(?:T\d\d:\d\d(?::\d\d(?:\.(\d{1,6}))?)?(?:Z|[+-]\d\d:\d\d))?$/.exec(text);
  const [, day = "", fraction = ""] = match ?? [];
  const ms = Date.parse(text.replace(/\.\d+/, ""));
  // A day that the month does not have is moved into the next one by the parser, not refused.
  const midnight = Date.parse(`${day}T00:00:00Z`);
  if (Number.isNaN(ms) || Number.isNaN(midnight) || new Date(midnight).toISOString().slice(0, 10) !== day) {
    throw new InvalidArgumentError(
      'Write an instant with its zone, for example "2026-12-31T23:00:00+01:00", or a day in UTC, "2026-12-31".',
    );
  }
  return create(TimestampSchema, { seconds: BigInt(ms / 1000), nanos: Number(fraction.padEnd(9, "0")) });
}

const unitSeconds = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;

/** A length of time: "90s", "15m", "1h" or "2d", as whole seconds. */
export function parseSeconds(text: string): number {
  const match = /^([0-9]{1,9})([smhd])$/.exec(text);
  if (match === null) throw new InvalidArgumentError('Write a number and its unit: "90s", "15m", "1h" or "2d".');
  const [, digits = "", unit = "s"] = match;
  return Number(digits) * unitSeconds[unit as keyof typeof unitSeconds];
}

export function parseDuration(text: string): Duration {
  return create(DurationSchema, { seconds: BigInt(parseSeconds(text)) });
}

export function parseWhole(text: string): number {
  if (!/^[0-9]{1,9}$/.test(text)) throw new InvalidArgumentError("Write a whole number.");
  return Number(text);
}

/** How many of something to show. */
export function parseCount(text: string): number {
  if (!/^[1-9][0-9]{0,8}$/.test(text)) throw new InvalidArgumentError("Write a whole number from 1 on.");
  return Number(text);
}

export function parseBigWhole(text: string): bigint {
  if (!/^[0-9]{1,18}$/.test(text)) throw new InvalidArgumentError("Write a whole number.");
  return BigInt(text);
}

/** For a flag that may be given several times. */
export function collect(text: string, before: readonly string[] | undefined): readonly string[] {
  return [...(before ?? []), text];
}

/** For "name=value" flags that may be given several times. */
export function collectLabel(
  text: string,
  before: Readonly<Record<string, string>> | undefined,
): Readonly<Record<string, string>> {
  const split = text.indexOf("=");
  if (split < 1) throw new InvalidArgumentError("Write name=value.");
  return { ...before, [text.slice(0, split)]: text.slice(split + 1) };
}

/** The name of a resource from its name or from its bare id. */
export function resourceName(collection: string, text: string): string {
  return text.startsWith(`${collection}/`) ? text : `${collection}/${text}`;
}

/** One of the words, for an enum of the contract. */
export function choice<Value>(words: Readonly<Record<string, Value>>): (text: string) => Value {
  return (text) => {
    const found = Object.entries(words).find(([word]) => word === text.toLowerCase());
    if (found === undefined) throw new InvalidArgumentError(`Write one of ${Object.keys(words).join(", ")}.`);
    return found[1];
  };
}

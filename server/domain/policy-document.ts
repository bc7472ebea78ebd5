import { isMap, isScalar, isSeq, LineCounter, type Pair, parseDocument, type YAMLMap } from "yaml";
import { smallestUnit } from "./currency.ts";
import { isEndpoint } from "./endpoint.ts";
import { HoldfastError } from "./errors.ts";
import { type Money, parseAmount } from "./money.ts";

/** The policy of one vault key as a file says it, and its daily caps. */
export interface PolicyDocument {
  readonly vendor: string;
  readonly allowedEndpoints: readonly string[];
  /** Microseconds since 1970; undefined: never. */
  readonly expireTime: bigint | undefined;
  /** One per currency, each a cap of a UTC day on this key alone. At least one. */
  readonly dailyCaps: readonly Money[];
}

/** What is wrong with one field of a policy document. */
export interface PolicyProblem {
  /** As it stands in the document, for example "daily_usd_cap" or "allowed_endpoints[2]"; empty for the whole. */
  readonly field: string;
  /** From 1. */
  readonly line: number;
  /** What is wrong and what to do. */
  readonly message: string;
}

/** A policy document that cannot be used. The message lists every problem, one per line, with its line and field. */
export class PolicyDocumentError extends Error {
  override readonly name = "PolicyDocumentError";
  readonly problems: readonly PolicyProblem[];

  constructor(problems: readonly PolicyProblem[]) {
    super(
      problems
        .map(({ line, field, message }) => `line ${line}: ${field === "" ? "" : `${field} `}${message}`)
        .join("\n"),
    );
    this.problems = problems;
  }
}

const textMax = 65_536;
const known = ["vendor", "daily_usd_cap", "allowed_endpoints", "expires_at"] as const;
const capField = /^daily_([a-z]{3})_cap$/;

/**
 * Reads a policy document, YAML or JSON:
 *
 *     vendor: stripe
 *     daily_usd_cap: 11000.00
 *     allowed_endpoints: ["POST /v1/charges", "GET /v1/charges/:id"]
 *     expires_at: 2026-12-31T23:59:59Z
 *
 * `daily_eur_cap` and so on are caps in other currencies. Amounts are read from the text that stands there, digit by
 * digit, and never become a floating-point number. `now` is in microseconds since 1970. Throws PolicyDocumentError: an
 * unknown or repeated field, a missing one, an amount that is no plain decimal number, an instant that has passed.
 */
export function parsePolicyDocument(text: string, now: bigint): PolicyDocument {
  const lines = new LineCounter();
  if (text.length > textMax) {
    throw new PolicyDocumentError([{ field: "", line: 1, message: "The document is above 64 KiB; shorten it." }]);
  }
  // Failsafe: every value is the text that stands in the document, so 11000.00 stays 11000.00 and 1e4 stays 1e4.
  const document = parseDocument(text.replace(/^\uFEFF/, ""), {
    schema: "failsafe",
    uniqueKeys: false,
    lineCounter: lines,
    prettyErrors: false,
    merge: false,
  });
  const [broken] = document.errors;
  if (broken !== undefined) {
    const { line } = lines.linePos(broken.pos[0]);
    throw new PolicyDocumentError([{ field: "", line, message: `The document is no YAML or JSON: ${broken.message}` }]);
  }
  if (!isMap(document.contents)) {
    throw new PolicyDocumentError([
      { field: "", line: 1, message: `The document must be fields with values: ${known.join(", ")}.` },
    ]);
  }
  return readFields(document.contents, lines, now);
}

/** One field as it stands in the document. */
interface Field {
  readonly name: string;
  readonly line: number;
  readonly value: unknown;
}

function readFields(map: YAMLMap, lines: LineCounter, now: bigint): PolicyDocument {
  const problems: PolicyProblem[] = [];
  const fields = new Map<string, Field>();
  for (const pair of map.items) {
    const field = fieldOf(pair, lines);
    const earlier = fields.get(field.name);
    if (earlier === undefined) fields.set(field.name, field);
    else problems.push({ ...placeOf(field), message: `stands on line ${earlier.line} already; keep one of them.` });
  }
  const read = <Result>(name: string, reader: (field: Field) => Result): Result | undefined => {
    const field = fields.get(name);
    if (field === undefined) return undefined;
    try {
      return reader(field);
    } catch (error) {
      if (!(error instanceof PolicyDocumentError)) throw error;
      problems.push(...error.problems);
      return undefined;
    }
  };
  const vendor = read("vendor", readVendor);
  const allowedEndpoints = read("allowed_endpoints", (field) => readEndpoints(field, lines));
  const expireTime = read("expires_at", (field) => readInstant(field, now));
  const capNames = [...fields.keys()].filter((name) => capField.test(name));
  const dailyCaps = capNames.map((name) => read(name, (field) => readCap(field, vendor)));
  for (const field of fields.values()) {
    if (!isKnown(field.name))
      problems.push({ ...placeOf(field), message: `is no field of a policy; ${meant(field.name)}` });
  }
  problems.push(...missing(fields));
  if (problems.length > 0) throw new PolicyDocumentError(problems.toSorted((one, other) => one.line - other.line));
  return {
    vendor: vendor ?? "",
    allowedEndpoints: allowedEndpoints ?? [],
    expireTime,
    dailyCaps: dailyCaps.filter((cap) => cap !== undefined),
  };
}

function fieldOf(pair: Pair, lines: LineCounter): Field {
  const { key, value } = pair;
  const range = isScalar(key) ? key.range : undefined;
  const name = isScalar(key) ? String(key.value) : "(a name that is no text)";
  return { name, line: range == null ? 1 : lines.linePos(range[0]).line, value };
}

function placeOf(field: Field): Omit<PolicyProblem, "message"> {
  return { field: field.name, line: field.line };
}

function wrong(field: Field, message: string): PolicyDocumentError {
  return new PolicyDocumentError([{ ...placeOf(field), message }]);
}

function textOf(field: Field, example: string): string {
  const { value } = field;
  if (!isScalar(value) || typeof value.value !== "string" || value.value === "") {
    throw wrong(field, `must have one value, for example ${example}.`);
  }
  return value.value;
}

function readVendor(field: Field): string {
  const vendor = textOf(field, "stripe");
  if (/^[a-z][a-z0-9_]{0,31}$/.test(vendor)) return vendor;
  throw wrong(field, 'must be a name like "stripe": a lower-case letter, then up to 31 of a–z, 0–9 and _.');
}

function readEndpoints(field: Field, lines: LineCounter): readonly string[] {
  const { value } = field;
  const example = '"POST /v1/charges" or "GET /v1/charges/:id"';
  if (!isSeq(value) || value.items.length === 0 || value.items.length > 100) {
    throw wrong(field, `must be a list of 1 to 100 endpoints, each like ${example}.`);
  }
  return value.items.map((item, index) => {
    const name = `${field.name}[${index}]`;
    const range = isScalar(item) ? item.range : undefined;
    const line = range == null ? field.line : lines.linePos(range[0]).line;
    const endpoint = textOf({ name, line, value: item }, example);
    if (isEndpoint(endpoint)) return endpoint;
    throw wrong({ name, line, value: item }, `must be a method, one space and a canonical path, like ${example}.`);
  });
}

const instant = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?([Zz]|[+-]\d\d:\d\d)$/;

function readInstant(field: Field, now: bigint): bigint {
  const text = textOf(field, "2026-12-31T23:59:59Z");
  const [, year, month, day, hour, minute, second, fraction = "", zone = ""] = instant.exec(text) ?? [];
  const local = `${year}-${month}-${day}T${hour}:${minute}:${second}Z`;
  const ms = year === undefined ? Number.NaN : Date.parse(local);
  // A day that the month does not have is moved into the next one by the parser, not refused.
  if (Number.isNaN(ms) || new Date(ms).toISOString() !== local.replace("Z", ".000Z")) {
    throw wrong(
      field,
      "must be an instant with its zone, for example 2026-12-31T23:59:59Z or 2026-12-31T23:59:59+01:00.",
    );
  }
  const micros = BigInt(ms - offsetMs(zone)) * 1000n + BigInt(fraction.padEnd(6, "0"));
  if (micros > now) return micros;
  throw wrong(field, `has passed (${text}); the key would grant nothing. Name a later instant.`);
}

function offsetMs(zone: string): number {
  if (zone === "Z" || zone === "z") return 0;
  const [hours = "0", minutes = "0"] = zone.slice(1).split(":");
  return (zone.startsWith("-") ? -1 : 1) * (Number(hours) * 60 + Number(minutes)) * 60_000;
}

function readCap(field: Field, vendor: string | undefined): Money {
  const currency = capField.exec(field.name)?.[1] ?? "";
  const text = textOf(field, "11000.00");
  let cap: Money;
  try {
    cap = parseAmount(currency, text, field.name, false);
  } catch (error) {
    if (!(error instanceof HoldfastError)) throw error;
    const range = error.reason === "AMOUNT_OUT_OF_RANGE" ? " of at most 1,000,000,000,000" : " above zero";
    throw wrong(
      field,
      `is "${text.slice(0, 40)}"; write a plain decimal number${range} with at most 6 decimals, for example 11000.00.`,
    );
  }
  if (vendor === "stripe" && cap.micros % smallestUnit(currency) !== 0n) {
    throw wrong(
      field,
      `is ${text}, which is no whole number of ${currency}'s smallest unit; Stripe charges no part of it.`,
    );
  }
  return cap;
}

function isKnown(name: string): boolean {
  return (known as readonly string[]).includes(name) || capField.test(name);
}

function missing(fields: ReadonlyMap<string, Field>): PolicyProblem[] {
  const problems: PolicyProblem[] = [];
  const miss = (field: string, message: string) => problems.push({ field, line: 1, message });
  if (!fields.has("vendor")) miss("vendor", "is missing; add, for example, vendor: stripe.");
  if (!fields.has("allowed_endpoints")) {
    miss(
      "allowed_endpoints",
      'is missing, and what is not listed is denied; add allowed_endpoints: ["POST /v1/charges"].',
    );
  }
  if (![...fields.keys()].some((name) => capField.test(name))) {
    miss("daily_usd_cap", "is missing; add a cap such as daily_usd_cap: 11000.00, or daily_eur_cap and so on.");
  }
  return problems;
}

/** The field that was most likely meant. */
function meant(name: string): string {
  const near = known.find((field) => distance(field, name.toLowerCase().slice(0, 40)) <= 3);
  return near === undefined ? `there are ${known.join(", ")} and daily_<currency>_cap.` : `did you mean ${near}?`;
}

/** How many letters must be changed to make one name of the other. */
function distance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, i) => i);
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1) {
      const same = one[i - 1] === other[j - 1] ? 0 : 1;
      next.push(Math.min((row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1, (row[j - 1] ?? 0) + same));
    }
    row = next;
  }
  return row[other.length] ?? 0;
}

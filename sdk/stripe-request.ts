import { createHash } from "node:crypto";
import { SpendUnsupportedError } from "./errors.ts";
import { type DecimalMoney, fromStripeChargeAmount } from "./money.ts";

/** One `key=value` of a form body: as it was written, and decoded. */
export interface FormField {
  readonly raw: string;
  readonly key: string;
  readonly value: string;
}

/** What decides about money may appear once, as a plain value, spelled exactly so. */
const GUARDED = new Set(["amount", "currency", "confirm", "capture", "capture_method"]);

function malformed(endpoint: string, why: string): SpendUnsupportedError {
  return new SpendUnsupportedError(
    endpoint,
    `has a body that two parsers could read differently: ${why}`,
    "Send it plainly.",
  );
}

function decode(endpoint: string, text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch (cause) {
    const error = malformed(endpoint, "a malformed escape.");
    error.cause = cause;
    throw error;
  }
}

/**
 * Parses the form body of a request that moves money. Refuses with a SpendUnsupportedError whatever could be read in
 * two ways: repeated names, a guarded name in another spelling or as a list, malformed escapes.
 */
export function parseForm(endpoint: string, body: string): readonly FormField[] {
  const fields: FormField[] = [];
  const seen = new Set<string>();
  for (const raw of body === "" ? [] : body.split("&")) {
    const split = raw.indexOf("=");
    if (split < 1) throw malformed(endpoint, "a part without a name and value.");
    const key = decode(endpoint, raw.slice(0, split));
    if (seen.has(key) && !key.endsWith("[]")) throw malformed(endpoint, `${JSON.stringify(key)} is repeated.`);
    seen.add(key);
    const bare = (key.split("[")[0] ?? "").trim().toLowerCase();
    if (key.includes("\0") || (GUARDED.has(bare) && key !== bare)) {
      throw malformed(endpoint, `${JSON.stringify(key)} is not a plain name.`);
    }
    fields.push({ raw, key, value: decode(endpoint, raw.slice(split + 1)) });
  }
  return fields;
}

export function fieldValue(fields: readonly FormField[], key: string): string | undefined {
  return fields.find((field) => field.key === key)?.value;
}

/** The fields as a body again, in their order and with the caller's own escapes. */
export function joinForm(fields: readonly FormField[]): string {
  return fields.map((field) => field.raw).join("&");
}

export function newField(key: string, value: string): FormField {
  return { raw: `${encodeURIComponent(key)}=${encodeURIComponent(value)}`, key, value };
}

const AMOUNT = /^[1-9][0-9]{0,14}$/;

/** The amount and currency that the request asks for, as Stripe would read them. */
export function moneyOf(endpoint: string, fields: readonly FormField[]): DecimalMoney {
  const amount = fieldValue(fields, "amount");
  const currency = fieldValue(fields, "currency");
  if (amount === undefined || !AMOUNT.test(amount)) {
    throw new SpendUnsupportedError(
      endpoint,
      `has no usable amount (${amount ?? "none"})`,
      "State a whole number above 0.",
    );
  }
  try {
    return fromStripeChargeAmount(BigInt(amount), currency ?? "");
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : "";
    const error = new SpendUnsupportedError(endpoint, "has an amount that Stripe would not charge", why);
    error.cause = cause;
    throw error;
  }
}

/**
 * SHA-256 of what the body asks for, independent of the order and the escapes. `expand` only changes the answer, so a
 * retry may ask for more.
 */
export function bodyFingerprint(fields: readonly FormField[]): string {
  const pairs = fields.filter(({ key }) => !isExpand(key)).map(({ key, value }) => [key, value] as const);
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return createHash("sha256").update(JSON.stringify(pairs)).digest("hex");
}

export function isExpand(key: string): boolean {
  return key === "expand" || key.startsWith("expand[");
}

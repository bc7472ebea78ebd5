import { createHash } from "node:crypto";
import { SpendUnsupportedError } from "./errors.ts";

/** One `key=value` of a form body: as it was written, and decoded. */
export interface FormField {
  readonly raw: string;
  readonly key: string;
  readonly value: string;
}

/** A name with its groups, as Stripe's clients write it. Lenient parsers read "[amount]" and "amount]" as "amount". */
const NAME = /^[a-z][a-z0-9_]*(?:\[[^[\]]*\])*$/;

/** What decides about money may appear once, as a plain value, spelled exactly so. */
const GUARDED = new Set([
  "active",
  "amount",
  "amount_to_capture",
  "amount_to_confirm",
  "auto_advance",
  "capture",
  "capture_method",
  "charge",
  "confirm",
  "currency",
  "final_capture",
  "invoice",
  "paid_out_of_band",
  "payment_intent",
  "source_transaction",
]);

/** Of these a "1" or a "True" would be read by one side only. */
const FLAGS = new Set(["active", "auto_advance", "capture", "confirm", "final_capture", "paid_out_of_band"]);

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
 * Parses the parameters of a request that moves money, a form or, for "/v2/", JSON whose members become fields such as
 * "amount[value]". Refuses with a SpendUnsupportedError whatever could be read in two ways: repeated names, a guarded
 * name in another spelling or as a list, flags that are neither "true" nor "false", malformed escapes.
 */
export function parseBody(endpoint: string, text: string): readonly FormField[] {
  return endpoint.includes(" /v2/") ? parseJson(endpoint, text) : parseForm(endpoint, text);
}

function parseForm(endpoint: string, body: string): readonly FormField[] {
  const fields: FormField[] = [];
  const seen = new Set<string>();
  const nested = NESTED_AMOUNT.has(endpoint);
  for (const raw of body === "" ? [] : body.split("&")) {
    const split = raw.indexOf("=");
    // Some parsers end a parameter at a semicolon too.
    if (split < 1 || raw.includes(";")) throw malformed(endpoint, "a part without a name and value.");
    const key = decode(endpoint, raw.slice(0, split));
    if (seen.has(key) && !key.endsWith("[]")) throw malformed(endpoint, `${JSON.stringify(key)} is repeated.`);
    seen.add(key);
    const bare = (key.split("[")[0] ?? "").trim().toLowerCase();
    if (
      !NAME.test(key) ||
      key.includes("\0") ||
      (GUARDED.has(bare) && key !== bare && !(nested && key.startsWith("amount[")))
    ) {
      throw malformed(endpoint, `${JSON.stringify(key)} is not a plain name.`);
    }
    const value = decode(endpoint, raw.slice(split + 1));
    if (FLAGS.has(key) && value !== "true" && value !== "false") {
      throw malformed(endpoint, `${JSON.stringify(key)} is neither true nor false.`);
    }
    fields.push({ raw, key, value });
  }
  return fields;
}

// The amount of a credit grant is an object in a form body.
const NESTED_AMOUNT = new Set(["POST /v1/billing/credit_grants"]);

function parseJson(endpoint: string, text: string): readonly FormField[] {
  if (text === "") return [];
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    const error = malformed(endpoint, "no JSON.");
    error.cause = cause;
    throw error;
  }
  // A repeated member is seen only by what is lost of it.
  if (JSON.stringify(body) !== text) throw malformed(endpoint, "JSON that reads back as another text.");
  const fields = flatten("", body);
  if (new Set(fields.map(({ key }) => key)).size < fields.length) {
    throw malformed(endpoint, "a member that is named like a nested one.");
  }
  return fields;
}

function flatten(key: string, value: unknown): readonly FormField[] {
  if (typeof value !== "object" || value === null) return [{ raw: "", key, value: String(value) }];
  return Object.entries(value).flatMap(([name, member]) => flatten(key === "" ? name : `${key}[${name}]`, member));
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

/**
 * SHA-256 of what the body asks for, independent of the order and the escapes. `expand` only changes the answer, so a
 * retry may ask for more.
 */
export function bodyFingerprint(fields: readonly FormField[]): string {
  const pairs = fields.filter(({ key }) => !isExpand(key)).map(({ key, value }) => [key, value] as const);
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return createHash("sha256").update(JSON.stringify(pairs)).digest("hex");
}

/** 32 hex digits of SHA-256 of what a request is authenticated with; empty without that. */
export function credentialFingerprint(secret: string): string {
  return secret === "" ? "" : createHash("sha256").update(secret).digest("hex").slice(0, 32);
}

export function isExpand(key: string): boolean {
  return key === "expand" || key.startsWith("expand[");
}

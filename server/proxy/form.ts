import { checkNames, stemOf } from "./form-name.ts";
import { refuse } from "./refusal.ts";
import type { Pair } from "./vendor.ts";

/** What the value of a parameter that decides about money has to be. */
export type MoneyKind =
  /** A whole number of the smallest unit, 1 or more. */
  | "amount"
  /** The same, or below zero. */
  | "signed_amount"
  /** A whole number, or nothing. */
  | "part"
  /** Three letters; written in lower case. */
  | "currency"
  /** "true" or "false"; written in lower case. */
  | "flag"
  /** An id or a word, or nothing. */
  | "word"
  /** A group only: "name[member]". */
  | "group"
  /** A list only: "name[]" or "name[0]". */
  | "list";

export interface FormRules {
  /** The names that may stand at the top level; undefined for any. */
  readonly closed: ReadonlySet<string> | undefined;
  /** What decides about money, by its whole name. It may be sent in this form only. */
  readonly money: ReadonlyMap<string, MoneyKind>;
}

/** In a target there is nothing that a URL parser would change; a body may also have spaces and letters as they are. */
export type Place = "query" | "body";

const pairsMax = 5_000;
const rawPatterns: Readonly<Record<Place, RegExp>> = {
  query: /^[!-:<-~]*$/,
  body: /^[ -:<-~\x80-\xff]*$/,
};
const valuePatterns: Readonly<Record<Exclude<MoneyKind, "list">, RegExp>> = {
  amount: /^[1-9][0-9]{0,15}$/,
  signed_amount: /^-?[1-9][0-9]{0,15}$/,
  part: /^(?:0|[1-9][0-9]{0,15})?$/,
  currency: /^[A-Za-z]{3}$/,
  flag: /^(?:true|false|True|False|TRUE|FALSE)$/,
  // Who decodes twice reads the same.
  word: /^[!-$&-~]{0,500}$/,
  group: /^$/,
};
const wanted: Readonly<Record<MoneyKind, string>> = {
  amount: "must be a whole number of the smallest unit, 1 or more, written plainly",
  signed_amount: "must be a whole number of the smallest unit other than 0, written plainly",
  part: "must be a whole number of the smallest unit, written plainly",
  currency: "must be a currency of three letters",
  flag: "must be true or false",
  word: "must be visible ASCII without '%'",
  group: "must be sent as a group",
  list: "must be sent as a list",
};
// Of the control characters only those that text has.
const textPattern = /^[\t\n\r -~\u00a0-\u{10ffff}]*$/u;
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * Reads a query or a form body, strictly and once: valid escapes, valid UTF-8, names as the vendors' clients write them,
 * no name twice but "x[]", no name that is a value and a group at the same time. `text` has one character per byte.
 * Refuses with 400 what two parsers could read differently.
 */
export function readForm(text: string, place: Place, rules: FormRules): readonly Pair[] {
  if (text === "") return [];
  const parts = text.split("&");
  if (parts.length > pairsMax) throw refuse(400, "too_many_parameters", `Send at most ${pairsMax} parameters.`);
  const pairs = parts.map((part) => readPair(part, rawPatterns[place]));
  for (const { key } of pairs) checkKnown(key, rules.closed);
  checkNames(pairs.map(({ key }) => key));
  return pairs.map((pair) => checkPair(pair, rules));
}

/**
 * Some parsers end a parameter at a semicolon too, some take an empty or a bare one for something, and some look for the
 * bracket that ends a name before they look for the sign behind it.
 */
function readPair(part: string, rawPattern: RegExp): Pair {
  const at = part.indexOf("=");
  if (at < 1 || !rawPattern.test(part) || /(?:\]|%5[Dd])=/.test(part.slice(at + 1))) {
    throw malformed("Send each parameter as name=value, with ';', '=' and control characters escaped.");
  }
  return { key: decode(part.slice(0, at)), value: decode(part.slice(at + 1)) };
}

/** Half a letter as it is and half of it escaped is no letter: some decode the one before the other. */
function decode(text: string): string {
  try {
    const letters = /^[ -~]*$/.test(text) ? text : utf8.decode(Buffer.from(text, "latin1"));
    return decodeURIComponent(letters.replaceAll("+", " "));
  } catch {
    throw malformed("Send names and values in UTF-8, and escape with % and two hex digits.");
  }
}

function checkKnown(key: string, closed: ReadonlySet<string> | undefined): void {
  const stem = stemOf(key);
  if (closed === undefined || closed.has(stem)) return;
  const named = /^[A-Za-z0-9_.-]{1,64}$/.test(stem) ? stem : undefined;
  throw refuse(
    400,
    "unknown_parameter",
    "The request moves money, and Holdfast does not know one of its parameters. Leave it out, or see whether it is " +
      "spelled right.",
    named,
  );
}

function checkPair({ key, value }: Pair, { money }: FormRules): Pair {
  if (!textPattern.test(value)) throw malformed("A value has control characters.", stemOf(key));
  for (let at = key.indexOf("["); at >= 0; at = key.indexOf("[", at + 1)) {
    const outer = key.slice(0, at);
    const kind = money.get(outer);
    const member = key.slice(at + 1, key.indexOf("]", at));
    const isList = /^[0-9]*$/.test(member);
    if (kind === undefined || (kind === "group" && !isList) || (kind === "list" && isList)) continue;
    throw malformed(`${outer} ${wanted[kind]}.`, outer);
  }
  const kind = money.get(key);
  if (kind === undefined) return { key, value };
  if (!valuePatterns[kind === "list" ? "group" : kind].test(value)) throw malformed(`${key} ${wanted[kind]}.`, key);
  // Clients write these in several ways, and mean one.
  return kind === "currency" || kind === "flag" ? { key, value: value.toLowerCase() } : { key, value };
}

/** The parameters as a form again. What goes upstream is this, never what came in. */
export function writeForm(pairs: readonly Pair[]): string {
  return pairs.map(({ key, value }) => `${encode(key)}=${encode(value)}`).join("&");
}

function encode(text: string): string {
  return encodeURIComponent(text).replaceAll("%5B", "[").replaceAll("%5D", "]");
}

function malformed(message: string, param?: string): ReturnType<typeof refuse> {
  return refuse(400, "malformed_parameter", message, param);
}

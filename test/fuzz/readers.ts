import qs from "qs";
import { readLikeRack, type Tree } from "./rack.ts";

/** What a reader got out of parameters: values by their place, "items.0.price". */
export type Reading = ReadonlyMap<string, string>;

/** Ways in which other programs read a form or a query, given one character per byte. Each may throw. */
export const formReaders: Readonly<Record<string, (text: string) => Reading>> = {
  qs: (text) => flat(treeOf(qs.parse(utf8(text), { depth: 32, parameterLimit: 10_000, arrayLimit: 20 }))),
  "qs, first of two": (text) => flat(treeOf(qs.parse(utf8(text), { ...qsOptions, duplicates: "first" }))),
  "qs, last of two": (text) => flat(treeOf(qs.parse(utf8(text), { ...qsOptions, duplicates: "last" }))),
  URLSearchParams: (text) => flatPairs([...new URLSearchParams(utf8(text))], "all"),
  "URLSearchParams, first of two": (text) => flatPairs([...new URLSearchParams(utf8(text))], "first"),
  Rack: (text) => flat(readLikeRack(text)),
  "a reader that folds cases and trims": (text) =>
    flatPairs(
      [...new URLSearchParams(utf8(text))].map(([name, value]) => [foldedStem(name), value.trim()]),
      "all",
    ),
  "a reader that ends at NUL": (text) =>
    flatPairs(
      [...new URLSearchParams(utf8(text))].map(([name, value]) => [cut(name), cut(value)]),
      "all",
    ),
  "a reader that decodes twice": (text) =>
    flatPairs(
      [...new URLSearchParams(utf8(text))].map(([name, value]) => [decodedAgain(name), decodedAgain(value)]),
      "all",
    ),
};

const qsOptions = { depth: 32, parameterLimit: 10_000, arrayLimit: 20 };

/** A program that was given bytes takes them for UTF-8. */
function utf8(text: string): string {
  return Buffer.from(text, "latin1").toString("utf8");
}

/** Of the lenient readers only the names that decide matter, and those stand at the top. */
function foldedStem(name: string): string {
  const at = name.indexOf("[");
  return at < 0 ? name.trim().toLowerCase() : name.slice(0, at).trim().toLowerCase() + name.slice(at);
}

function cut(text: string): string {
  return text.split("\0")[0] ?? "";
}

function decodedAgain(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Every member of a list counts, in its order. A name that comes again is a list, or the first or the last wins. */
export function flatPairs(pairs: readonly (readonly [string, string])[], which: "first" | "all"): Reading {
  const found = new Map<string, string>();
  const counts = new Map<string, number>();
  for (const [name, value] of pairs) {
    const place = placeOf(name);
    const count = counts.get(name) ?? 0;
    counts.set(name, count + 1);
    if (name.endsWith("[]")) found.set(`${place}${count}`, value);
    else if (count === 0) found.set(place, value);
    else if (which === "all") found.set(`${place}.${count}`, value);
  }
  return found;
}

/** "items.0.price" of "items[0][price]"; of "items[]", "items." to be counted on. */
function placeOf(name: string): string {
  return name.replaceAll("]", "").replaceAll("[", ".");
}

function treeOf(value: unknown): Tree {
  if (Array.isArray(value)) return value.map(treeOf);
  if (typeof value !== "object" || value === null) return String(value);
  return new Map(Object.entries(value).map(([name, member]) => [name, treeOf(member)]));
}

function flat(tree: Tree): Reading {
  const found = new Map<string, string>();
  const walk = (node: Tree, place: string): void => {
    if (typeof node === "string") {
      found.set(place, node);
      return;
    }
    for (const [name, member] of node.entries()) walk(member, place === "" ? String(name) : `${place}.${name}`);
  };
  walk(tree, "");
  return found;
}

/** Ways in which other programs read the value of a header that came any number of times. */
export const headerReaders: Readonly<Record<string, (values: readonly string[]) => string | undefined>> = {
  "the first": (values) => values[0]?.trim(),
  "the last": (values) => values.at(-1)?.trim(),
  "all together": (values) => (values.length === 0 ? undefined : values.map((value) => value.trim()).join(", ")),
};

/** Members of JSON by their place, with what a reader does with a member that comes twice. @throws on what is no JSON */
export function readJsonLike(text: string, which: "first" | "last", folds: boolean): Reading {
  JSON.parse(text);
  const found = new Map<string, string>();
  let at = 0;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  const walk = (place: string, taken: boolean): void => {
    const token = tokens[at] ?? "";
    at += 1;
    if (token !== "{" && token !== "[") {
      if (taken) found.set(place, JSON.stringify(JSON.parse(token)));
      return;
    }
    const seen = new Set<string>();
    for (let index = 0; tokens[at] !== "}" && tokens[at] !== "]"; index += 1) {
      let name = String(index);
      if (token === "{") {
        name = JSON.parse(tokens[at] ?? "") as string;
        if (folds) name = name.toLowerCase();
        at += 2;
      }
      const again = seen.has(name);
      seen.add(name);
      const inner = `${place}/${name}`;
      if (again && which === "last") for (const key of found.keys()) if (key.startsWith(inner)) found.delete(key);
      walk(inner, taken && !(again && which === "first"));
      if (tokens[at] === ",") at += 1;
    }
    at += 1;
  };
  walk("", true);
  return found;
}

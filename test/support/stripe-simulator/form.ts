import { invalidRequest } from "./errors.ts";

/** A decoded form value: text, a list, or a nested group such as `metadata[...]`. */
export type Param = string | Param[] | Params;
export interface Params {
  [name: string]: Param;
}

const depthMax = 8;

/**
 * Decodes an application/x-www-form-urlencoded text with Stripe's nesting: `metadata[a]=1`, `types[]=x`, `types[0]=x`.
 * Strict: broken escapes, broken brackets, a name given twice and a name that is both a value and a group are refused,
 * because what Stripe does with them is not documented and a client must not depend on it.
 */
export function parseForm(text: string): Params {
  const root = group();
  for (const pair of text.split("&")) {
    if (pair === "") continue;
    const split = pair.indexOf("=");
    const name = decode(split < 0 ? pair : pair.slice(0, split));
    const value = split < 0 ? "" : decode(pair.slice(split + 1));
    const path = namePath(name);
    place(root, path, value, name);
  }
  return listsOf(root) as Params;
}

/** Reads the JSON body of a v2 request into the same shape: numbers and flags as text, null as the empty text. */
export function parseJson(text: string): Params {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw invalidRequest("Invalid request body: not JSON.");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidRequest("Invalid request body: not a JSON object.");
  }
  return ofJson(value) as Params;
}

function ofJson(value: unknown): Param {
  if (Array.isArray(value)) return value.map(ofJson);
  if (typeof value === "string") return value;
  if (typeof value !== "object" || value === null) return value === null ? "" : JSON.stringify(value);
  const params = group();
  for (const [name, inner] of Object.entries(value)) params[name] = ofJson(inner);
  return params;
}

/** A text that is equal for equal parameters, whatever order they were sent in. */
export function canonicalParams(value: Param): string {
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonicalParams).join(",")}]`;
  const names = Object.keys(value).toSorted();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonicalParams(value[name] ?? "")}`).join(",")}}`;
}

/** No prototype, so that a parameter named `__proto__` is only a name. */
function group(): Params {
  return Object.create(null) as Params;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw invalidRequest("Invalid request body: a percent escape is broken.");
  }
}

/** `a[b][]` → `["a", "b", ""]`. */
function namePath(name: string): string[] {
  const match = /^([^[\]]+)((?:\[[^[\]]*\])*)$/.exec(name);
  if (match === null) throw invalidRequest(`Invalid parameter name: ${name}`, { param: name });
  const inner = (match[2] ?? "").slice(1, -1);
  const path = [match[1] ?? "", ...(match[2] === "" ? [] : inner.split("]["))];
  if (path.length > depthMax) throw invalidRequest(`Parameter is nested too deeply: ${name}`, { param: name });
  return path;
}

function place(root: Params, path: readonly string[], value: string, name: string): void {
  let at = root;
  for (const [index, part] of path.entries()) {
    const step = part === "" ? String(Object.keys(at).length) : part;
    const present = at[step];
    if (index === path.length - 1) {
      if (present !== undefined) throw invalidRequest(`Parameter is given twice: ${name}`, { param: name });
      at[step] = value;
      return;
    }
    if (present === undefined) at[step] = group();
    else if (typeof present === "string" || Array.isArray(present)) {
      throw invalidRequest(`Parameter is a value and a group: ${name}`, { param: name });
    }
    at = at[step] as Params;
  }
}

/** Groups whose names are 0, 1, 2 … are lists. */
function listsOf(value: Param): Param {
  if (typeof value === "string" || Array.isArray(value)) return value;
  const names = Object.keys(value);
  for (const name of names) value[name] = listsOf(value[name] ?? "");
  const isList = names.length > 0 && names.every((name, index) => name === String(index));
  return isList ? names.map((name) => value[name] ?? "") : value;
}

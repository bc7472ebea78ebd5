import type { Param, Params } from "./form.ts";

/** Parameters that are about the request, or that their own code puts into the object. */
const notEchoed = new Set(["expand", "metadata"]);

/** Fields that look like numbers and are text. */
const text = /(phone|code|number|name|description|descriptor|decimal|line[12]|email|id|identifier|secret|token|pin)$/;

/** The parameters of a request as the fields of an answer: numbers and flags get their type back, empty ones go. */
export function echoed(params: Params): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(params)) {
    if (!notEchoed.has(name)) fields[name] = echo(name, value);
  }
  return fields;
}

function echo(name: string, value: Param): unknown {
  if (Array.isArray(value)) return value.map((item) => echo(name, item));
  if (typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([inner, item]) => [inner, echo(inner, item)]));
  }
  if (value === "") return null;
  if (value === "true" || value === "false") return value === "true";
  return /^-?[0-9]{1,15}$/.test(value) && !text.test(name) ? Number(value) : value;
}

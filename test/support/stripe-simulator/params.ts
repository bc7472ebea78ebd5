import { invalidRequest } from "./errors.ts";
import type { Param, Params } from "./form.ts";

const amountMax = 999_999_999_999;

/** The text of a parameter; undefined when it is missing or empty, which is how Stripe spells "unset". */
export function textParam(params: Params, name: string): string | undefined {
  const value = params[name];
  if (value === undefined || value === "") return undefined;
  if (typeof value !== "string") throw invalidRequest(`Invalid string: ${JSON.stringify(value)}`, { param: name });
  return value;
}

export function integerParam(params: Params, name: string): number | undefined {
  const value = textParam(params, name);
  if (value === undefined) return undefined;
  if (!/^-?[0-9]{1,15}$/.test(value)) {
    throw invalidRequest(`Invalid integer: ${value}`, { code: "parameter_invalid_integer", param: name });
  }
  return Number(value);
}

export function flagParam(params: Params, name: string): boolean | undefined {
  const value = textParam(params, name);
  if (value === undefined) return undefined;
  if (value !== "true" && value !== "false") throw invalidRequest(`Invalid boolean: ${value}`, { param: name });
  return value === "true";
}

/** A value from a closed set. */
export function choiceParam<T extends string>(params: Params, name: string, choices: readonly T[]): T | undefined {
  const value = textParam(params, name);
  if (value === undefined) return undefined;
  const choice = choices.find((candidate) => candidate === value);
  if (choice === undefined) {
    throw invalidRequest(`Invalid ${name}: must be one of ${choices.join(", ")}`, { param: name });
  }
  return choice;
}

/** A positive amount in minor units. */
export function amountParam(params: Params, name: string): number | undefined {
  const value = integerParam(params, name);
  if (value === undefined) return undefined;
  if (value < 1) {
    throw invalidRequest("This value must be greater than or equal to 1.", {
      code: "parameter_invalid_integer",
      param: name,
    });
  }
  if (value > amountMax) {
    throw invalidRequest("Amount is larger than any charge may be.", { code: "amount_too_large", param: name });
  }
  return value;
}

export function currencyParam(params: Params, name: string): string | undefined {
  const value = textParam(params, name)?.toLowerCase();
  if (value !== undefined && !/^[a-z]{3}$/.test(value)) {
    throw invalidRequest(`Invalid currency: ${value}`, { param: name });
  }
  return value;
}

export function requiredParam<T>(value: T | undefined, name: string): T {
  if (value === undefined) {
    throw invalidRequest(`Missing required param: ${name}.`, { code: "parameter_missing", param: name });
  }
  return value;
}

/** `metadata[...]` laid over what the object has; an empty value removes its name. */
export function mergedMetadata(params: Params, present: Readonly<Record<string, string>> = {}): Record<string, string> {
  const value: Param | undefined = params["metadata"];
  if (value === undefined) return { ...present };
  if (value === "") return {};
  if (typeof value === "string" || Array.isArray(value)) {
    throw invalidRequest("Invalid object: metadata", { param: "metadata" });
  }
  const merged = { ...present };
  for (const [name, text] of Object.entries(value)) {
    if (typeof text !== "string") throw invalidRequest("Metadata values must be text.", { param: `metadata[${name}]` });
    if (text === "") delete merged[name];
    else merged[name] = text;
  }
  return merged;
}

/** A nested group such as `invoice_settings[...]`; empty when it is missing. */
export function groupParam(params: Params, name: string): Params {
  const value = params[name];
  if (value === undefined || value === "") return {};
  if (typeof value === "string" || Array.isArray(value)) throw invalidRequest("Invalid object", { param: name });
  return value;
}

/** A list of groups such as `items[0][price]`; empty when it is missing. */
export function groupsParam(params: Params, name: string): Params[] {
  const value = params[name];
  if (value === undefined || value === "") return [];
  if (!Array.isArray(value)) throw invalidRequest("Invalid array", { param: name });
  return value.map((item, index) => {
    if (typeof item === "string" || Array.isArray(item)) {
      throw invalidRequest("Invalid object", { param: `${name}[${index}]` });
    }
    return item;
  });
}

/** An amount in minor units that may be negative, but not zero: a credit or a debit. */
export function signedAmountParam(params: Params, name: string): number | undefined {
  const value = integerParam(params, name);
  if (value === 0) throw invalidRequest("This value must not be 0.", { param: name });
  return value;
}

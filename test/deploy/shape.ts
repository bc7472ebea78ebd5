/** What a document may look like: every field that is not named is a mistake, as Kubernetes' own strict check has it. */
export type Shape =
  | "text"
  | "integer"
  | "flag"
  | "text or integer"
  | "empty"
  | { readonly each: Shape }
  | { readonly list: Shape }
  | { readonly fields: Readonly<Record<string, Shape>>; readonly needed?: readonly string[] };

export const text = "text";
export const integer = "integer";
export const flag = "flag";
export const list = (shape: Shape): Shape => ({ list: shape });
/** A map with names of the author's own. */
export const each = (shape: Shape): Shape => ({ each: shape });
export const fields = (shapes: Readonly<Record<string, Shape>>, ...needed: readonly string[]): Shape => ({
  fields: shapes,
  needed,
});

/** What is wrong with a document, each with its path; nothing where it fits. */
export function misfits(value: unknown, shape: Shape, path = ""): string[] {
  if (typeof shape === "string")
    return fitsScalar(value, shape) ? [] : [`${path}: ${JSON.stringify(value)} is no ${shape}`];
  if ("list" in shape) {
    if (!Array.isArray(value)) return [`${path}: not a list`];
    return value.flatMap((one, n) => misfits(one, shape.list, `${path}[${n}]`));
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [`${path}: not a map`];
  const entries = Object.entries(value);
  if ("each" in shape) return entries.flatMap(([name, one]) => misfits(one, shape.each, `${path}.${name}`));
  const missing = (shape.needed ?? []).filter((name) => !(name in value)).map((name) => `${path}.${name}: missing`);
  const wrong = entries.flatMap(([name, one]) => {
    const known = shape.fields[name];
    return known === undefined ? [`${path}.${name}: not a field`] : misfits(one, known, `${path}.${name}`);
  });
  return [...missing, ...wrong];
}

function fitsScalar(value: unknown, shape: Shape & string): boolean {
  switch (shape) {
    case "text":
      return typeof value === "string";
    case "integer":
      return Number.isInteger(value);
    case "flag":
      return typeof value === "boolean";
    case "text or integer":
      return typeof value === "string" || Number.isInteger(value);
    case "empty":
      return typeof value === "object" && value !== null && Object.keys(value).length === 0;
    default:
      return false;
  }
}

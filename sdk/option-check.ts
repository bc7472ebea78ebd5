/** Throws a TypeError unless `value` is an object with no other properties than `known` has. */
export function refuseUnknown(what: string, value: unknown, known: Readonly<Record<string, true>>): void {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new TypeError(`${what} must be an object; got ${describe(value)}.`);
  }
  const unknown = Object.keys(value).filter((name) => !Object.hasOwn(known, name));
  if (unknown.length === 0) return;
  throw new TypeError(
    `Unknown in ${what}: ${unknown.map((name) => JSON.stringify(name)).join(", ")}. ` +
      `Remove or correct it; known are ${Object.keys(known).join(", ")}.`,
  );
}

/** Throws a TypeError unless `value` is a number of `unit` in the range; `whole` asks for a whole number. */
export function checkNumber(
  name: string,
  value: unknown,
  range: { readonly min: number; readonly max: number; readonly unit: string; readonly whole?: boolean },
): void {
  const { min, max, unit, whole = false } = range;
  const right = typeof value === "number" && value >= min && value <= max && (!whole || Number.isInteger(value));
  if (!right) {
    throw new TypeError(
      `${name} must be ${min} to ${max} ${unit}; got ${describe(value)}. Correct it, or leave it out.`,
    );
  }
}

/** Throws a TypeError unless `value` is absent or a function. */
export function checkFunction(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") {
    throw new TypeError(`${name} must be a function; got ${describe(value)}.`);
  }
}

/** Throws a TypeError unless `value` is absent or an AbortSignal. */
export function checkSignal(name: string, value: unknown): void {
  if (value !== undefined && !(value instanceof AbortSignal)) {
    throw new TypeError(
      `${name} must be an AbortSignal, such as new AbortController().signal; got ${describe(value)}.`,
    );
  }
}

/** The value if it cannot be a secret, else its kind. */
function describe(value: unknown): string {
  if (value === null) return "null";
  return typeof value === "number" || typeof value === "boolean" ? String(value) : typeof value;
}

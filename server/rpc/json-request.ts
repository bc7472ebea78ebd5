import {
  type DescField,
  type DescMessage,
  fromJson,
  fromJsonString,
  type JsonValue,
  ScalarType,
} from "@bufbuild/protobuf";
import { HoldfastError } from "../domain/errors.ts";
import { type FieldViolation, InvalidRequestError } from "./errors.ts";

/**
 * Reads the text of a JSON request strictly before it is decoded, and returns it. The decoder of the protocol takes
 * `" 5"` and `"0x10"` for integers, rounds numbers above 2^53, and says what it refuses in words of its own that repeat
 * the value. Throws INVALID_FIELD with the path of every field that is wrong. JSON requests are decoded twice for this;
 * callers in a hurry send binary.
 */
export function readJsonRequest(schema: DescMessage, bytes: Uint8Array): string {
  let text: string;
  let value: JsonValue;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    value = JSON.parse(text) as JsonValue;
  } catch (cause) {
    throw new HoldfastError("INVALID_FIELD", "The body is not JSON in UTF-8; send one JSON object.", { cause });
  }
  if (!isObject(value)) {
    throw new HoldfastError("INVALID_FIELD", "The body is not a JSON object; send one with the fields of the request.");
  }
  const [first, ...others] = inMessage(schema, value, "");
  if (first !== undefined) throw new InvalidRequestError([first, ...others]);
  try {
    fromJsonString(schema, text);
  } catch (cause) {
    // What the walk cannot see: JSON.parse keeps the last of two equal keys.
    throw new HoldfastError("INVALID_FIELD", "The body names a key twice in one object; send each key once.", {
      cause,
    });
  }
  return text;
}

function* inMessage(schema: DescMessage, value: { [key: string]: JsonValue }, path: string): Generator<FieldViolation> {
  const seen = new Set<unknown>();
  for (const [key, inner] of Object.entries(value)) {
    const field = schema.fields.find(({ name, jsonName }) => name === key || jsonName === key);
    if (field === undefined) {
      yield unknownKey(schema, key, path);
      continue;
    }
    const place = inside(path, field.name);
    if (seen.has(field)) yield { field: place, description: "is set twice, under both of its names; send it once." };
    seen.add(field);
    if (field.oneof !== undefined && !(inner === null && field.fieldKind === "scalar")) {
      const names = field.oneof.fields.map(({ name }) => name).join(", ");
      if (seen.has(field.oneof)) yield { field: place, description: `is one too many; set only one of ${names}.` };
      seen.add(field.oneof);
    }
    yield* inField(field, inner, place);
  }
}

function unknownKey(schema: DescMessage, key: string, path: string): FieldViolation {
  const remedy = `send only ${schema.fields.map(({ name }) => name).join(", ") || "an empty object"}.`;
  if (/^\w{1,64}$/.test(key))
    return { field: inside(path, key), description: `is not a field of this server; ${remedy}` };
  return { field: path, description: `has a key that is not a field of this server; ${remedy}` };
}

function* inField(field: DescField, value: JsonValue, place: string): Generator<FieldViolation> {
  if (value === null) return yield* leaf(field, value, place);
  if (field.fieldKind === "list") {
    if (!Array.isArray(value)) yield { field: place, description: "must be a JSON array." };
    else for (const [index, item] of value.entries()) yield* inItem(field, item, `${place}[${index}]`);
  } else if (field.fieldKind === "map") {
    if (!isObject(value)) yield { field: place, description: "must be a JSON object." };
    else for (const [key, item] of Object.entries(value)) yield* leaf(field, { [key]: item }, mapPlace(place, key));
  } else if (field.fieldKind === "message" && !isWellKnown(field.message)) {
    if (isObject(value)) yield* inMessage(field.message, value, place);
    else yield { field: place, description: "must be a JSON object." };
  } else {
    yield* leaf(field, value, place);
  }
}

function* inItem(field: DescField, item: JsonValue, place: string): Generator<FieldViolation> {
  if (item === null) return yield { field: place, description: "must not be null; leave the item out." };
  if (field.message === undefined || isWellKnown(field.message)) return yield* leaf(field, [item], place);
  if (isObject(item)) yield* inMessage(field.message, item, place);
  else yield { field: place, description: "must be a JSON object." };
}

/** A value without fields of its own, or one item or pair of them. */
function* leaf(field: DescField, value: JsonValue, place: string): Generator<FieldViolation> {
  try {
    if (isWholeNumber(field) && !isPlainInteger(value)) throw new TypeError("not in plain digits");
    if (isInstant(field) && !isOnACalendarDay(value)) throw new TypeError("no day of the calendar");
    fromJson(field.parent, { [field.name]: value });
  } catch {
    yield { field: place, description: describe(field) };
  }
}

function describe(field: DescField): string {
  if (field.enum !== undefined) {
    const names = field.enum.values.filter(({ number }) => number !== 0).map(({ name }) => name);
    return `must be one of ${names.join(", ")}.`;
  }
  switch (field.message?.typeName) {
    case "google.protobuf.Timestamp":
      return 'must be an RFC 3339 instant of the years 1 to 9999, for example "2026-11-30T00:00:00Z".';
    case "google.protobuf.Duration":
      return 'must be a text of seconds with an s and at most 9 decimals, for example "3.5s".';
    case "google.protobuf.FieldMask":
      return 'must be one text of lowerCamelCase paths with commas between them, for example "limit,maxPerSpend".';
    default:
      return describeScalar(field.scalar);
  }
}

function describeScalar(scalar: ScalarType | undefined): string {
  switch (scalar) {
    case ScalarType.BOOL:
      return "must be true or false.";
    case ScalarType.INT32:
      return "must be a whole number in plain digits, at most 2147483647.";
    case ScalarType.INT64:
      return "must be a whole number in plain digits, at most 9223372036854775807; above 9007199254740991 as a text.";
    default:
      return "must be a text of valid Unicode.";
  }
}

function isWholeNumber({ fieldKind, scalar }: DescField): boolean {
  return fieldKind === "scalar" && (scalar === ScalarType.INT32 || scalar === ScalarType.INT64);
}

function isPlainInteger(value: JsonValue): boolean {
  if (typeof value === "string") return /^-?(0|[1-9][0-9]{0,18})$/.test(value);
  return value === null || Number.isSafeInteger(value);
}

function isInstant({ message }: DescField): boolean {
  return message?.typeName === "google.protobuf.Timestamp";
}

/** `Date` takes the 30th of February for the 2nd of March. */
function isOnACalendarDay(value: JsonValue): boolean {
  if (typeof value !== "string") return true;
  const [, year = "", month = "", day = ""] = /^(\d{4})-(\d\d)-(\d\d)T(?!24)/.exec(value) ?? [];
  return new Date(Date.UTC(Number(year), Number(month) - 1, Number(day))).getUTCDate() === Number(day);
}

function isObject(value: JsonValue): value is { [key: string]: JsonValue } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isWellKnown({ typeName }: DescMessage): boolean {
  return typeName.startsWith("google.protobuf.");
}

function inside(path: string, name: string): string {
  return path === "" ? name : `${path}.${name}`;
}

/** Where in a map. A key that is not a plain word is not repeated. */
export function mapPlace(place: string, key: string): string {
  return /^[\w.-]{1,64}$/.test(key) ? `${place}["${key}"]` : place;
}

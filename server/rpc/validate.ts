import {
  create,
  type DescField,
  type DescMessage,
  type DescService,
  getOption,
  hasOption,
  type Message,
  type MessageShape,
} from "@bufbuild/protobuf";
import { pathToString } from "@bufbuild/protobuf/reflect";
import { createValidator, type Violation } from "@bufbuild/protovalidate";
import { Ignore, field as fieldRules } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";
import type { Interceptor } from "@connectrpc/connect";
import { type FieldViolation, InvalidRequestError } from "./errors.ts";
import { mapPlace } from "./json-request.ts";
import { withoutJudgedDurations } from "./judged-durations.ts";
import { remedyOfPattern } from "./validate-remedies.ts";

const expressions = new Map<string, RegExp>();

/**
 * Patterns come from our own contract, never from a caller, and are linear without backtracking. The platform's
 * engine halves the cost of validating an AuthorizeSpend: 35 µs with the default RE2, 18 µs with this one.
 */
function matches(pattern: string, text: string): boolean {
  let expression = expressions.get(pattern);
  if (expression === undefined) {
    expression = new RegExp(pattern, "u");
    expressions.set(pattern, expression);
  }
  return expression.test(text);
}

const validator = createValidator({ regexMatch: matches });

/**
 * Checks one message against the rules of the contract and refuses fields that the contract does not know.
 * For the items of a batch, which the interceptor leaves alone so that one bad item does not fail the others.
 * Throws `InvalidRequestError`; its paths start at `message`.
 */
export function validateMessage<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): void {
  const violations: FieldViolation[] = [];
  addUnknownFields(violations, schema, message, "");
  violations.push(...ruleViolations(schema, message));
  const [first, ...others] = violations;
  if (first !== undefined) throw new InvalidRequestError([first, ...others]);
}

/** Validates every request of Holdfast's own services. Comes after authentication, before the handler. */
export function validationInterceptor(): Interceptor {
  return (next) => async (request) => {
    if (!request.service.typeName.startsWith("holdfast.")) return await next(request);
    const schema: DescMessage = request.method.input;
    if (request.stream) return await next({ ...request, message: validateEach(schema, request.message) });
    validateMessage(schema, request.message);
    return await next(request);
  };
}

/**
 * Compiles the rules of every message that the services' requests can contain. The first validation of a type
 * costs up to 140 ms; without this the first caller would pay it.
 */
export function warmUpValidation(services: readonly DescService[]): void {
  const seen = new Set<string>();
  const visit = (schema: DescMessage): void => {
    if (seen.has(schema.typeName)) return;
    seen.add(schema.typeName);
    validator.validate(schema, create(schema));
    for (const field of schema.fields) if (field.message !== undefined) visit(field.message);
  };
  for (const service of services) for (const method of service.methods) visit(method.input);
}

async function* validateEach<T extends Message>(schema: DescMessage, messages: AsyncIterable<T>): AsyncIterable<T> {
  for await (const message of messages) {
    validateMessage(schema, message);
    yield message;
  }
}

function ruleViolations<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): FieldViolation[] {
  const result = withoutJudgedDurations(
    schema,
    message,
    () => validator.validate(schema, message),
    ({ kind }) => kind === "valid",
  );
  // A rule that cannot be compiled or evaluated is a defect of the contract, not the caller's mistake.
  if (result.kind === "error") throw result.error;
  if (result.kind === "valid") return [];
  return result.violations.map((one) => ({ field: placeOf(one), description: describe(one) }));
}

/** The path of what is wrong. A key of a map that is not a plain word is not repeated. */
function placeOf({ field }: Violation): string {
  const end = field.findIndex((one) => one.kind === "map_sub" && mapPlace("", `${one.key}`) === "");
  return pathToString(end === -1 ? field : field.slice(0, end));
}

function describe(violation: Violation): string {
  const place = violation.field.at(-1);
  if (violation.ruleId === "required") {
    if (place?.kind !== "oneof") return "is required.";
    return `is required: set one of ${place.fields.map((field) => field.name).join(", ")}.`;
  }
  const field = violation.field.findLast((one) => one.kind === "field");
  if (violation.ruleId === "string.pattern") {
    const pattern = patternOf(field);
    const remedy = pattern === undefined ? undefined : remedyOfPattern[pattern];
    return remedy === undefined ? `${violation.message}.` : `must be ${remedy}.`;
  }
  if (violation.ruleId.startsWith("enum.") && field?.enum !== undefined) {
    const names = field.enum.values.filter((value) => value.number !== 0).map((value) => value.name);
    return `must be one of ${names.join(", ")}.`;
  }
  return `${violation.message}.`;
}

function patternOf(field: DescField | undefined): string | undefined {
  if (field === undefined || !hasOption(field, fieldRules)) return undefined;
  const rules = getOption(field, fieldRules);
  const leaf = rules.type.case === "repeated" ? rules.type.value.items : rules;
  return leaf?.type.case === "string" ? leaf.type.value.pattern : undefined;
}

/**
 * Adds what the binary format brought that the contract does not know. JSON refuses it while parsing; a caller that sends
 * such a field in binary believes in a feature that this server does not have, and must not be told that all is well.
 */
function addUnknownFields(found: FieldViolation[], schema: DescMessage, message: Message, path: string): void {
  for (const { no } of message.$unknown ?? []) {
    found.push({
      field: inPath(path, `${no}`),
      description: `${schema.typeName} has no field with number ${no}; send only fields of this server's version.`,
    });
  }
  for (const field of messageFields(schema)) addUnknownInField(found, field, message, path);
}

function addUnknownInField(found: FieldViolation[], field: DescField, message: Message, path: string): void {
  const desc = field.message;
  if (desc === undefined) return;
  const holder = message as unknown as Record<string, unknown>;
  const chosen = field.oneof && (holder[field.oneof.localName] as { case?: string; value?: unknown });
  const value = chosen === undefined ? holder[field.localName] : chosen.case === field.localName && chosen.value;
  // Nearly always: paths are made only for what is there.
  if (value === undefined || value === false) return;
  const name = inPath(path, field.name);
  if (field.fieldKind === "list") {
    for (const [index, item] of (value as Message[]).entries())
      addUnknownFields(found, desc, item, `${name}[${index}]`);
  } else if (field.fieldKind === "map") {
    for (const [key, item] of Object.entries(value as Record<string, Message>)) {
      addUnknownFields(found, desc, item, `${name}["${key}"]`);
    }
  } else {
    addUnknownFields(found, desc, value as Message, name);
  }
}

function inPath(path: string, name: string): string {
  return path === "" ? name : `${path}.${name}`;
}

const fieldsBySchema = new Map<DescMessage, readonly DescField[]>();

/** The fields to descend into: messages, except lists whose items are validated one by one. */
function messageFields(schema: DescMessage): readonly DescField[] {
  let fields = fieldsBySchema.get(schema);
  if (fields === undefined) {
    fields = schema.fields.filter((field) => field.message !== undefined && !isValidatedPerItem(field));
    fieldsBySchema.set(schema, fields);
  }
  return fields;
}

function isValidatedPerItem(field: DescField): boolean {
  if (!hasOption(field, fieldRules)) return false;
  const { type } = getOption(field, fieldRules);
  return type.case === "repeated" && type.value.items?.ignore === Ignore.ALWAYS;
}

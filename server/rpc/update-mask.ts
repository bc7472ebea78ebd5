import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { InvalidRequestError } from "./errors.ts";
import { validateMessage } from "./validate.ts";

/** Validates what an update changes. `place` is the resource's field in the request. Throws INVALID_FIELD. */
export function validateMasked<Desc extends DescMessage>(
  schema: Desc,
  masked: MessageShape<Desc>,
  place: string,
): void {
  try {
    validateMessage(schema, masked);
  } catch (error) {
    if (!(error instanceof InvalidRequestError)) throw error;
    const [first, ...others] = error.violations.map((one) => ({ ...one, field: `${place}.${one.field}` }));
    throw first === undefined ? error : new InvalidRequestError([first, ...others]);
  }
}

/** A path of a mask in a message. What is not a plain word is not repeated. */
export function shownPath(path: string): string {
  return /^[\w.]{1,64}$/.test(path) ? path : "a path";
}

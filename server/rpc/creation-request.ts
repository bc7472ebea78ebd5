import { createHash } from "node:crypto";
import { type DescMessage, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";
import { HoldfastError } from "../domain/errors.ts";
import type { CreationRequest } from "../domain/secret.ts";

/** What a repeat of this request is recognised by; undefined where the caller gave no request id. */
export function creationRequest<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  requestId: string,
): CreationRequest | undefined {
  if (requestId === "") return undefined;
  const text = JSON.stringify(sorted(toJson(schema, message)));
  return { requestId, sha256: createHash("sha256").update(`${schema.typeName}\n${text}`, "utf8").digest() };
}

/** Throws ALREADY_EXISTS where another request has used the id. */
export function requireSameRequest(request: CreationRequest, madeOf: Uint8Array, name: string): void {
  if (Buffer.from(request.sha256).equals(madeOf)) return;
  throw new HoldfastError(
    "ALREADY_EXISTS",
    `The request_id has made ${name} with other values; take a new random request_id for another request.`,
    { metadata: { field: "request_id", name } },
  );
}

/** Maps have no order of their own, so their keys are sorted before anything is compared. */
function sorted(value: JsonValue): JsonValue {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, inner]) => [key, sorted(inner)] as const);
  return Object.fromEntries(entries.toSorted(([one], [other]) => (one < other ? -1 : 1)));
}

import { createHash } from "node:crypto";
import type { Identity } from "./identity.ts";
import type { Flow, Pair, ProxyRequest } from "./vendor.ts";

/** Under which key an answer is remembered, and what a repeat has to have in common with the first request. */
export interface RequestKey {
  /** SHA-256 of how the request is identified. */
  readonly requestKey: Buffer;
  /** SHA-256 of everything that it asks for, in one order. */
  readonly bodySha256: Buffer;
  /** The same without the payment method. */
  readonly retrySha256: Buffer;
}

/**
 * Undefined where a repeat is no replay of an answer: without an identity, and where a stated spend goes on with an
 * object, which may well be asked for twice with different words.
 */
export function requestKeyOf(
  request: ProxyRequest,
  flow: Flow,
  identity: Identity | undefined,
  isPaymentMethod: (parameter: string) => boolean,
): RequestKey | undefined {
  if (identity === undefined || identity.kind === "keyless") return undefined;
  if (identity.kind !== "client_key" && flow !== "begin") return undefined;
  const { customerId, billingPeriod, purpose } = identity.spend;
  const named =
    identity.kind === "client_key"
      ? ["key", purpose]
      : ["spend", request.endpoint, request.path, customerId, billingPeriod, purpose];
  return {
    requestKey: digest(named),
    bodySha256: digest(asked(request, identity, () => true)),
    retrySha256: digest(asked(request, identity, ({ key }) => !isPaymentMethod(key))),
  };
}

function asked(request: ProxyRequest, { spend }: Identity, counts: (pair: Pair) => boolean): readonly string[] {
  const { method, path, account, query, fields, body } = request;
  // The order of a form's parameters says nothing, but that of the items of a list does.
  const sorted = [...query, ...fields].filter(counts).map(({ key, value }) => `${key}=${value}`);
  const lists = sorted.filter((text) => /^[^=]*\[\]/.test(text));
  const others = sorted.filter((text) => !/^[^=]*\[\]/.test(text)).toSorted();
  const upTo = spend.upTo === undefined ? "" : `${spend.upTo.amount} ${spend.upTo.currency}`;
  return [method, path, account, upTo, fields.length === 0 ? body : "", ...others, ...lists];
}

/** Of texts of any content: no two lists have the same bytes. */
function digest(texts: readonly string[]): Buffer {
  return createHash("sha256").update(JSON.stringify(texts), "utf8").digest();
}

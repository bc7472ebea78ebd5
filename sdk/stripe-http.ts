import { Readable } from "node:stream";
import type { HoldfastError } from "./errors.ts";

/** The part of Stripe's HttpClientResponse that its client uses; the same in every supported major version. */
export interface StripeHttpResponse {
  getStatusCode(): number;
  getHeaders(): Record<string, string>;
  getRawResponse(): unknown;
  toStream(streamCompleteCallback: () => void): unknown;
  toJSON(): Promise<unknown>;
}

/** Stripe's HttpClient: the one hook that sees every request, once per attempt. */
export interface StripeHttpClient {
  getClientName(): string;
  makeRequest(
    host: string,
    port: string | number,
    path: string,
    method: string,
    headers: Record<string, unknown>,
    requestData: unknown,
    protocol: string,
    timeout: number,
  ): Promise<StripeHttpResponse>;
}

/** A complete answer of the vendor, or one made here. */
export interface StripeAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** The parsed JSON, or undefined if the body was not the vendor's JSON. */
  readonly body: unknown;
  readonly raw: unknown;
}

/** Hands a finished answer to Stripe's client. It must not send the request again, whatever the vendor advised. */
export function toHttpResponse(answer: StripeAnswer): StripeHttpResponse {
  const headers = { ...answer.headers, "stripe-should-retry": "false" };
  return {
    getStatusCode: () => answer.status,
    getHeaders: () => headers,
    getRawResponse: () => answer.raw,
    toStream(streamCompleteCallback) {
      const stream = Readable.from([JSON.stringify(answer.body)]);
      stream.once("end", streamCompleteCallback);
      return stream;
    },
    toJSON: () => Promise.resolve(answer.body),
  };
}

/**
 * A refusal in Stripe's own shape. Throwing from an HttpClient would look like a broken connection, or hang the call;
 * a 403 that forbids retries reaches the caller at once.
 */
export function refusalAnswer(error: HoldfastError | Error, code: string, requestId: string): StripeAnswer {
  const headers = { "request-id": requestId, "content-type": "application/json" };
  const body = { error: { type: "invalid_request_error", code, message: error.message } };
  return { status: 403, headers, body, raw: { statusCode: 403, headers } };
}

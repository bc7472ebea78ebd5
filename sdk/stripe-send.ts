import type { VendorAnswerSignal, VendorSignal } from "./outcome.ts";
import type { Runtime } from "./runtime.ts";
import type { StripeAnswer, StripeHttpClient, StripeHttpResponse } from "./stripe-http.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** Where and as whom the guarded request was to be sent. */
export interface StripeTarget {
  readonly client: StripeHttpClient;
  readonly host: string;
  readonly port: string | number;
  readonly protocol: string;
  readonly headers: Readonly<Record<string, unknown>>;
  /** Stripe's own timeout of the call, in milliseconds. */
  readonly timeoutMs: number;
}

export interface StripeSend {
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  /** Path template, for the span. */
  readonly endpoint: string;
  readonly body: string;
  readonly idempotencyKey?: string;
  readonly timeoutMs: number;
}

export type Exchange =
  | { readonly signal: VendorAnswerSignal; readonly answer: StripeAnswer; readonly error?: undefined }
  | {
      readonly signal: Exclude<VendorSignal, VendorAnswerSignal>;
      readonly answer?: undefined;
      readonly error: unknown;
    };

/** Sends one request and reduces whatever happens to a signal. Never rejects, never outlives `timeoutMs`. */
export function sendToStripe(runtime: Runtime, target: StripeTarget, send: StripeSend): Promise<Exchange> {
  const attributes = { [ATTRIBUTES.vendor]: "stripe", [ATTRIBUTES.vendorEndpoint]: send.endpoint };
  return inSpan("holdfast.vendor_call", attributes, async (span) => {
    const exchange = await exchangeInTime(runtime, target, send);
    if (exchange.signal.kind === "answer") {
      span.setAttribute(ATTRIBUTES.vendorStatus, exchange.signal.status);
      span.setAttribute(ATTRIBUTES.vendorReplayed, exchange.signal.replayed);
    }
    return exchange;
  });
}

function exchangeInTime(runtime: Runtime, target: StripeTarget, send: StripeSend): Promise<Exchange> {
  const timeoutMs = Math.max(1, Math.min(send.timeoutMs, target.timeoutMs));
  return new Promise((resolve) => {
    // Stripe's own timeout watches an idle socket; a trickling answer would outlive it.
    const timer = runtime.timers.setTimeout(
      () => resolve({ signal: { kind: "lost" }, error: new Error(`no complete answer in ${timeoutMs} ms`) }),
      timeoutMs,
    );
    void exchange(target, send, timeoutMs).then((result) => {
      runtime.timers.clearTimeout(timer);
      resolve(result);
    });
  });
}

async function exchange(target: StripeTarget, send: StripeSend, timeoutMs: number): Promise<Exchange> {
  const { client, host, port, protocol } = target;
  let response: StripeHttpResponse;
  try {
    const headers = requestHeaders(target.headers, send);
    // Awaited inside the try: a client may also throw synchronously.
    response = await client.makeRequest(host, port, send.path, send.method, headers, send.body, protocol, timeoutMs);
  } catch (error) {
    return { signal: { kind: nothingLeft(error) ? "not_sent" : "lost" }, error };
  }
  const status = response.getStatusCode();
  const headers = response.getHeaders();
  let body: unknown;
  try {
    body = await response.toJSON();
  } catch (error) {
    // A cut body is lost; a whole body that is no JSON is an answer of somebody in front of the vendor.
    if (!(error instanceof SyntaxError)) return { signal: { kind: "lost" }, error };
  }
  const answer = { status, headers, body, raw: response.getRawResponse() };
  return { signal: answerSignal(answer), answer };
}

function answerSignal(answer: StripeAnswer): VendorAnswerSignal {
  const { body, headers, status } = answer;
  const error = isRecord(body) && isRecord(body["error"]) ? body["error"] : undefined;
  return {
    kind: "answer",
    status,
    readable: isRecord(body) && (error !== undefined || (status >= 200 && status <= 299)),
    replayed: headers["idempotent-replayed"] === "true",
    errorType: error === undefined ? undefined : typeof error["type"] === "string" ? error["type"] : "unknown",
    errorCode: typeof error?.["code"] === "string" ? error["code"] : undefined,
    rateLimitedReason: headers["stripe-rate-limited-reason"],
  };
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// Replaced, recomputed, or able to turn a read into a write on the way.
const DROPPED_HEADERS = new Set([
  "idempotency-key",
  "content-length",
  "x-stripe-client-telemetry",
  "x-http-method-override",
  "x-http-method",
  "x-method-override",
]);

/** The headers without those that the guard alone may set. */
export function withoutOwnHeaders(headers: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !DROPPED_HEADERS.has(name.toLowerCase())));
}

function requestHeaders(base: Readonly<Record<string, unknown>>, send: StripeSend): Record<string, unknown> {
  const headers = withoutOwnHeaders(base);
  if (send.method === "GET") {
    for (const name of Object.keys(headers)) if (name.toLowerCase() === "content-type") delete headers[name];
    return headers;
  }
  headers["Content-Length"] = Buffer.byteLength(send.body);
  if (send.idempotencyKey !== undefined) headers["Idempotency-Key"] = send.idempotencyKey;
  return headers;
}

const NEVER_CONNECTED_CODES = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
  // The certificate is judged before the first byte of a request is written.
  "CERT_HAS_EXPIRED",
  "CERT_NOT_YET_VALID",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  "ERR_TLS_CERT_ALTNAME_INVALID",
]);
const CONNECT_CALLS = new Set(["connect", "getaddrinfo"]);

/** True only if it is certain that no byte of the request left this machine. */
export function nothingLeft(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, syscall, cause, errors } = error as Error & {
    code?: unknown;
    syscall?: unknown;
    errors?: unknown;
  };
  // Several addresses were tried: every one must have failed so.
  if (Array.isArray(errors)) return errors.length > 0 && errors.every(nothingLeft);
  if (typeof syscall === "string" && CONNECT_CALLS.has(syscall)) return true;
  if (typeof code === "string" && NEVER_CONNECTED_CODES.has(code)) return true;
  // fetch wraps the reason.
  return cause !== undefined && nothingLeft(cause);
}

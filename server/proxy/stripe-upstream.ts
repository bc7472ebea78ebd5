import {
  Agent as HttpAgent,
  type ClientRequest,
  type IncomingMessage,
  request as requestHttp,
  type RequestOptions,
} from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import type { Socket } from "node:net";
import { traceUpstream } from "./trace.ts";
import type { StripeHttpClient, StripeHttpResponse } from "@holdfast/sdk/stripe-vendor";

/** Times are milliseconds. */
export interface UpstreamLimits {
  /** Largest answer. One that is larger is as good as lost. */
  readonly answerBytesMax: number;
  /** How long a connection may take, its certificate judged. */
  readonly connectMs: number;
  /** How long one request may take in all. */
  readonly requestMs: number;
  /** Most interim answers (1xx) to one request. */
  readonly interimMax: number;
  readonly connectionsMax: number;
  /** How long a connection may be unused: shorter than any server keeps it, so that none dies as a request is written. */
  readonly idleMs: number;
}

export const defaultUpstreamLimits: UpstreamLimits = {
  answerBytesMax: 10 * 1024 * 1024,
  connectMs: 10_000,
  requestMs: 60_000,
  interimMax: 8,
  connectionsMax: 256,
  idleMs: 15_000,
};

/** Where every request goes, whatever it says. */
export interface Upstream {
  readonly client: StripeHttpClient;
  readonly host: string;
  readonly port: number;
  readonly protocol: "http" | "https";
  /** Cuts every connection. */
  close(): void;
}

/** The text of an answer and what was read from it: as long as nobody has changed that, the text is the answer. */
export class AnswerText {
  readonly text: string;
  /** Undefined until it was read, and where it is no JSON. */
  parsed: unknown;

  constructor(text: string) {
    this.text = text;
  }

  read(): unknown {
    this.parsed ??= JSON.parse(this.text) as unknown;
    return this.parsed;
  }
}

/**
 * Sends requests to one origin: each of them once, with no header but those named here, verifying certificates also
 * where the environment of the process turns that off, and following no redirect. Whatever is not one whole answer in
 * plain bytes rejects. Where that happens before a connection stands, the error proves that nothing was sent.
 */
export function createStripeUpstream(origin: string, limits: UpstreamLimits): Upstream {
  const { protocol, hostname, port } = new URL(origin);
  const secure = protocol === "https:";
  const target: RequestOptions = {
    host: hostname.replaceAll(/^\[|\]$/g, ""),
    port: port === "" ? (secure ? 443 : 80) : Number(port),
  };
  const verified = { rejectUnauthorized: true };
  const pooled = { keepAlive: true, maxSockets: limits.connectionsMax, timeout: limits.idleMs };
  const agent = secure ? new HttpsAgent({ ...pooled, ...verified }) : new HttpAgent(pooled);
  const send = secure ? requestHttps : requestHttp;

  const client: StripeHttpClient = {
    getClientName: () => "holdfast",
    makeRequest(_host, _port, path, method, headers, data, _protocol, timeoutMs) {
      const body = typeof data === "string" ? data : "";
      const ask = (): Promise<StripeHttpResponse> => {
        const request = send({
          ...target,
          ...verified,
          path,
          method,
          headers: requestHeaders(method, headers, body),
          // Sent once whatever happens, so it must not meet a connection that is just dying.
          agent: method !== "GET" && path.startsWith("/v2/") ? false : agent,
          insecureHTTPParser: false,
          maxHeaderSize: 16_384,
        });
        const answer = answerTo(request, secure, { ...limits, requestMs: Math.min(limits.requestMs, timeoutMs) });
        request.end(method === "GET" ? undefined : body);
        return answer;
      };
      return traceUpstream({ method, host: target.host ?? "", port: Number(target.port) }, ask);
    },
  };
  return {
    client,
    host: target.host ?? "",
    port: Number(target.port),
    protocol: secure ? "https" : "http",
    close: () => agent.destroy(),
  };
}

const sentHeaders = new Set(["authorization", "content-type", "stripe-version", "stripe-account", "idempotency-key"]);

function requestHeaders(method: string, given: Record<string, unknown>, body: string): Record<string, string | number> {
  const headers: Record<string, string | number> = { "user-agent": "holdfast-proxy", "accept-encoding": "identity" };
  for (const [name, value] of Object.entries(given)) {
    const known = name.toLowerCase();
    if (sentHeaders.has(known) && typeof value === "string" && value !== "") headers[known] = value;
  }
  if (method === "GET") delete headers["content-type"];
  else headers["content-length"] = Buffer.byteLength(body);
  return headers;
}

function answerTo(request: ClientRequest, secure: boolean, limits: UpstreamLimits): Promise<StripeHttpResponse> {
  const { promise, resolve, reject } = Promise.withResolvers<StripeHttpResponse>();
  let connected = false;
  let interim = 0;
  const fail = (error: Error): void => {
    // The first byte is written when the connection stands and its certificate is accepted.
    reject(connected ? error : neverConnected(error));
    request.destroy();
  };
  const connecting = setTimeout(() => fail(new Error("the connection took too long")), limits.connectMs);
  const whole = setTimeout(() => fail(new Error(`no complete answer in ${limits.requestMs} ms`)), limits.requestMs);
  const onConnected = (): void => {
    connected = true;
    clearTimeout(connecting);
  };
  request.once("socket", (socket: Socket) => {
    if (!socket.connecting) onConnected();
    else socket.once(secure ? "secureConnect" : "connect", onConnected);
  });
  request.on("error", fail);
  request.on("information", () => {
    interim += 1;
    if (interim > limits.interimMax) fail(new Error("too many interim answers"));
  });
  // Without a listener nobody would be told.
  request.once("upgrade", (_response, socket) => {
    socket.destroy();
    fail(new Error("an answer in another protocol"));
  });
  request.once("response", (response) => {
    readAnswer(response, limits.answerBytesMax).then(resolve, fail);
  });
  return promise.finally(() => {
    clearTimeout(connecting);
    clearTimeout(whole);
  });
}

/** In the form of the system's own errors, which is how the guard knows them. */
function neverConnected(cause: Error): Error {
  const { code = "ETIMEDOUT" } = cause as NodeJS.ErrnoException;
  return Object.assign(new Error(`not connected: ${cause.message}`, { cause }), { code, syscall: "connect" });
}

async function readAnswer(response: IncomingMessage, bytesMax: number): Promise<StripeHttpResponse> {
  const status = response.statusCode ?? 0;
  // Whoever redirects is not Stripe's API, and the secret goes nowhere else.
  if (status >= 300 && status < 400) throw new Error(`a redirect (${status}), which is not followed`);
  const { "content-encoding": encoding = "identity", ...given } = response.headers;
  if (encoding !== "identity") throw new Error("an answer in an encoding that was not asked for");
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > bytesMax) throw new Error("an answer that is too large");
    chunks.push(chunk);
  }
  if (!response.complete) throw new Error("an answer that was cut");
  const answer = new AnswerText(new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(chunks)));
  const headers = Object.fromEntries(
    Object.entries(given).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  );
  return {
    getStatusCode: () => status,
    getHeaders: () => headers,
    getRawResponse: () => answer,
    toStream: () => {
      throw new Error("an answer of the proxy's vendor is read as a whole");
    },
    toJSON: async () => answer.read(),
  };
}

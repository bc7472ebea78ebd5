import { Agent as HttpAgent, type IncomingMessage, request as requestHttp } from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import type { StripeRead } from "@holdfast/sdk/stripe-vendor";

/** Where Stripe is, unless a setting of the server says otherwise. */
export const stripeOrigin = "https://api.stripe.com";

export interface StripeClientOptions {
  /** Scheme, host and port. */
  readonly origin: string;
  /** How long one read may take in all. */
  readonly timeoutMs?: number;
}

/** Reads Stripe with a secret that is given with each call. */
export interface StripeClient {
  /** One GET, once. Never rejects; no redirect is followed, and what it answers never holds the secret. */
  get(secret: string, path: string, account: string): Promise<StripeRead>;
  close(): void;
}

const timeoutMsDefault = 30_000;
// A page of a hundred objects is far smaller.
const bodyBytesMax = 16 * 1024 * 1024;

export function createStripeClient({ origin, timeoutMs = timeoutMsDefault }: StripeClientOptions): StripeClient {
  const secure = origin.startsWith("https:");
  // Verified also where the environment of the process turns that off for everybody else.
  const agent = secure
    ? new HttpsAgent({ keepAlive: true, rejectUnauthorized: true })
    : new HttpAgent({ keepAlive: true });
  const send = secure ? requestHttps : requestHttp;
  return {
    get: (secret, path, account) =>
      new Promise<StripeRead>((resolve) => {
        const lost = (why: string): void => resolve({ kind: "lost", why });
        const signal = AbortSignal.timeout(timeoutMs);
        const headers = {
          authorization: `Bearer ${secret}`,
          accept: "application/json",
          "user-agent": "holdfast-server",
          ...(account === "" ? {} : { "stripe-account": account }),
        };
        const request = send(new URL(path, origin), { agent, headers, signal });
        request.once("error", (error) => lost(reasonOf(error, timeoutMs)));
        request.once("response", (response) => {
          readBody(response).then(
            (body) => resolve(answerOf(response, body)),
            (error: unknown) => lost(reasonOf(error, timeoutMs)),
          );
        });
        request.end();
      }),
    close: () => agent.destroy(),
  };
}

async function readBody(response: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > bodyBytesMax) throw new Error("the answer is too large");
    chunks.push(chunk);
  }
  if (!response.complete) throw new Error("the answer was cut");
  return Buffer.concat(chunks).toString("utf8");
}

function answerOf(response: IncomingMessage, text: string): StripeRead {
  const status = response.statusCode ?? 0;
  // Whoever answers with a redirect is not Stripe's API, and the secret goes nowhere else.
  if (status >= 300 && status < 400) return { kind: "lost", why: `a redirect (${status}), which is not followed` };
  const retryAfterMs = retryAfter(response.headers["retry-after"]);
  try {
    const body: unknown = JSON.parse(text);
    return { kind: "answer", status, body, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) };
  } catch {
    return { kind: "lost", why: `an answer that is no JSON (${status})` };
  }
}

/** Whole seconds; Stripe writes no dates. */
function retryAfter(value: string | undefined): number | undefined {
  return value !== undefined && /^\d{1,5}$/.test(value) ? Number(value) * 1000 : undefined;
}

function reasonOf(error: unknown, timeoutMs: number): string {
  if (!(error instanceof Error)) return "no answer";
  if (error.name === "AbortError" || error.name === "TimeoutError") return `no complete answer in ${timeoutMs} ms`;
  return (error as NodeJS.ErrnoException).code ?? error.message;
}

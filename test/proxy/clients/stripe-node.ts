import { createRequire } from "node:module";
import Stripe from "stripe";

const require = createRequire(import.meta.url);

/**
 * The majors of Stripe's client for Node that are run against the proxy as they were published. Up to 21 their types
 * exist under the name "stripe" only, so every one is used through the types of the newest.
 */
export const majors: readonly (readonly [string, typeof Stripe])[] = [
  ["12", require("stripe12") as typeof Stripe],
  ["18", require("stripe18") as typeof Stripe],
  ["23", Stripe],
];

/** A client as its users make it, and what it did. */
export interface RealClient {
  readonly stripe: Stripe;
  /** How many requests it has sent so far, repeats included. */
  readonly attempts: () => number;
  /** The statuses it was answered, in their order. */
  readonly statuses: readonly number[];
  /** The names and values of all headers it has sent. */
  readonly headers: readonly (readonly [string, string])[];
  /** Resolves at the first answer with that status, now or later. */
  answered(status: number): Promise<void>;
}

/** With nothing changed but where Stripe is; `maxNetworkRetries` is one that all majors accept. */
export function realClient(
  Client: typeof Stripe,
  { url, token, retries = 2 }: { readonly url: string; readonly token: string; readonly retries?: number },
): RealClient {
  const { hostname, port } = new URL(url);
  const headers: (readonly [string, string])[] = [];
  const statuses: number[] = [];
  const waiting = new Map<number, PromiseWithResolvers<void>>();
  const node = Client.createNodeHttpClient();
  const send = node.makeRequest.bind(node);
  // Looked at and handed on as it is.
  node.makeRequest = async (...request) => {
    headers.push(
      ...Object.entries(request[4] as Readonly<Record<string, unknown>>).map(([k, v]) => [k, String(v)] as const),
    );
    const response = await send(...request);
    statuses.push(response.getStatusCode());
    waiting.get(response.getStatusCode())?.resolve();
    return response;
  };
  const stripe = new Client(token, {
    host: hostname,
    port: Number(port),
    protocol: "http",
    maxNetworkRetries: retries,
    httpClient: node,
  });
  let attempts = 0;
  stripe.on("request", () => (attempts += 1));
  return {
    stripe,
    attempts: () => attempts,
    statuses,
    headers,
    answered(status) {
      const one = waiting.get(status) ?? Promise.withResolvers<void>();
      waiting.set(status, one);
      if (statuses.includes(status)) one.resolve();
      return one.promise;
    },
  };
}

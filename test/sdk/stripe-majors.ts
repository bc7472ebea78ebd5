import { createRequire } from "node:module";
import Stripe from "stripe";

const require = createRequire(import.meta.url);

/**
 * The majors of Stripe's client that the guard is tested on here. Up to 21 their types only exist under the name
 * "stripe", so every one is used through the types of the newest.
 */
export const stripeMajors: readonly (readonly [string, typeof Stripe])[] = [
  ["18", require("stripe18") as typeof Stripe],
  ["20", require("stripe20") as typeof Stripe],
  ["23", Stripe],
];

/** What a client was about to send. */
export interface Recorded {
  readonly host: string;
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: unknown;
}

/** An HttpClient that sends nothing: it keeps what it is given and answers every request with `{}`. */
export function recordingClient(StripeClient: typeof Stripe): { client: Stripe.HttpClient; recorded: Recorded[] } {
  const recorded: Recorded[] = [];
  const client = new StripeClient.HttpClient();
  client.getClientName = () => "recording";
  client.makeRequest = (host, _port, path, method, headers, body) => {
    recorded.push({ host, method, path, headers, body });
    const response = new StripeClient.HttpClientResponse(200, {});
    response.getRawResponse = () => ({});
    response.toJSON = () => Promise.resolve({});
    return Promise.resolve(response);
  };
  return { client, recorded };
}

import type { StripeRefusal } from "./errors.ts";

/** An answer before it is put on the wire. Header names in lower case. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  /** The same answer as the object is by now. */
  readonly current?: () => Reply;
}

export function jsonReply(value: unknown, status = 200, headers: Readonly<Record<string, string>> = {}): Reply {
  return {
    status,
    headers: { "content-type": "application/json", ...headers },
    body: `${JSON.stringify(value, undefined, 2)}\n`,
  };
}

export function refusalReply(refusal: StripeRefusal): Reply {
  return jsonReply({ error: refusal.body }, refusal.status, refusal.headers);
}

/** What a gateway in front of Stripe answers when it gives up. */
export function htmlReply(): Reply {
  return {
    status: 502,
    headers: { "content-type": "text/html" },
    body: "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n",
  };
}

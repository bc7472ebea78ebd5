import type { LoadRequest, Target } from "../load.ts";

/** What a client asks a proxy, or the vendor itself, to do. */
export interface Operation {
  /** Names the ratios. */
  readonly name: "read" | "pass" | "charge" | "intent" | "replay";
  readonly about: string;
  /** Makes what the calls need, and gives the one call that is repeated. */
  readonly prepare: (target: Target, token: string) => Promise<() => Promise<unknown>>;
}

let keys = 0;

function post(token: string, path: string, fields: Record<string, string>, key?: string): LoadRequest {
  keys += 1;
  return {
    method: "POST",
    path,
    headers: {
      authorization: `Bearer ${token}`,
      "content-type": "application/x-www-form-urlencoded",
      "idempotency-key": key ?? `bench-${process.pid}-${keys}`,
    },
    body: new URLSearchParams(fields).toString(),
  };
}

const charge = { amount: "490", currency: "usd", source: "tok_visa" };
const intent = { amount: "490", currency: "usd", payment_method: "pm_card_visa", confirm: "true" };

export const operations: readonly Operation[] = [
  {
    name: "read",
    about: "GET of an own object",
    async prepare(target, token) {
      const made = JSON.parse(await target.ask(post(token, "/v1/charges", charge))) as { id: string };
      const headers = { authorization: `Bearer ${token}` };
      return () => target.ask({ method: "GET", path: `/v1/charges/${made.id}`, headers, body: "" });
    },
  },
  {
    name: "pass",
    about: "POST /v1/customers, passed on",
    prepare: async (target, token) => () => target.ask(post(token, "/v1/customers", { name: "Ada" })),
  },
  {
    name: "charge",
    about: "POST /v1/charges, one call under a grant",
    prepare: async (target, token) => () => target.ask(post(token, "/v1/charges", charge)),
  },
  {
    name: "intent",
    about: "POST /v1/payment_intents, confirmed: two vendor calls instead of one",
    prepare: async (target, token) => () => target.ask(post(token, "/v1/payment_intents", intent)),
  },
  {
    name: "replay",
    about: "POST /v1/charges again, answered from the store",
    async prepare(target, token) {
      const again = post(token, "/v1/charges", charge);
      await target.ask(again);
      return () => target.ask(again);
    },
  },
];

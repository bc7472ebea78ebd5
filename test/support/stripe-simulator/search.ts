import { invalidRequest } from "./errors.ts";
import { integerParam, requiredParam, textParam } from "./params.ts";
import type { Charge, PaymentIntent } from "./objects.ts";
import type { Context, Endpoint } from "./state.ts";

/** GET /v1/charges/search. Lags behind, as Stripe's does: what it does not show may exist. */
export const searchCharges: Endpoint = (context) => search(context, context.account.charges, "/v1/charges/search");

/** GET /v1/payment_intents/search; lags too. */
export const searchPaymentIntents: Endpoint = (context) =>
  search(context, context.account.paymentIntents, "/v1/payment_intents/search");

function search(context: Context, all: ReadonlyMap<string, Charge | PaymentIntent>, url: string) {
  const { params, clock, lag } = context;
  const clauses = requiredParam(textParam(params, "query"), "query").split(/ and /i).map(parseClause);
  const limit = integerParam(params, "limit") ?? 10;
  return {
    run: () => {
      const visibleUntilMs = clock.now() - lag.search;
      const found = [...all.values()]
        .toReversed()
        .filter((item) => item.created * 1000 <= visibleUntilMs && clauses.every((matches) => matches(item)));
      return { object: "search_result", url, has_more: found.length > limit, data: found.slice(0, limit) };
    },
  };
}

/** `metadata['k']:'v'`, `customer:'cus_1'`, `status:'succeeded'`: the three forms that anybody here asks for. */
function parseClause(text: string): (item: Charge | PaymentIntent) => boolean {
  const match = /^\s*(?:metadata\['([^']+)'\]|(customer|status))\s*:\s*'([^']*)'\s*$/.exec(text);
  if (match === null) throw invalidRequest(`Unsupported search query: ${text}`, { param: "query" });
  const [, name, field, value] = match;
  if (name !== undefined) return (item) => item.metadata[name] === value;
  return (item) => (field === "customer" ? item.customer : item.status) === value;
}

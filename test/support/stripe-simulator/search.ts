import { invalidRequest } from "./errors.ts";
import { integerParam, requiredParam, textParam } from "./params.ts";
import { type Endpoint, type Routes, type Stored, collectionOf } from "./state.ts";

const searchable = ["charge", "customer", "invoice", "payment_intent", "price", "product", "subscription"];

/** GET /v1/{collection}/search. Lags behind, as Stripe's does: what it does not show may exist. */
function search(kind: string, url: string): Endpoint {
  return (context) => {
    const { params, clock, lag, account } = context;
    const clauses = requiredParam(textParam(params, "query"), "query").split(/ and /i).map(parseClause);
    const limit = integerParam(params, "limit") ?? 10;
    return {
      run: () => {
        const visibleUntilMs = clock.now() - lag.search;
        const found = [...collectionOf<Stored>(account, kind).values()]
          .toReversed()
          .filter((item) => Number(item.created) * 1000 <= visibleUntilMs && clauses.every((matches) => matches(item)));
        return { object: "search_result", url, has_more: found.length > limit, data: found.slice(0, limit) };
      },
    };
  };
}

/** `metadata['k']:'v'` or `field:'v'` of a few fields: the forms that anybody here asks for. */
function parseClause(text: string): (item: object) => boolean {
  const match = /^\s*(?:metadata\['([^']+)'\]|(customer|status|email|name|active))\s*:\s*'([^']*)'\s*$/.exec(text);
  if (match === null) throw invalidRequest(`Unsupported search query: ${text}`, { param: "query" });
  const [, name, field = "", value] = match;
  return (item) => {
    const fields = item as Record<string, unknown>;
    if (name === undefined) return String(fields[field]) === value;
    return (fields["metadata"] as Record<string, string> | undefined)?.[name] === value;
  };
}

export const searchRoutes: Routes = searchable.map((kind) => {
  const url = `/v1/${kind}s/search`;
  return ["GET", url, search(kind, url)] as const;
});

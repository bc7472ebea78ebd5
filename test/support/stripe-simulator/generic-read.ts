import { noSuchObject, unknownUrl } from "./errors.ts";
import { fieldFilter, listPage, listPageV2 } from "./lists.ts";
import { moneyEndpoints } from "./money-endpoints.ts";
import { kindOf } from "./resources.ts";
import { type Context, type Endpoint, type Stored, collectionOf, findObject } from "./state.ts";

/** Kinds that a GET may ask for although nothing of that kind was made yet. */
const knownKinds = new Set([
  ...moneyEndpoints.map(({ pattern }) => kindOf(pattern)),
  "application_fee",
  "balance_transaction",
  "dispute",
  "event",
  "invoice_payment",
  "mandate",
  "review",
  "v2.money_management.adjustment",
  "v2.money_management.financial_account",
  "v2.money_management.transaction",
]);

/** Sub-lists that an object carries itself. */
const carried: Readonly<Record<string, string>> = { lines: "lines", line_items: "line_items", items: "items" };

/** Any GET that has no endpoint of its own: one object by its id, the list of a kind, or what belongs to an object. */
export function genericRead(path: string): Endpoint {
  const segments = path.split("/").filter((segment) => segment !== "");
  const last = decodeURIComponent(segments.at(-1) ?? "");
  const above = decodeURIComponent(segments.at(-2) ?? "");
  return (context) => {
    const found = findObject(context.account, last);
    if (found !== undefined) return { run: () => found };
    if (path === "/v1/balance") return { run: () => emptyBalance() };
    const owner = segments.length > 3 ? findObject(context.account, above) : undefined;
    const own = owner === undefined ? undefined : carriedList(owner, last);
    if (own !== undefined) return { run: () => ({ ...own, url: path }) };
    const literals = isId(above) ? [...segments.slice(0, -2), last] : segments;
    const kind = kindOf(`/${literals.join("/")}`);
    if (knownKinds.has(kind)) return { run: () => list(context, path, kind, isId(above) ? above : undefined) };
    const collection = kindOf(`/${segments.slice(0, -1).join("/")}`);
    if (knownKinds.has(collection)) throw noSuchObject(collection, last);
    throw unknownUrl("GET", path);
  };
}

function list(context: Context, path: string, kind: string, owner: string | undefined): object {
  const all = collectionOf<Stored>(context.account, kind).values();
  const isFiltered = fieldFilter(context.params);
  const keep = (item: Stored) =>
    isFiltered(item) &&
    (owner === undefined || Object.values(item as unknown as Record<string, unknown>).includes(owner));
  if (path.startsWith("/v2/")) return listPageV2(context, all, { url: path, keep });
  return listPage(context, all as Iterable<Stored & { created: number }>, {
    url: path,
    kind,
    lagMs: context.lag.lists,
    keep,
  });
}

function carriedList(owner: Stored, name: string): object | undefined {
  const field = carried[name];
  const value = field === undefined ? undefined : (owner as unknown as Record<string, unknown>)[field];
  return typeof value === "object" && value !== null ? value : undefined;
}

/** An id has a prefix and something long or numbered after it; names of collections have not. */
function isId(segment: string): boolean {
  return /^[a-z0-9]+(_[a-z]+)*_[A-Za-z0-9]+$/.test(segment) && (/[0-9A-Z]/.test(segment) || segment.length > 24);
}

function emptyBalance(): object {
  const nothing = [{ amount: 0, currency: "usd", source_types: { card: 0 } }];
  return { object: "balance", available: nothing, pending: nothing, livemode: false };
}

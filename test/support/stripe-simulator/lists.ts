import { invalidRequest } from "./errors.ts";
import type { Params } from "./form.ts";
import { integerParam, textParam } from "./params.ts";
import type { Context } from "./state.ts";

export interface ListObject<T> {
  object: "list";
  url: string;
  has_more: boolean;
  data: T[];
}

interface Listed {
  readonly id: string;
  readonly created: number;
}

/**
 * One page, newest first: `limit` 1 to 100 (10 unless told), `starting_after`, `ending_before`, `created` as a number
 * of seconds or `created[gt|gte|lt|lte]`. `all` is in order of creation.
 */
export function listPage<T extends Listed>(
  context: Context,
  all: Iterable<T>,
  options: { url: string; kind: string; lagMs: number; keep: (item: T) => boolean },
): ListObject<T> {
  const { params, clock } = context;
  const limit = integerParam(params, "limit") ?? 10;
  if (limit < 1 || limit > 100) throw invalidRequest("Limit must be between 1 and 100.", { param: "limit" });
  const isCreatedInRange = createdFilter(params);
  const visibleUntilMs = clock.now() - options.lagMs;
  const items = [...all]
    .toReversed()
    .filter((item) => options.keep(item) && isCreatedInRange(item.created) && item.created * 1000 <= visibleUntilMs);
  const after = textParam(params, "starting_after");
  const before = textParam(params, "ending_before");
  if (before !== undefined) {
    const end = positionOf(items, before, "ending_before", options.kind);
    const start = Math.max(0, end - limit);
    return { object: "list", url: options.url, has_more: start > 0, data: items.slice(start, end) };
  }
  const start = after === undefined ? 0 : positionOf(items, after, "starting_after", options.kind) + 1;
  const data = items.slice(start, start + limit);
  return { object: "list", url: options.url, has_more: start + data.length < items.length, data };
}

/** Keeps items whose `field` equals the parameter of that name, or all when it was not given. */
export function equalsParam<T>(params: Params, name: keyof T & string): (item: T) => boolean {
  const wanted = textParam(params, name);
  return (item) => wanted === undefined || item[name] === wanted;
}

/** Parameters of a list that do not name a field of what is listed. */
const notFields = new Set(["limit", "starting_after", "ending_before", "created", "expand", "page"]);

/**
 * Keeps items that have the value of every other parameter in the field of its name: text, number, flag, or a range
 * `amount[gte]`. A list of values keeps items with any of them. `status=all` keeps all.
 */
export function fieldFilter(params: Params): (item: object) => boolean {
  const names = Object.keys(params).filter((name) => !notFields.has(name));
  const tests = names.map((name) => {
    const wanted = params[name];
    if (name === "status" && wanted === "all") return () => true;
    if (typeof wanted === "object" && !Array.isArray(wanted)) {
      const isInRange = rangeFilter(params, name);
      return (item: Record<string, unknown>) => isInRange(Number(item[name]));
    }
    const values = Array.isArray(wanted) ? wanted : [wanted];
    return (item: Record<string, unknown>) => values.includes(String(fieldOf(item, name)));
  });
  return (item) => tests.every((test) => test(item as Record<string, unknown>));
}

/** The field that a filter means; some filters of Stripe's are not named after one. */
function fieldOf(item: Record<string, unknown>, name: string): unknown {
  if (name === "pending" && item["object"] === "invoiceitem") return item["invoice"] === null;
  if (name === "subscription" && item["subscription"] === undefined) {
    const { parent } = item as { parent?: { subscription_details?: { subscription: string } } | null };
    return parent?.subscription_details?.subscription;
  }
  return item[name];
}

/** One page of a v2 list, newest first: `limit` 1 to 100 (10 unless told) and the `page` that the last answer named. */
export function listPageV2<T extends { readonly created: number | string }>(
  context: Context,
  all: Iterable<T>,
  options: { url: string; keep: (item: T) => boolean },
): object {
  const { params } = context;
  const limit = integerParam(params, "limit") ?? 10;
  if (limit < 1 || limit > 100) throw invalidRequest("Limit must be between 1 and 100.", { param: "limit" });
  const start = Number(/^page_([0-9]+)$/.exec(textParam(params, "page") ?? "page_0")?.[1] ?? Number.NaN);
  if (Number.isNaN(start)) throw invalidRequest("Invalid page.", { param: "page" });
  const items = [...all].toReversed().filter((item) => options.keep(item));
  const at = (position: number) => `${options.url}?limit=${limit}&page=page_${position}`;
  return {
    data: items.slice(start, start + limit),
    next_page_url: start + limit < items.length ? at(start + limit) : null,
    previous_page_url: start > 0 ? at(Math.max(0, start - limit)) : null,
  };
}

function createdFilter(params: Params): (created: number) => boolean {
  return rangeFilter(params, "created");
}

/** `name` as a number, or `name[gt|gte|lt|lte]`. */
function rangeFilter(params: Params, name: string): (value: number) => boolean {
  const value = params[name];
  if (value === undefined) return () => true;
  if (typeof value === "string") {
    const exact = integerParam(params, name);
    return (created) => created === exact;
  }
  if (Array.isArray(value)) throw invalidRequest("Invalid range.", { param: name });
  const [gt, gte, lt, lte] = ["gt", "gte", "lt", "lte"].map((bound) => integerParam(value, bound));
  return (created) =>
    (gt === undefined || created > gt) &&
    (gte === undefined || created >= gte) &&
    (lt === undefined || created < lt) &&
    (lte === undefined || created <= lte);
}

function positionOf(items: readonly Listed[], id: string, param: string, kind: string): number {
  const position = items.findIndex((item) => item.id === id);
  if (position < 0) throw invalidRequest(`No such ${kind}: '${id}'`, { code: "resource_missing", param });
  return position;
}

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

function createdFilter(params: Params): (created: number) => boolean {
  const value = params["created"];
  if (value === undefined) return () => true;
  if (typeof value === "string") {
    const exact = integerParam(params, "created");
    return (created) => created === exact;
  }
  if (Array.isArray(value)) throw invalidRequest("Invalid timestamp.", { param: "created" });
  const [gt, gte, lt, lte] = ["gt", "gte", "lt", "lte"].map((name) => integerParam(value, name));
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

import { emit } from "./events.ts";
import { echoed } from "./echo.ts";
import type { Effect, MoneyEndpoint } from "./money-endpoints.ts";
import { type MovementKind, recordMovement } from "./movements.ts";
import { mergedMetadata } from "./params.ts";
import { idPrefixOf, isCollectionBelow, kindOf } from "./resources.ts";
import {
  type Context,
  type Endpoint,
  type Prepared,
  type Stored,
  collectionOf,
  findObject,
  keep,
  newId,
} from "./state.ts";

/** An object of which only the frame is known; the rest is what the requests said. */
export type PlainObject = Stored & Record<string, unknown>;

/** Paths that make an object although their last name is no collection: `tax/transactions/create_reversal`. */
const maker = /^(create_[a-z_]+|report_payment|delete|payment|settings|token|deauthorize)$/;

/** What an action leaves in `status`; what is not here leaves it as it was. */
const statusAfter: Readonly<Record<string, string>> = {
  acknowledge: "acknowledged",
  approve: "approved",
  cancel: "canceled",
  capture: "closed",
  close: "closed",
  confirm: "succeeded",
  decline: "declined",
  disconnect: "disconnected",
  expire: "expired",
  fail: "failed",
  pause: "paused",
  pay: "paid",
  post: "posted",
  redact: "redacted",
  reject: "rejected",
  release: "released",
  resume: "active",
  return: "returned",
  reverse: "reversed",
  submit: "submitted",
  succeed: "succeeded",
  void: "void",
};

const activeAfter: Readonly<Record<string, boolean>> = {
  activate: true,
  archive: false,
  deactivate: false,
  reactivate: true,
  unarchive: true,
};

const movementOf: Readonly<Partial<Record<Effect, MovementKind>>> = {
  charge: "charge",
  payout: "payout",
  refund: "refund",
  credit: "credit",
};

/**
 * Answers any write that has no endpoint of its own: makes, changes, acts on or deletes an object of the right kind.
 * An object named in the path need not exist. Where the table says that money moves, it is written down, with the
 * amount of the body, else of the object, else 0.
 */
export function genericEndpoint({ method, pattern, effect }: MoneyEndpoint): Endpoint {
  const segments = pattern.split("/").slice(1);
  const last = segments.at(-1) ?? "";
  const parent = segments.at(-3) ?? "";
  const isBelowObject = segments.at(-2) === ":id";
  if (method === "DELETE") return (context) => remove(context, pattern);
  if (last === ":id") return (context) => change(context, pattern, { effect });
  if (isBelowObject && !isCollectionBelow(parent, last)) {
    return (context) => change(context, segments.slice(0, -2).join("/"), { effect, action: last });
  }
  const collection = maker.test(last) && segments.length > 2 ? `/${segments.slice(0, -1).join("/")}` : pattern;
  return (context) => create(context, collection, effect);
}

function create(context: Context, pattern: string, effect: Effect): Prepared {
  const kind = kindOf(pattern);
  const fields = echoed(context.params);
  const metadata = mergedMetadata(context.params);
  return {
    run: () => {
      const object: PlainObject = { ...frame(context, kind, pattern), ...fields, metadata };
      keep(context.account, object);
      move(context, object, effect);
      emit(context, `${kind}.created`, object);
      return object;
    },
  };
}

function change(
  context: Context,
  pattern: string,
  { effect, action = "update" }: { effect: Effect; action?: string },
): Prepared {
  const kind = kindOf(pattern);
  const id = context.ids.at(-1) ?? "";
  const fields = echoed(context.params);
  const present = (findObject(context.account, id) as PlainObject | undefined) ?? frame(context, kind, pattern, id);
  const metadata = mergedMetadata(context.params, (present["metadata"] ?? {}) as Record<string, string>);
  return {
    lock: id,
    run: () => {
      const before = { ...present };
      Object.assign(present, action === "update" ? fields : withoutAmount(fields, present), { metadata });
      const status = statusAfter[action];
      if (status !== undefined) present["status"] = status;
      if (action in activeAfter) present["active"] = activeAfter[action];
      keep(context.account, present);
      move(context, { ...before, ...fields, id, metadata, object: kind, created: present.created }, effect);
      emit(context, `${kind}.${action === "update" ? "updated" : action}`, present);
      return present;
    },
  };
}

/** The amount of a partial action must not replace the object's own. */
function withoutAmount(fields: Record<string, unknown>, present: PlainObject): Record<string, unknown> {
  if (present["amount"] === undefined) return fields;
  const { amount: _, ...rest } = fields;
  return rest;
}

function remove(context: Context, pattern: string): Prepared {
  const id = context.ids.at(-1) ?? "";
  const isWhole = pattern.endsWith(":id");
  return {
    lock: id,
    run: () => {
      const kind = findObject(context.account, id)?.object ?? kindOf(pattern);
      if (!isWhole) return { object: kindOf(pattern), deleted: true };
      collectionOf(context.account, kind).delete(id);
      emit(context, `${kind}.deleted`, { id, object: kind });
      return { id, object: kind, deleted: true };
    },
  };
}

/** What every object has. The object above it in the path is named in it: `customer: "cus_1"`. */
function frame(context: Context, kind: string, pattern: string, id = newId(idPrefixOf(kind))): PlainObject {
  const isV2 = kind.startsWith("v2.");
  const names = pattern.split("/").filter((segment) => segment !== "");
  const above = names.indexOf(":id");
  const owner = context.ids[0];
  const isBelow = above > 0 && above < names.length - 1 && owner !== undefined;
  return {
    id,
    object: kind,
    created: isV2 ? new Date(context.clock.now()).toISOString() : context.clock.seconds(),
    livemode: false,
    ...(isBelow ? { [kindOf(`/v1/${names[above - 1] ?? ""}`)]: owner } : {}),
  };
}

function move(context: Context, object: PlainObject, effect: Effect): void {
  const kind = movementOf[effect];
  if (kind === undefined) return;
  const { amount, currency } = amountOf(object);
  const customer = object["customer"];
  recordMovement(context, {
    kind,
    id: object.id,
    amount,
    currency,
    customer: typeof customer === "string" ? customer : null,
    metadata: (object["metadata"] ?? {}) as Record<string, string>,
  });
}

/** Amount and currency of an object of any kind: `amount: 1`, `amount: {value, currency}` or one of its totals. */
export function amountOf(object: Record<string, unknown>): { amount: number; currency: string } {
  const names = ["amount", "amount_total", "amount_remaining", "total"];
  const found = names.map((name) => object[name]).find((value) => value !== undefined);
  const { value, currency } = (typeof found === "object" && found !== null ? found : {}) as Record<string, unknown>;
  const amount = Number(value ?? found ?? 0);
  return {
    amount: Number.isFinite(amount) ? Math.abs(amount) : 0,
    currency: [currency, object["currency"]].find((name) => typeof name === "string")?.toLowerCase() ?? "usd",
  };
}

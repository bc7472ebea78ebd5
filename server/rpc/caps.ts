import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { type Cap as CapMessage, CapSchema, CapUsageSchema, CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import type { Cap, CapScope, CapUsage, CapWindow as CapWindowName, NewCap } from "../domain/cap.ts";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type { Money } from "../domain/money.ts";
import type { Direction } from "../domain/spend.ts";
import * as store from "../store/cap.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import { principalOf } from "./auth.ts";
import { directionFrom, directionOf, moneyFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type CapMethods = Pick<ServiceImpl<typeof AdminService>, "createCap" | "getCap" | "updateCap" | "listCaps">;

const windowOf = {
  LIFETIME: CapWindow.LIFETIME,
  DAY: CapWindow.DAY,
  BILLING_PERIOD: CapWindow.BILLING_PERIOD,
} as const satisfies Record<CapWindowName, CapWindow>;

export function capMethods(database: Database, changePolicy: ChangePolicy): CapMethods {
  return {
    async createCap(request, context) {
      const principal = principalOf(context.values);
      const cap = newCap(request.capId, request.cap);
      if (!(await store.isTimeZone(database, cap.timeZone))) {
        throw invalidField("cap.time_zone", 'is not a zone of the IANA database, for example "Europe/Berlin".');
      }
      const created = await changePolicy(
        { principal, kind: "cap.created", traceId: currentTraceId() ?? "", detail: { cap: request.capId, ...cap } },
        (transaction) => store.insertCap(transaction, principal.workspace, cap),
      );
      return { cap: capMessage(created) };
    },
    async getCap(request, context) {
      const { workspace } = principalOf(context.values);
      const cap = requireCap(request.name, await store.getCap(database, workspace, capIdOf(request.name)));
      const counter = { window: request.window, customerId: cap.perCustomer ? request.customerId : "" };
      const unknown =
        (cap.window === "BILLING_PERIOD" && counter.window === "") || (cap.perCustomer && counter.customerId === "");
      if (cap.window === "DAY" && counter.window !== "" && !isDay(counter.window)) {
        throw invalidField("window", 'must be a day, for example "2026-11-30".');
      }
      if (cap.window === "LIFETIME" && counter.window !== "") {
        throw invalidField("window", "must be empty: a LIFETIME cap has one counter for ever.");
      }
      const usage = unknown ? undefined : await store.getCapUsage(database, workspace, cap.capId, counter);
      return { cap: capMessage(cap), ...(usage === undefined ? {} : { usage: usageMessage(cap, usage) }) };
    },
    async updateCap(request, context) {
      const principal = principalOf(context.values);
      const { cap, paths, capId } = updateOf(request.cap, request.updateMask?.paths ?? []);
      const updated = await changePolicy(
        { principal, kind: "cap.updated", traceId: currentTraceId() ?? "", detail: { cap: capId, fields: paths } },
        async (transaction) => {
          const before = requireCap(cap.name, await store.getCap(transaction, principal.workspace, capId));
          if (cap.etag !== "" && cap.etag !== etagOf(before)) throw etagMismatch(cap.name);
          return await store.updateCap(transaction, principal.workspace, capId, changeOf(before, cap, paths));
        },
      );
      return { cap: capMessage(updated) };
    },
    async listCaps(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken(request.pageToken, 1) ?? [];
      const page = cutPage(await store.listCaps(database, workspace, after, size + 1), size, (cap) => [cap.capId]);
      return { caps: page.rows.map(capMessage), nextPageToken: page.nextPageToken };
    },
  };
}

export function newCap(capId: string, message: CapMessage | undefined): NewCap {
  if (message === undefined) throw invalidField("cap", "is required.");
  const window = (Object.keys(windowOf) as CapWindowName[]).find((name) => windowOf[name] === message.window);
  if (window === undefined) throw invalidField("cap.window", "must be LIFETIME, DAY or BILLING_PERIOD.");
  if (window !== "DAY" && message.timeZone !== "") {
    throw invalidField("cap.time_zone", "is only for a DAY window; leave it out.");
  }
  const limit = moneyFrom(message.limit, "cap.limit", true);
  const direction = directionFrom(message.direction);
  const { scope } = message;
  return {
    capId,
    limit,
    window,
    timeZone: message.timeZone === "" ? "UTC" : message.timeZone,
    scope: {
      vaultKeyId: scope?.vaultKey.replace(/^vaultKeys\//, "") || undefined,
      vendor: scope?.vendor || undefined,
      endpoint: scope?.endpoint || undefined,
      customerId: scope?.customerId || undefined,
      purpose: scope?.purpose || undefined,
    },
    perCustomer: message.perCustomer,
    direction,
    refundsRestoreHeadroom: restoringOf(message, direction),
    maxPerSpend: maxPerSpendOf(message, limit)?.micros,
  };
}

function restoringOf(message: CapMessage, direction: Direction): boolean {
  if (direction === "SPEND" || !message.refundsRestoreHeadroom) return message.refundsRestoreHeadroom;
  throw invalidField("cap.refunds_restore_headroom", "is only for a cap of DIRECTION_SPEND; leave it out.");
}

function maxPerSpendOf(message: CapMessage, limit: Money): Money | undefined {
  if (message.maxPerSpend === undefined) return undefined;
  const max = moneyFrom(message.maxPerSpend, "cap.max_per_spend", true);
  if (max.currency === limit.currency) return max;
  throw invalidField("cap.max_per_spend.currency", `must be ${limit.currency}, the currency of the limit.`);
}

const updatable = ["limit", "max_per_spend", "refunds_restore_headroom"];

function updateOf(message: CapMessage | undefined, paths: readonly string[]) {
  if (message === undefined) throw invalidField("cap", "is required.");
  const capId = capIdOf(message.name);
  const wrong = paths.find((path) => !updatable.includes(path));
  if (wrong !== undefined || paths.length === 0) {
    const what = wrong === undefined ? "names no field" : `names ${wrong}, which never changes`;
    throw invalidField("update_mask", `${what}; name ${updatable.join(", ")}, or create a new cap.`);
  }
  return { cap: message, capId, paths };
}

function changeOf(before: Cap, message: CapMessage, paths: readonly string[]): store.CapChange {
  const limit = paths.includes("limit") ? moneyFrom(message.limit, "cap.limit", true) : undefined;
  if (limit !== undefined && limit.currency !== before.limit.currency) {
    throw invalidField("cap.limit.currency", `must stay ${before.limit.currency}; create a new cap for another one.`);
  }
  const max = paths.includes("max_per_spend") ? (maxPerSpendOf(message, before.limit)?.micros ?? null) : undefined;
  const restoring = paths.includes("refunds_restore_headroom") ? restoringOf(message, before.direction) : undefined;
  return { limit: limit?.micros, maxPerSpend: max, refundsRestoreHeadroom: restoring };
}

function capIdOf(name: string): string {
  const match = /^caps\/([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$/.exec(name);
  if (match === null) throw invalidField("cap.name", 'must be a resource name, for example "caps/daily".');
  return match[1] as string;
}

function requireCap(name: string, cap: Cap | undefined): Cap {
  if (cap !== undefined) return cap;
  throw new HoldfastError("NOT_FOUND", `There is no cap ${name}. ListCaps shows which there are.`, {
    metadata: { name },
  });
}

function etagMismatch(name: string): HoldfastError {
  return new HoldfastError("ETAG_MISMATCH", `${name} has changed since it was read. Read it again and repeat.`, {
    metadata: { name },
  });
}

function etagOf(cap: Cap): string {
  return `v${cap.version}`;
}

function isDay(label: string): boolean {
  const time = Date.parse(`${label}T00:00:00Z`);
  // Postgres has no year 0.
  return (
    /^(?!0000)\d{4}-\d{2}-\d{2}$/.test(label) && !Number.isNaN(time) && new Date(time).toISOString().startsWith(label)
  );
}

function scopeMessage(scope: CapScope) {
  return {
    vaultKey: scope.vaultKeyId === undefined ? "" : `vaultKeys/${scope.vaultKeyId}`,
    vendor: scope.vendor ?? "",
    endpoint: scope.endpoint ?? "",
    customerId: scope.customerId ?? "",
    purpose: scope.purpose ?? "",
  };
}

export function capMessage(cap: Cap): CapMessage {
  const max = cap.maxPerSpend;
  return create(CapSchema, {
    name: `caps/${cap.capId}`,
    limit: moneyMessage(cap.limit),
    window: windowOf[cap.window],
    timeZone: cap.window === "DAY" ? cap.timeZone : "",
    scope: scopeMessage(cap.scope),
    perCustomer: cap.perCustomer,
    direction: directionOf[cap.direction],
    refundsRestoreHeadroom: cap.refundsRestoreHeadroom,
    etag: etagOf(cap),
    createTime: timestampMessage(cap.createTime),
    updateTime: timestampMessage(cap.updateTime),
    ...(max === undefined ? {} : { maxPerSpend: moneyMessage({ currency: cap.limit.currency, micros: max }) }),
  });
}

function usageMessage(cap: Cap, usage: CapUsage) {
  const money = (micros: bigint) => moneyMessage({ currency: cap.limit.currency, micros });
  return create(CapUsageSchema, {
    window: usage.window,
    customerId: usage.customerId,
    committed: money(usage.committed),
    held: money(usage.held),
    headroom: money(cap.limit.micros - usage.committed - usage.held),
    ...(usage.windowEnd === undefined ? {} : { windowEndTime: timestampMessage(usage.windowEnd) }),
  });
}

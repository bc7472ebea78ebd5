import { create } from "@bufbuild/protobuf";
import {
  type Cap as CapMessage,
  type CapDraw as CapDrawMessage,
  CapDrawSchema,
  CapEnforcement,
  CapSchema,
  CapState,
  CapScopeSchema,
  type CapUsage as CapUsageMessage,
  CapUsageSchema,
  CapWindow,
  DayOfWeek,
} from "@holdfast/api/holdfast/v1/cap_pb";
import {
  type Cap,
  type CapDraw,
  type CapEnforcement as CapEnforcementName,
  type CapScope,
  type CapUsage,
  type CapWindow as CapWindowName,
  isCalendar,
  limitFigure,
} from "../domain/cap.ts";
import { denialRuleOf, directionOf, moneyMessage, timestampMessage } from "./convert.ts";

export const windowOf = {
  LIFETIME: CapWindow.LIFETIME,
  DAY: CapWindow.DAY,
  WEEK: CapWindow.WEEK,
  MONTH: CapWindow.MONTH,
  YEAR: CapWindow.YEAR,
  BILLING_PERIOD: CapWindow.BILLING_PERIOD,
  FIXED: CapWindow.FIXED,
} as const satisfies Record<CapWindowName, CapWindow>;

const enforcementOf = {
  ENFORCE: CapEnforcement.ENFORCE,
  SHADOW: CapEnforcement.SHADOW,
} as const satisfies Record<CapEnforcementName, CapEnforcement>;

export function etagOf(cap: Cap): string {
  return `v${cap.version}`;
}

export function capMessage(cap: Cap): CapMessage {
  const { limit, window } = cap;
  const { currency } = limit;
  const max = cap.maxPerSpend;
  return create(CapSchema, {
    name: `caps/${cap.capId}`,
    ...(limit.currency === undefined ? { spendCountLimit: limit.count } : { limit: moneyMessage(limit) }),
    enforcement: enforcementOf[cap.enforcement],
    window: windowOf[window],
    timeZone: isCalendar(window) ? cap.timeZone : "",
    startHour: cap.startHour,
    // The numbers of the days are the same.
    weekStart: window === "WEEK" ? (cap.weekStart as DayOfWeek) : DayOfWeek.UNSPECIFIED,
    anchorDay: window === "MONTH" || window === "YEAR" ? cap.anchorDay : 0,
    anchorMonth: window === "YEAR" ? cap.anchorMonth : 0,
    ...(cap.startTime === undefined ? {} : { startTime: timestampMessage(cap.startTime) }),
    ...(cap.endTime === undefined ? {} : { endTime: timestampMessage(cap.endTime) }),
    scope: scopeMessage(cap.scope),
    attachedOnly: cap.attachedOnly,
    perCustomer: cap.perCustomer,
    direction: directionOf[cap.direction],
    refundsRestoreHeadroom: cap.refundsRestoreHeadroom,
    etag: etagOf(cap),
    createTime: timestampMessage(cap.createTime),
    updateTime: timestampMessage(cap.updateTime),
    state: cap.archiveTime === undefined ? CapState.ACTIVE : CapState.ARCHIVED,
    archiveReason: cap.archiveReason,
    ...(cap.archiveTime === undefined ? {} : { archiveTime: timestampMessage(cap.archiveTime) }),
    ...(max === undefined || currency === undefined ? {} : { maxPerSpend: moneyMessage({ currency, micros: max }) }),
  });
}

function scopeMessage(scope: CapScope) {
  return create(CapScopeSchema, {
    vaultKey: scope.vaultKeyId === undefined ? "" : `vaultKeys/${scope.vaultKeyId}`,
    vendor: scope.vendor ?? "",
    endpoint: scope.endpoint ?? "",
    customerId: scope.customerId ?? "",
    purpose: scope.purpose ?? "",
  });
}

/** A counter with what is left of the limit. */
export function usageMessage({ limit }: Pick<Cap, "limit">, usage: CapUsage): CapUsageMessage {
  return figuresMessage(limit.currency, limitFigure(limit), usage);
}

/** What `amount` of a spend would take from a cap. */
export function drawMessage(draw: CapDraw, amount: { readonly currency: string; readonly micros: bigint }) {
  const { currency, limit, maxPerSpend: max, rule } = draw;
  const isCountable = rule !== "CURRENCY" && rule !== "BILLING_PERIOD_NOT_PINNED";
  const taken = currency === undefined ? { count: 1n } : { amount: moneyMessage(amount) };
  return create(CapDrawSchema, {
    cap: `caps/${draw.capId}`,
    enforcement: enforcementOf[draw.enforcement],
    ...(currency === undefined ? { spendCountLimit: limit } : { limit: moneyMessage({ currency, micros: limit }) }),
    ...(currency === undefined || max === undefined ? {} : { maxPerSpend: moneyMessage({ currency, micros: max }) }),
    usage: figuresMessage(currency, limit, draw),
    ...(isCountable ? taken : {}),
    fits: rule === undefined,
    ...(rule === undefined ? {} : { rule: denialRuleOf[rule] }),
  }) satisfies CapDrawMessage;
}

function figuresMessage(currency: string | undefined, limit: bigint, usage: CapUsage): CapUsageMessage {
  const { committed, held, windowStart, windowEnd } = usage;
  const headroom = limit - committed - held;
  return create(CapUsageSchema, {
    window: usage.window,
    customerId: usage.customerId,
    ...(currency === undefined
      ? { committedCount: committed, heldCount: held, headroomCount: headroom }
      : {
          committed: moneyMessage({ currency, micros: committed }),
          held: moneyMessage({ currency, micros: held }),
          headroom: moneyMessage({ currency, micros: headroom }),
        }),
    ...(windowStart === undefined ? {} : { windowStartTime: timestampMessage(windowStart) }),
    ...(windowEnd === undefined ? {} : { windowEndTime: timestampMessage(windowEnd) }),
  });
}

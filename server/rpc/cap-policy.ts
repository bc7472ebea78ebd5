import { create } from "@bufbuild/protobuf";
import { type Cap as CapMessage, CapEnforcement, CapSchema, CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import {
  type Cap,
  type CapCalendar,
  type CapEnforcement as CapEnforcementName,
  type CapScope,
  type CapWindow as CapWindowName,
  isCalendar,
  type NewCap,
  type SpendCount,
} from "../domain/cap.ts";
import { invalidField } from "../domain/errors.ts";
import type { Micros, Money } from "../domain/money.ts";
import { type CapChange, isTimeZone } from "../store/cap.ts";
import type { Database } from "../store/database.ts";
import { windowOf } from "./cap-message.ts";
import { directionFrom, microsFrom, moneyFrom } from "./convert.ts";
import { shownPath, validateMasked } from "./update-mask.ts";

/** Reads a validated cap. Throws INVALID_FIELD where its fields do not fit together. */
export function newCap(capId: string, message: CapMessage | undefined): NewCap {
  if (message === undefined) throw invalidField("cap", "is required.");
  const limit = limitFrom(message);
  const direction = directionFrom(message.direction);
  return {
    capId,
    limit,
    enforcement: enforcementFrom(message),
    ...calendarFrom(message),
    scope: scopeFrom(message),
    attachedOnly: message.attachedOnly,
    perCustomer: message.perCustomer,
    direction,
    refundsRestoreHeadroom: restoringFrom(message, { limit, direction }),
    maxPerSpend: maxPerSpendFrom(message, limit),
  };
}

function limitFrom(message: CapMessage): Money | SpendCount {
  if (message.spendCountLimit === undefined) {
    if (message.limit === undefined) {
      throw invalidField("cap.limit", "is required, or spend_count_limit for a cap that counts spends.");
    }
    return moneyFrom(message.limit, "cap.limit", true);
  }
  if (message.limit !== undefined) {
    throw invalidField("cap.spend_count_limit", "is instead of limit; leave one of them out, or create two caps.");
  }
  return { currency: undefined, count: message.spendCountLimit };
}

function enforcementFrom({ enforcement }: CapMessage): CapEnforcementName {
  return enforcement === CapEnforcement.SHADOW ? "SHADOW" : "ENFORCE";
}

function calendarFrom(message: CapMessage): CapCalendar {
  const window = (Object.keys(windowOf) as CapWindowName[]).find((name) => windowOf[name] === message.window);
  if (window === undefined) throw invalidField("cap.window", `must be one of ${Object.keys(windowOf).join(", ")}.`);
  const only = (field: string, isSet: boolean, windows: readonly CapWindowName[]): void => {
    if (isSet && !windows.includes(window)) {
      throw invalidField(`cap.${field}`, `is only for a window of ${windows.join(", ")}; leave it out.`);
    }
  };
  const calendars = (Object.keys(windowOf) as CapWindowName[]).filter(isCalendar);
  only("time_zone", message.timeZone !== "", calendars);
  only("start_hour", message.startHour !== 0, calendars);
  only("week_start", message.weekStart !== 0, ["WEEK"]);
  only("anchor_day", message.anchorDay !== 0, ["MONTH", "YEAR"]);
  only("anchor_month", message.anchorMonth !== 0, ["YEAR"]);
  only("start_time", message.startTime !== undefined, ["FIXED"]);
  only("end_time", message.endTime !== undefined, ["FIXED"]);
  return {
    window,
    timeZone: message.timeZone === "" ? "UTC" : message.timeZone,
    startHour: message.startHour,
    // The numbers of the days are the same.
    weekStart: message.weekStart === 0 ? 1 : message.weekStart,
    anchorDay: message.anchorDay === 0 ? 1 : message.anchorDay,
    anchorMonth: message.anchorMonth === 0 ? 1 : message.anchorMonth,
    ...fixedFrom(message, window),
  };
}

function fixedFrom({ startTime, endTime }: CapMessage, window: CapWindowName) {
  if (window !== "FIXED") return { startTime: undefined, endTime: undefined };
  const required = "is required with a FIXED window.";
  if (startTime === undefined) throw invalidField("cap.start_time", required);
  if (endTime === undefined) throw invalidField("cap.end_time", required);
  const times = { startTime: microsFrom(startTime, "cap.start_time"), endTime: microsFrom(endTime, "cap.end_time") };
  if (times.endTime > times.startTime) return times;
  throw invalidField("cap.end_time", "must be after start_time; it is the first instant that is not counted any more.");
}

function scopeFrom({ scope }: CapMessage): CapScope {
  return {
    vaultKeyId: scope?.vaultKey.replace(/^vaultKeys\//, "") || undefined,
    vendor: scope?.vendor || undefined,
    endpoint: scope?.endpoint || undefined,
    customerId: scope?.customerId || undefined,
    purpose: scope?.purpose || undefined,
  };
}

function restoringFrom(message: CapMessage, cap: Pick<NewCap, "limit" | "direction">): boolean {
  if (!message.refundsRestoreHeadroom) return false;
  if (cap.direction !== "SPEND") {
    throw invalidField("cap.refunds_restore_headroom", "is only for a cap of DIRECTION_SPEND; leave it out.");
  }
  if (cap.limit.currency === undefined) {
    throw invalidField(
      "cap.refunds_restore_headroom",
      "is only for a cap with a limit in money: a refund does not undo that a spend was made; leave it out.",
    );
  }
  return true;
}

function maxPerSpendFrom(message: CapMessage, limit: Money | SpendCount): Micros | undefined {
  if (message.maxPerSpend === undefined) return undefined;
  if (limit.currency === undefined) {
    throw invalidField(
      "cap.max_per_spend",
      "is only for a cap with a limit in money: this one counts spends of any currency; set it on the vault key or on another cap.",
    );
  }
  const max = moneyFrom(message.maxPerSpend, "cap.max_per_spend", true);
  if (max.currency === limit.currency) return max.micros;
  throw invalidField("cap.max_per_spend.currency", `must be ${limit.currency}, the currency of the limit.`);
}

const updatable = ["limit", "spend_count_limit", "max_per_spend", "refunds_restore_headroom", "enforcement"] as const;

export interface CapUpdate {
  readonly cap: CapMessage;
  readonly paths: readonly string[];
}

/** Reads an update. Throws INVALID_FIELD for a mask that names nothing or what never changes. */
export function capUpdate(message: CapMessage | undefined, paths: readonly string[]): CapUpdate {
  if (message === undefined) throw invalidField("cap", "is required.");
  const wrong = paths.find((path) => !(updatable as readonly string[]).includes(path));
  if (wrong === undefined && paths.length > 0) {
    validateMasked(CapSchema, masked(message, paths), "cap");
    return { cap: message, paths };
  }
  const what = wrong === undefined ? "names no field" : `names ${shownPath(wrong)}, which never changes`;
  throw invalidField("update_mask", `${what}; name ${updatable.join(", ")}, or create a new cap.`);
}

/** Only what the mask names, in a cap that is valid otherwise. */
function masked(message: CapMessage, paths: readonly string[]): CapMessage {
  const named = CapSchema.fields.filter(({ name }) => paths.includes(name)).map(({ localName }) => localName);
  const picked = Object.entries(message).filter(([field]) => named.includes(field));
  return Object.assign(create(CapSchema, { window: CapWindow.LIFETIME }), Object.fromEntries(picked));
}

/** What an update changes of a cap. Throws INVALID_FIELD for what this cap cannot become. */
export function capChange(before: Cap, { cap, paths }: CapUpdate): CapChange {
  const named = (path: (typeof updatable)[number]): boolean => paths.includes(path);
  return {
    limit: limitChange(before, cap, paths),
    maxPerSpend: named("max_per_spend") ? (maxPerSpendFrom(cap, before.limit) ?? null) : undefined,
    refundsRestoreHeadroom: named("refunds_restore_headroom") ? restoringFrom(cap, before) : undefined,
    enforcement: named("enforcement") ? enforcementFrom(cap) : undefined,
  };
}

function limitChange(before: Cap, cap: CapMessage, paths: readonly string[]): bigint | undefined {
  const { limit } = before;
  if (limit.currency === undefined) {
    if (paths.includes("limit")) {
      throw invalidField("cap.limit", "cannot be set: this cap counts spends; change spend_count_limit.");
    }
    if (!paths.includes("spend_count_limit")) return undefined;
    if (cap.spendCountLimit !== undefined) return cap.spendCountLimit;
    throw invalidField("cap.spend_count_limit", "is required where the mask names it.");
  }
  if (paths.includes("spend_count_limit")) {
    throw invalidField("cap.spend_count_limit", "cannot be set: this cap counts money; change limit.");
  }
  if (!paths.includes("limit")) return undefined;
  const after = moneyFrom(cap.limit, "cap.limit", true);
  if (after.currency === limit.currency) return after.micros;
  throw invalidField("cap.limit.currency", `must stay ${limit.currency}; create a new cap for another one.`);
}

/** What the audit keeps of a new cap. */
export function createdDetail({ capId, ...rule }: NewCap): object {
  return { cap: capId, ...rule };
}

/** Throws INVALID_FIELD: only the database knows which zones it can count in. `place` is where the cap stands. */
export async function requireTimeZone(database: Database, { timeZone }: NewCap, place: string): Promise<void> {
  if (timeZone === "UTC" || (await isTimeZone(database, timeZone))) return;
  throw invalidField(`${place}.time_zone`, 'is not a zone of the IANA database, for example "Europe/Berlin".');
}

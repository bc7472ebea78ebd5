import type { Micros, Money } from "./money.ts";
import type { DenialRule, Direction } from "./spend.ts";

export type CapWindow = "LIFETIME" | "DAY" | "WEEK" | "MONTH" | "YEAR" | "BILLING_PERIOD" | "FIXED";
/** SHADOW counts and reports, and never denies. */
export type CapEnforcement = "ENFORCE" | "SHADOW";

/** Which spends a cap counts; every field that is set must match. */
export interface CapScope {
  readonly vaultKeyId: string | undefined;
  readonly vendor: string | undefined;
  readonly endpoint: string | undefined;
  readonly customerId: string | undefined;
  readonly purpose: string | undefined;
}

/** How many spends of any currency. */
export interface SpendCount {
  readonly currency: undefined;
  readonly count: bigint;
}

/** Over what time a cap counts. What a window does not use has its default. */
export interface CapCalendar {
  readonly window: CapWindow;
  /** IANA zone of a calendar window. */
  readonly timeZone: string;
  /** 0–23. */
  readonly startHour: number;
  /** 1 is Monday, 7 is Sunday. */
  readonly weekStart: number;
  /** 1–31; in a shorter month its last day. */
  readonly anchorDay: number;
  /** 1–12. */
  readonly anchorMonth: number;
  /** Of a FIXED window, in microseconds since 1970; the end is the first instant after it. */
  readonly startTime: bigint | undefined;
  readonly endTime: bigint | undefined;
}

export interface NewCap extends CapCalendar {
  readonly capId: string;
  readonly limit: Money | SpendCount;
  readonly enforcement: CapEnforcement;
  readonly scope: CapScope;
  /** Counts only spends of vault keys that name the cap. */
  readonly attachedOnly: boolean;
  readonly perCustomer: boolean;
  readonly direction: Direction;
  /** A refund of a charge that the cap counted gives its headroom back. Only of money, and for SPEND. */
  readonly refundsRestoreHeadroom: boolean;
  /** In the currency of the limit. */
  readonly maxPerSpend: Micros | undefined;
}

/** Times are microseconds since 1970 on the database clock. */
export interface Cap extends NewCap {
  readonly version: bigint;
  readonly createTime: bigint;
  readonly updateTime: bigint;
  readonly archiveTime: bigint | undefined;
  readonly archiveReason: string;
}

/** What is used of a cap in one window: micros of its currency; spends, where it has none. */
export interface CapFigures {
  readonly capId: string;
  readonly window: string;
  readonly windowStart: bigint | undefined;
  readonly windowEnd: bigint | undefined;
  readonly currency: string | undefined;
  readonly limit: bigint;
  readonly committed: bigint;
  readonly held: bigint;
}

/** What one spend would take from one cap. */
export interface CapDraw extends CapFigures {
  readonly customerId: string;
  readonly enforcement: CapEnforcement;
  /** In micros of the cap's currency. */
  readonly maxPerSpend: bigint | undefined;
  /** Why it does not fit; undefined where it fits. */
  readonly rule: DenialRule | undefined;
}

/** The counter of one cap in one window; zero if nothing was ever held in it. */
export interface CapUsage {
  readonly window: string;
  readonly customerId: string;
  /** In the unit of the cap's limit. */
  readonly committed: bigint;
  readonly held: bigint;
  readonly windowStart: bigint | undefined;
  readonly windowEnd: bigint | undefined;
}

const calendars: readonly CapWindow[] = ["DAY", "WEEK", "MONTH", "YEAR"];

/** Whether a window is one of a calendar, which has a zone and begins at an hour. */
export function isCalendar(window: CapWindow): boolean {
  return calendars.includes(window);
}

/** The limit as a number: micros of its currency, or spends. */
export function limitFigure(limit: Money | SpendCount): bigint {
  return limit.currency === undefined ? limit.count : limit.micros;
}

/** What is wrong with the label of a window that somebody asks for, in words that follow its name; undefined if nothing. */
export function labelProblem(calendar: CapCalendar, label: string): string | undefined {
  switch (calendar.window) {
    case "LIFETIME":
      return label === "" ? undefined : "must be empty: a LIFETIME cap has one counter for ever.";
    case "FIXED":
      return label === "" ? undefined : "must be empty: a FIXED cap has one counter.";
    case "BILLING_PERIOD":
      return undefined;
    case "YEAR":
      return /^(?!0000)\d{4}$/.test(label) ? undefined : 'must be the year in which it begins, for example "2026".';
    case "MONTH":
      return isDay(`${label}-01`) ? undefined : 'must be the month in which it begins, for example "2026-11".';
    case "WEEK":
      return isDay(label) && isoWeekday(label) === calendar.weekStart
        ? undefined
        : 'must be the first day of a week of this cap, for example "2026-11-30".';
    case "DAY":
      return isDay(label) ? undefined : 'must be a day, for example "2026-11-30".';
  }
}

function isDay(label: string): boolean {
  const time = Date.parse(`${label}T00:00:00Z`);
  // Postgres has no year 0.
  return (
    /^(?!0000)\d{4}-\d{2}-\d{2}$/.test(label) && !Number.isNaN(time) && new Date(time).toISOString().startsWith(label)
  );
}

function isoWeekday(day: string): number {
  return new Date(`${day}T00:00:00Z`).getUTCDay() || 7;
}

import type { Calendar, CreateCap } from "./command.ts";

const formats = new Map<string, Intl.DateTimeFormat>();
const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

/** What the clocks of a zone show, in milliseconds as if it were UTC. The Swedish locale writes ISO dates. */
function clocks(zone: string, instant: number): number {
  let format = formats.get(zone);
  if (format === undefined) {
    format = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" });
    formats.set(zone, format);
  }
  const second = Math.floor(instant / 1000) * 1000;
  return Date.parse(`${format.format(second).replace(" ", "T")}Z`) + (instant - second);
}

/**
 * The latest time that the clocks of a zone have shown: what they show, except in the hours that they repeat after they
 * went back. A window that has begun by it does not end again.
 */
function latestShown(zone: string, now: number): number {
  const shown = clocks(zone, now);
  const before = clocks(zone, now - day - hour);
  if (shown - before >= day + hour) return shown;
  let [earlier, later] = [Math.floor((now - day - hour) / minute), Math.ceil(now / minute)];
  const isOld = (at: number): boolean => clocks(zone, at * minute) - at * minute > shown - now;
  // The last minute by the old clocks: every change of a zone's clocks since 1972 falls on a whole minute.
  while (later - earlier > 1) {
    const middle = Math.floor((earlier + later) / 2);
    if (isOld(middle)) earlier = middle;
    else later = middle;
  }
  return Math.max(shown, clocks(zone, later * minute - 1));
}

export type Placing = (year: number, month: number, wanted: number) => number;

/** A day that a month does not have is its last one. Months count from 0. */
export const clamped: Placing = (year, month, wanted) =>
  Math.min(wanted, new Date(Date.UTC(year, month + 1, 0)).getUTCDate());

/** The label of the calendar window that contains an instant. */
function calendarLabel(rule: CreateCap, now: number, dayIn: Placing): string {
  const { zone, startHour, weekStart, anchorDay, anchorMonth } = rule.calendar;
  const date = new Date(latestShown(zone, now) - startHour * hour);
  const [year, month, dayOfMonth] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  const iso = (at: number): string => new Date(at).toISOString();
  switch (rule.window) {
    case "DAY":
      return iso(date.getTime()).slice(0, 10);
    case "WEEK":
      return iso(date.getTime() - (((date.getUTCDay() || 7) - weekStart + 7) % 7) * day).slice(0, 10);
    case "MONTH":
      return iso(Date.UTC(year, dayOfMonth < dayIn(year, month, anchorDay) ? month - 1 : month, 1)).slice(0, 7);
    case "YEAR": {
      const begins = (anchorMonth - 1) * 100 + dayIn(year, anchorMonth - 1, anchorDay);
      return `${month * 100 + dayOfMonth < begins ? year - 1 : year}`;
    }
    default:
      return "";
  }
}

export function isCalendar(rule: CreateCap): boolean {
  return rule.window === "DAY" || rule.window === "WEEK" || rule.window === "MONTH" || rule.window === "YEAR";
}

export function windowLabel(rule: CreateCap, period: string, now: number, dayIn: Placing = clamped): string {
  if (rule.window === "BILLING_PERIOD") return period;
  return isCalendar(rule) ? calendarLabel(rule, now, dayIn) : "";
}

/**
 * The first instant of a window and the first one after it; null where there is none. Searched for rather than computed,
 * so that days of 23 and 25 hours, midnights that do not exist and dates that never were need no special case.
 */
export function windowBounds(rule: CreateCap, label: string): { start: number | null; end: number | null } {
  if (rule.fixed !== null) return rule.fixed;
  if (!isCalendar(rule)) return { start: null, end: null };
  const from = Date.parse(`${`${label}-01-01`.slice(0, 10)}T00:00:00Z`) - 2 * day;
  // Some of it lies within this time, and the next one begins in it.
  const to = from + { DAY: 6, WEEK: 13, MONTH: 70, YEAR: 740 }[rule.window as "DAY"] * day;
  const first = (isReached: (at: string) => boolean): number => {
    let [before, reached] = [from / minute, to / minute];
    while (reached - before > 1) {
      const middle = Math.floor((before + reached) / 2);
      if (isReached(calendarLabel(rule, middle * minute, clamped))) reached = middle;
      else before = middle;
    }
    return reached * minute;
  };
  return { start: first((at) => at >= label), end: first((at) => at > label) };
}

/** When what a cap counts next changes: its window ends, or its fixed time begins or ends. */
export function nextEdge(rule: CreateCap, now: number): number | null {
  if (rule.fixed !== null) return [rule.fixed.start, rule.fixed.end].find((edge) => edge > now) ?? null;
  return isCalendar(rule) ? windowBounds(rule, windowLabel(rule, "", now)).end : null;
}

/** The same rule by the clocks of another zone. */
export function inZone(rule: CreateCap, zone: Calendar["zone"]): CreateCap {
  return { ...rule, calendar: { ...rule.calendar, zone } };
}

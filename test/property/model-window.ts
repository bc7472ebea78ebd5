import type { Window } from "./command.ts";

const formats = new Map<string, Intl.DateTimeFormat>();

/** The local date of an instant, "2026-11-30". The en-CA locale writes dates in that order. */
export function localDate(zone: string, now: number): string {
  let format = formats.get(zone);
  if (format === undefined) {
    format = new Intl.DateTimeFormat("en-CA", { timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit" });
    formats.set(zone, format);
  }
  return format.format(now);
}

export function windowLabel(window: Window, zone: string, period: string, now: number): string {
  if (window === "LIFETIME") return "";
  return window === "DAY" ? localDate(zone, now) : period;
}

/** The first instant after a local day, "2026-11-30". Some instant of every day lies within 15 h of its noon in UTC. */
export function dayEndOf(zone: string, label: string): number {
  const noon = Date.parse(`${label}T12:00:00Z`);
  const hour = 3_600_000;
  for (let hours = -15; hours <= 15; hours += 1) {
    if (localDate(zone, noon + hours * hour) === label) return dayEnd(zone, noon + hours * hour);
  }
  throw new Error(`${label} is no day in ${zone}`);
}

/**
 * The first instant after the local day that contains `now`. Searched for rather than computed, so that days of
 * 23 and 25 hours, midnights that do not exist and dates that never were need no special case. Every change of a
 * zone's offset since 1970 falls on a whole minute, so a minute is exact enough to search by.
 */
export function dayEnd(zone: string, now: number): number {
  const label = localDate(zone, now);
  const minute = 60_000;
  let inside = Math.floor(now / minute);
  let outside = inside + 60 * 50;
  while (outside - inside > 1) {
    const middle = Math.floor((inside + outside) / 2);
    if (localDate(zone, middle * minute) === label) inside = middle;
    else outside = middle;
  }
  return outside * minute;
}

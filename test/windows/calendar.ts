import { Temporal } from "temporal-polyfill";

/** When the windows of a cap begin. */
export interface Calendar {
  readonly zone: string;
  readonly window: "DAY" | "WEEK" | "MONTH" | "YEAR";
  readonly startHour: number;
  /** 1 is Monday. */
  readonly weekStart: number;
  readonly anchorDay: number;
  readonly anchorMonth: number;
}

/** One window. Times are milliseconds since 1970; the end is the first instant after it. */
export interface Window {
  readonly label: string;
  readonly start: number;
  readonly end: number;
}

/**
 * The window that contains an instant, by Temporal and by enumeration: of the windows that begin around the local date,
 * it is the last one that has begun. Shares nothing with the functions of the database.
 */
export function windowOf(calendar: Calendar, now: number): Window {
  const today = Temporal.Instant.fromEpochMilliseconds(now).toZonedDateTimeISO(calendar.zone).toPlainDate();
  let place = 1;
  let end = startOf(calendar, beginning(calendar, today, place));
  while (end <= now) {
    place += 1;
    end = startOf(calendar, beginning(calendar, today, place));
  }
  for (;;) {
    place -= 1;
    const begins = beginning(calendar, today, place);
    const start = startOf(calendar, begins);
    if (start <= now) return { label: labelOf(calendar, begins), start, end };
    end = start;
  }
}

/** The day on which the window of a day begins, without a look at the clocks, or one some windows later. */
function beginning(calendar: Calendar, today: Temporal.PlainDate, later: number): Temporal.PlainDate {
  const { window, weekStart, anchorDay, anchorMonth } = calendar;
  switch (window) {
    case "DAY":
      return today.add({ days: later });
    case "WEEK":
      return today.add({ days: 7 * later - ((today.dayOfWeek - weekStart + 7) % 7) });
    case "MONTH":
      return dayIn(today.toPlainYearMonth().add({ months: later }), anchorDay);
    case "YEAR":
      return dayIn(Temporal.PlainYearMonth.from({ year: today.year + later, month: anchorMonth }), anchorDay);
  }
}

function dayIn(month: Temporal.PlainYearMonth, day: number): Temporal.PlainDate {
  return month.toPlainDate({ day: Math.min(day, month.daysInMonth) });
}

function labelOf({ window }: Calendar, begins: Temporal.PlainDate): string {
  const digits = { DAY: 10, WEEK: 10, MONTH: 7, YEAR: 4 }[window];
  return begins.toString().slice(0, digits);
}

/** The first instant at which the clocks show the start hour of a day, or the first one after it where they skip it. */
function startOf({ zone, startHour }: Calendar, day: Temporal.PlainDate): number {
  const local = day.toPlainDateTime({ hour: startHour });
  const earlier = local.toZonedDateTime(zone, { disambiguation: "earlier" });
  if (earlier.toPlainDateTime().equals(local)) return earlier.epochMilliseconds;
  const change = earlier.getTimeZoneTransition("next");
  if (change === null) throw new Error(`${zone} skips ${local.toString()} without a change of its clocks`);
  return change.epochMilliseconds;
}

/** What the clocks of a zone show, in milliseconds as if it were UTC. */
export function clocksOf(zone: string, instant: number): number {
  return instant + Temporal.Instant.fromEpochMilliseconds(instant).toZonedDateTimeISO(zone).offsetNanoseconds / 1e6;
}

/** Every instant from `from` on and before `to` at which the clocks of a zone are changed. */
export function changesOf(zone: string, from: number, to: number): number[] {
  const changes: number[] = [];
  let at = Temporal.Instant.fromEpochMilliseconds(from).toZonedDateTimeISO(zone);
  for (;;) {
    const next = at.getTimeZoneTransition("next");
    if (next === null || next.epochMilliseconds >= to) return changes;
    changes.push(next.epochMilliseconds);
    at = next;
  }
}

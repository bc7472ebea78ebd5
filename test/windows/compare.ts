import type pg from "pg";
import { type Chance, createChance } from "../simulate/random.ts";
import { type Calendar, changesOf, clocksOf, type Window, windowOf } from "./calendar.ts";

export interface Comparison {
  readonly zones: number;
  /** Instants at which a zone changes its clocks. */
  readonly changes: number;
  readonly compared: number;
  /** Differ where Postgres and Node know other clocks. */
  readonly leftOut: number;
  /** Differ although both know the same clocks. */
  readonly wrong: readonly string[];
}

export interface CompareOptions {
  readonly seed: number;
  /** Windows beside those around changes of the clocks. */
  readonly samples: number;
  /** Every zone of Node that Postgres knows, unless given. */
  readonly zones?: readonly string[];
}

interface Asked {
  readonly calendar: Calendar;
  readonly now: number;
}

const day = 86_400_000;
const from = Date.UTC(1970, 0, 2);
const to = Date.UTC(2100, 11, 30);
const batch = 5000;
// From then on every zone repeats one rule, except Morocco, whose clocks follow the moon.
const rulesRepeat = Date.UTC(2040, 0, 1);
const lastYears = Date.UTC(2038, 0, 1);

/** Compares the windows of the database with those of Temporal around every change of the clocks, and at random. */
export async function compareWindows(pool: pg.Pool, options: CompareOptions): Promise<Comparison> {
  const chance = createChance(options.seed);
  const zones = options.zones ?? (await knownZones(pool));
  const counts = { changes: 0, compared: 0, leftOut: 0 };
  const wrong: string[] = [];
  const compare = async (asked: readonly Asked[]): Promise<void> => {
    counts.compared += asked.length;
    for (const difference of await differences(pool, asked)) {
      if (await knowOtherClocks(pool, difference)) counts.leftOut += 1;
      else wrong.push(describe(difference));
    }
  };
  let asked: Asked[] = [];
  const rules = new Set<string>();
  for (const zone of zones) {
    const changes = changesOf(zone, from, rulesRepeat);
    // What a rule repeats for sixty years is looked at once for all zones that have it.
    const rule = `${clocksOf(zone, rulesRepeat)} ${changes.filter((one) => one >= lastYears).join()}`;
    if (!rules.has(rule)) changes.push(...changesOf(zone, rulesRepeat, to));
    rules.add(rule);
    counts.changes += changes.length;
    for (const change of changes) asked.push(...around(chance, zone, change));
    if (asked.length >= batch) {
      await compare(asked);
      asked = [];
    }
  }
  for (let n = 0; n < options.samples; n += 1) {
    const zone = chance.pick(zones);
    asked.push({ calendar: anyCalendar(chance, zone), now: chance.between(from, to) });
    if (asked.length >= batch) {
      await compare(asked);
      asked = [];
    }
  }
  await compare(asked);
  return { zones: zones.length, ...counts, wrong };
}

/** Zones that both know. Links are other names of the same clocks. */
async function knownZones(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query<{ name: string }>("select name from pg_timezone_names");
  const known = new Set(rows.map(({ name }) => name));
  return Intl.supportedValuesOf("timeZone").filter((zone) => known.has(zone));
}

/** The edges of a change, and instants within two days of it; each with the plainest window or with any. */
function around(chance: Chance, zone: string, change: number): Asked[] {
  const plain: Calendar = { zone, window: "DAY", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 };
  const beginning = {
    calendar: beginningAt(chance, zone, change),
    now: change + chance.between(-1, 1) * chance.spread(1, day),
  };
  return [
    beginning,
    { calendar: plain, now: change - 1 },
    { calendar: plain, now: change },
    { calendar: anyCalendar(chance, zone), now: change + chance.between(-2 * day, 2 * day) },
  ];
}

function anyCalendar(chance: Chance, zone: string): Calendar {
  return {
    zone,
    window: chance.pick(["DAY", "WEEK", "MONTH", "YEAR"] as const),
    startHour: chance.between(0, 23),
    weekStart: chance.between(1, 7),
    anchorDay: chance.pick([1, 15, 28, 29, 30, 31, chance.between(1, 31)]),
    anchorMonth: chance.between(1, 12),
  };
}

/** A calendar one of whose windows begins in the hour of a change, by the clocks before it or after it. */
function beginningAt(chance: Chance, zone: string, change: number): Calendar {
  const shown = new Date(clocksOf(zone, change + chance.between(-1, 0)));
  return {
    zone,
    window: chance.pick(["DAY", "WEEK", "MONTH", "YEAR"] as const),
    startHour: shown.getUTCHours(),
    weekStart: shown.getUTCDay() || 7,
    anchorDay: shown.getUTCDate(),
    anchorMonth: shown.getUTCMonth() + 1,
  };
}

interface Difference extends Asked {
  readonly expected: Window;
  readonly actual: Window;
}

async function differences(pool: pg.Pool, asked: readonly Asked[]): Promise<Difference[]> {
  const actual = await windowsOf(pool, asked);
  return asked.flatMap((one, i) => {
    const expected = windowOf(one.calendar, one.now);
    const given = actual[i] ?? { label: "none", start: 0, end: 0 };
    const isSame = given.label === expected.label && given.start === expected.start && given.end === expected.end;
    return isSame ? [] : [{ ...one, expected, actual: given }];
  });
}

async function windowsOf(pool: pg.Pool, asked: readonly Asked[]): Promise<Window[]> {
  const { rows } = await pool.query<{ label: string; start: string; end: string }>(
    `select w.label, (extract(epoch from holdfast.window_start(a.c, w.label)) * 1000)::float8 as start,
       (extract(epoch from holdfast.window_end(a.c, w.label)) * 1000)::float8 as end
     from (
       select q.ord, q.now, jsonb_populate_record(null::holdfast.caps, jsonb_build_object(
         'time_zone', q.zone, 'cap_window', q.win, 'start_hour', q.hour, 'week_start', q.week, 'anchor_day', q.day,
         'anchor_month', q.month)) as c
       from unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::integer[], $7::bigint[])
         with ordinality as q (zone, win, hour, week, day, month, now, ord)
       offset 0
     ) a
     cross join lateral (
       select holdfast.window_label(a.c, '', timestamptz 'epoch' + a.now * interval '1 millisecond') as label
       offset 0
     ) w
     order by a.ord`,
    [
      asked.map(({ calendar }) => calendar.zone),
      asked.map(({ calendar }) => calendar.window),
      asked.map(({ calendar }) => calendar.startHour),
      asked.map(({ calendar }) => calendar.weekStart),
      asked.map(({ calendar }) => calendar.anchorDay),
      asked.map(({ calendar }) => calendar.anchorMonth),
      asked.map(({ now }) => now),
    ],
  );
  return rows.map(({ label, start, end }) => ({ label, start: Number(start), end: Number(end) }));
}

/** Whether the clocks that the two know differ within two days of what decides a window. */
async function knowOtherClocks(pool: pg.Pool, { calendar, now, expected, actual }: Difference): Promise<boolean> {
  const { zone } = calendar;
  const hours = [now, expected.start, expected.end, actual.start, actual.end].flatMap((instant) =>
    Array.from({ length: 97 }, (_, n) => instant + (n - 48) * 3_600_000),
  );
  const { rows } = await pool.query<{ shown: string }>(
    `select (extract(epoch from (timestamptz 'epoch' + t.at * interval '1 millisecond') at time zone $1::text) * 1000)::float8
       as shown
     from unnest($2::bigint[]) with ordinality as t (at, ord) order by t.ord`,
    [zone, hours],
  );
  return rows.some(({ shown }, i) => Number(shown) !== clocksOf(zone, hours[i] ?? 0));
}

function describe({ calendar, now, expected, actual }: Difference): string {
  const shown = ({ label, start, end }: Window): string =>
    `${label} from ${new Date(start).toISOString()} to ${new Date(end).toISOString()}`;
  return `${JSON.stringify(calendar)} at ${new Date(now).toISOString()}: ${shown(actual)}, not ${shown(expected)}`;
}

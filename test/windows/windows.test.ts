import { afterAll, beforeAll, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { type Calendar, windowOf } from "./calendar.ts";
import { compareWindows } from "./compare.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

test("windows are those of Temporal, around every change of the clocks and at random, from 1970 to 2100", async () => {
  const found = await compareWindows(database.pool, { seed: 1, samples: 20_000 });
  expect(found.wrong).toEqual([]);
  // Zone data of Postgres and Node of different years; more would be an error that looks like that.
  expect(found.leftOut).toBeLessThan(found.compared / 200);
  expect(found.changes).toBeGreaterThan(10_000);
});

// The oracle itself, on days that were looked up in the zones' published histories.
const hour = 3_600_000;
test.each([
  ["America/New_York", "2026-03-08T12:00:00Z", 23],
  ["America/New_York", "2026-11-01T12:00:00Z", 25],
  ["Australia/Lord_Howe", "2026-10-04T01:00:00Z", 23.5],
  ["Australia/Lord_Howe", "2026-04-05T01:00:00Z", 24.5],
  ["America/Sao_Paulo", "2018-11-04T12:00:00Z", 23],
  ["Africa/Cairo", "2023-04-28T12:00:00Z", 23],
  ["Pacific/Apia", "2011-12-29T20:00:00Z", 24],
  ["Pacific/Apia", "2011-12-30T20:00:00Z", 24],
  ["Asia/Kolkata", "2024-02-29T12:00:00Z", 24],
])("by Temporal the day of %s at %s has %s hours", (zone, instant, hours) => {
  const calendar: Calendar = { zone, window: "DAY", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 };
  const found = windowOf(calendar, Date.parse(instant));
  expect((found.end - found.start) / hour).toBe(hours);
});

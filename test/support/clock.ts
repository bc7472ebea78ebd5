import type pg from "pg";

/** The clock of a test database. Every session sees a change as soon as it was made. */
export interface TestClock {
  /** Stops the clock at an instant, for example "2026-11-01T05:30:00Z". */
  set(instant: string): Promise<void>;
  /** Moves a stopped clock, or one that runs, by that many milliseconds. */
  advance(ms: number): Promise<void>;
  /** Back to the real time. */
  reset(): Promise<void>;
}

/** Replaces `holdfast.clock()`. A server on this database must be started with an altered clock allowed. */
export async function replaceClock(pool: pg.Pool): Promise<TestClock> {
  await pool.query("create table public.test_clock (stopped timestamptz, moved interval not null)");
  await pool.query("insert into public.test_clock values (null, interval '0')");
  await pool.query(
    `create or replace function holdfast.clock() returns timestamptz language sql volatile parallel safe
     as $$ select coalesce(c.stopped, clock_timestamp()) + c.moved from public.test_clock c $$`,
  );
  return {
    set: async (instant) => {
      await pool.query("update public.test_clock set stopped = $1::timestamptz, moved = interval '0'", [instant]);
    },
    advance: async (ms) => {
      await pool.query("update public.test_clock set moved = moved + $1::bigint * interval '1 millisecond'", [ms]);
    },
    reset: async () => {
      await pool.query("update public.test_clock set stopped = null, moved = interval '0'");
    },
  };
}

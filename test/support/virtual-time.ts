import type { Clock, Timers } from "../../sdk/runtime.ts";

/**
 * Time that only a test moves, as clock and timers of the SDK: however long the machine stalls, nothing is late. What is
 * real, such as HTTP to the simulator, is waited for as long as it takes.
 */
export interface VirtualTime extends Clock, Timers {
  /** Runs what is due within that many milliseconds, in order, and lets what it starts settle in between. */
  advance(ms: number): Promise<void>;
  /**
   * The time is over and no timer has fired yet: what a process sees that was stopped and goes on. A second clock stays
   * behind, as the other side has answered before.
   */
  jump(ms: number): void;
  /** Holds a flowing time back until the work ends, or until its own `limitMs` of this time are over. */
  during<Value>(work: Promise<Value>, limitMs?: number): Promise<Value>;
  /** From now on goes to the next timer whenever nothing else is left to do: a backoff costs nothing. */
  flow(): void;
  /** Ends the flow; timers that wait never fire. */
  stop(): void;
}

interface Timer {
  readonly due: number;
  readonly callback: () => void;
}

// Several turns, as one promise may lead to the next and an answer in memory takes a few of them.
const QUIET_TURNS = 20;

/** `moved` learns of every step but a jump, for a second clock that keeps up. */
export function createVirtualTime(moved: (ms: number) => void = () => undefined): VirtualTime {
  const timers = new Set<Timer>();
  const works = new Set<{ readonly until: number }>();
  let now = 1_000_000;
  let changes = 0;
  let flows = false;
  let flowing = false;
  let advancing = 0;

  function moveTo(instant: number): void {
    if (instant <= now) return;
    const ms = instant - now;
    now = instant;
    moved(ms);
  }

  function next(): Timer | undefined {
    let first: Timer | undefined;
    for (const timer of timers) if (first === undefined || timer.due < first.due) first = timer;
    return first;
  }

  function fire(timer: Timer): void {
    timers.delete(timer);
    moveTo(timer.due);
    timer.callback();
  }

  async function quiet(): Promise<void> {
    for (let turns = 0, seen = changes; turns < QUIET_TURNS; turns += 1) {
      await new Promise((resolve) => setImmediate(resolve));
      if (seen !== changes) turns = 0;
      seen = changes;
    }
  }

  async function goOn(): Promise<void> {
    if (!flows || flowing || advancing > 0) return;
    flowing = true;
    try {
      for (;;) {
        await quiet();
        const timer = next();
        const busy = [...works].some(({ until }) => until > now);
        if (!flows || advancing > 0 || timer === undefined || (busy && timer.due > now)) return;
        fire(timer);
      }
    } finally {
      flowing = false;
    }
  }

  function changed(): void {
    changes += 1;
    void goOn();
  }

  return {
    now: () => now,
    setTimeout(callback, delayMs) {
      // Whole milliseconds, as Date gives them: a second clock makes timestamps of them.
      const timer: Timer = { due: now + Math.max(0, Math.ceil(delayMs)), callback };
      timers.add(timer);
      changed();
      return timer;
    },
    clearTimeout(handle) {
      timers.delete(handle as Timer);
    },
    async advance(ms) {
      const end = now + ms;
      advancing += 1;
      try {
        await quiet();
        for (let timer = next(); timer !== undefined && timer.due <= end; timer = next()) {
          fire(timer);
          await quiet();
        }
        moveTo(end);
        await quiet();
      } finally {
        advancing -= 1;
      }
      changed();
    },
    jump(ms) {
      now += ms;
      changed();
    },
    async during(promise, limitMs = Number.POSITIVE_INFINITY) {
      const work = { until: now + limitMs };
      works.add(work);
      try {
        return await promise;
      } finally {
        works.delete(work);
        changed();
      }
    },
    flow() {
      flows = true;
      changed();
    },
    stop() {
      flows = false;
      timers.clear();
    },
  };
}

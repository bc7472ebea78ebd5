import { deadlineFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";

/** Lets a bounded number of calls run at the same time; the others wait for their turn in order. */
export interface Slots {
  /**
   * Runs `call` when a slot is free. Rejects at the deadline, a reading of the clock, whether it waits for a slot or
   * for the call; the slot of a call that goes on nevertheless is free again at once.
   */
  run<Answer>(deadline: number, call: () => Promise<Answer>): Promise<Answer>;
}

export function createSlots(runtime: Runtime, count: number): Slots {
  const waiting = new Set<() => void>();
  let free = count;

  function release(): void {
    const next = waiting.values().next();
    if (next.done === true) {
      free += 1;
      return;
    }
    waiting.delete(next.value);
    next.value();
  }

  return {
    run<Answer>(deadline: number, call: () => Promise<Answer>): Promise<Answer> {
      return new Promise((resolve, reject) => {
        let over = false;
        let started = false;
        const end = (settle: () => void): void => {
          if (over) return;
          over = true;
          runtime.timers.clearTimeout(timer);
          waiting.delete(start);
          if (started) release();
          settle();
        };
        const start = (): void => {
          started = true;
          call().then(
            (answer) => end(() => resolve(answer)),
            (error: Error) => end(() => reject(error)),
          );
        };
        const timer = runtime.timers.setTimeout(
          () => end(() => reject(deadlineFailure())),
          deadline - runtime.clock.now(),
        );
        if (free > 0) {
          free -= 1;
          start();
        } else waiting.add(start);
      });
    },
  };
}

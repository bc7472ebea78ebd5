export interface SemaphoreOptions {
  /** How many works run at once. */
  readonly running: number;
  /** How many more may wait for their turn. */
  readonly waiting: number;
  /** What one more than that is refused with. */
  readonly refusal: () => unknown;
}

/** Runs a work when its turn has come, in the order of the calls. */
export type Semaphore = <Result>(work: () => Promise<Result>) => Promise<Result>;

/**
 * Bounds work that anybody can ask for and that takes a connection of the pool, so that it cannot take all of them.
 * What is too much is refused at once instead of waiting without end.
 */
export function createSemaphore({ running, waiting, refusal }: SemaphoreOptions): Semaphore {
  let free = running;
  const queue: (() => void)[] = [];
  return async (work) => {
    if (free > 0) free -= 1;
    else if (queue.length >= waiting) throw refusal();
    else await new Promise<void>((resolve) => queue.push(resolve));
    try {
      return await work();
    } finally {
      // The turn passes on to whoever waits longest; it is free only when nobody does.
      const next = queue.shift();
      if (next === undefined) free += 1;
      else next();
    }
  };
}

import { HoldfastUnavailableError } from "./errors.ts";
import { isRetryable, toRpcFailure } from "./rpc-failure.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";

/** Settlements that could not be delivered at once and are repeated until they are. */
export interface Background {
  /** Repeats `task` until it succeeds, is refused for good, or the client is closed. */
  add(what: string, task: () => Promise<unknown>): void;
  /** Tries everything that is left once more at once, and resolves when it is done or the time is over. */
  close(timeoutMs: number): Promise<void>;
}

const TRIES_MAX = 25;
const TASKS_MAX = 10_000;
const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;

/** `onError` learns of every settlement that is given up; the reconciler then finds it. */
export function createBackground(runtime: Runtime, onError: (error: unknown) => void): Background {
  const running = new Set<Promise<void>>();
  const closing = new AbortController();

  async function repeat(what: string, task: () => Promise<unknown>): Promise<void> {
    for (let tries = 0; tries < TRIES_MAX; tries += 1) {
      const last = closing.signal.aborted;
      if (!last)
        await sleep(runtime, halfJitter(runtime.random, tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS), closing.signal);
      try {
        await task();
        return;
      } catch (error) {
        if (last || !isRetryable(toRpcFailure(error))) {
          onError(error);
          return;
        }
      }
    }
    onError(new HoldfastUnavailableError(`${what}; it is left to the reconciler`, {}));
  }

  return {
    add(what, task) {
      if (running.size >= TASKS_MAX) {
        onError(new HoldfastUnavailableError(`${what}, and too much waits already; it is left to the reconciler`, {}));
        return;
      }
      const promise: Promise<void> = repeat(what, task).finally(() => running.delete(promise));
      running.add(promise);
    },
    async close(timeoutMs) {
      closing.abort();
      const over = new AbortController();
      await Promise.race([Promise.all(running), sleep(runtime, timeoutMs, over.signal)]);
      over.abort();
      if (running.size > 0) onError(new HoldfastUnavailableError(`${running.size} settlements before close`, {}));
    },
  };
}

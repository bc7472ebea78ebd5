import { setMaxListeners } from "node:events";
import { HoldfastUnavailableError } from "./errors.ts";
import { isRetryable, toRpcFailure } from "./rpc-failure.ts";
import { halfJitter, type Runtime, sleep, sleepInBackground } from "./runtime.ts";

/**
 * What goes on after its call has ended: settlements that could not be delivered at once and are repeated until they
 * are, and calls that their caller has given up. It never keeps the process alive by waiting.
 */
export interface Background {
  /**
   * Repeats `task` until it succeeds or is refused for good, however long that takes; `last` says that it is not tried
   * again. `onError` learns of it when it is refused, when it has failed for long, and when it is left by `close`;
   * not at all of a `quiet` one.
   */
  add(what: string, task: (last: boolean) => Promise<unknown>, options?: { readonly quiet?: boolean }): void;
  /** Waits for this too in `flush` and `close`. Must not reject. */
  track(work: Promise<unknown>): void;
  /** How many tasks wait. */
  size(): number;
  /** Tries everything that waits once at once. Resolves to true if nothing of it is left when the time is over. */
  flush(timeoutMs: number): Promise<boolean>;
  /** Tries everything that is left once more at once, and resolves when it is done or the time is over. */
  close(timeoutMs: number): Promise<void>;
}

interface Task {
  readonly quiet: boolean;
  /** Called at the end of every try. */
  readonly tried: Set<() => void>;
}

const BACKOFF_BASE_MS = 500;
const BACKOFF_CAP_MS = 30_000;
// About five minutes: an operator should look.
const TRIES_UNTIL_REPORT = 15;

export function createBackground(runtime: Runtime, onError: (error: unknown) => void): Background {
  const tasks = new Set<Task>();
  const tracked = new Set<Promise<unknown>>();
  let closing = false;
  let wake = newWake();

  async function repeat(
    task: Task,
    what: string,
    attempt: (last: boolean) => Promise<unknown>,
    report: (error: unknown) => void,
  ): Promise<void> {
    let askedMs = 0;
    for (let tries = 0; ; tries += 1) {
      const backoffMs = halfJitter(runtime.random, tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS);
      if (!closing) await sleepInBackground(runtime, Math.max(backoffMs, askedMs), wake.signal);
      const last = closing;
      try {
        await attempt(last);
        return;
      } catch (error) {
        const failure = toRpcFailure(error);
        if (last || !isRetryable(failure)) {
          report(error);
          return;
        }
        askedMs = failure.retryDelayMs ?? 0;
        if (tries + 1 === TRIES_UNTIL_REPORT)
          report(new HoldfastUnavailableError(`${what} for long; it is tried on`, {}));
      } finally {
        for (const tried of task.tried) tried();
        task.tried.clear();
      }
    }
  }

  function wakeAll(): void {
    const waking = wake;
    wake = newWake();
    waking.abort();
  }

  async function untilOver(work: Promise<unknown>, timeoutMs: number): Promise<void> {
    const done = new AbortController();
    await Promise.race([work, sleep(runtime, timeoutMs, done.signal)]);
    done.abort();
  }

  return {
    add(what, attempt, { quiet = false } = {}) {
      const task: Task = { quiet, tried: new Set() };
      tasks.add(task);
      const report = quiet ? () => undefined : onError;
      void repeat(task, what, attempt, report).finally(() => tasks.delete(task));
    },
    track(work) {
      tracked.add(work);
      void work.finally(() => tracked.delete(work));
    },
    size: () => tasks.size,
    async flush(timeoutMs) {
      await untilOver(Promise.all(tracked), timeoutMs);
      const waiting = [...tasks];
      const tried = waiting.map((task) => new Promise<void>((resolve) => task.tried.add(resolve)));
      wakeAll();
      await untilOver(Promise.all(tried), timeoutMs);
      // A task that is done leaves one turn after its last try.
      await Promise.resolve();
      return tracked.size === 0 && !waiting.some((task) => tasks.has(task));
    },
    async close(timeoutMs) {
      closing = true;
      wakeAll();
      const ended = async (): Promise<void> => {
        while (tasks.size > 0 || tracked.size > 0) {
          const tried = [...tasks].map((task) => new Promise<void>((resolve) => task.tried.add(resolve)));
          await Promise.all([...tracked, ...tried]);
          await Promise.resolve();
        }
      };
      await untilOver(ended(), timeoutMs);
      const left = [...tasks].filter((task) => !task.quiet).length + tracked.size;
      if (left > 0)
        onError(new HoldfastUnavailableError(`${left} settlements before close; the reconciler finds them`, {}));
    },
  };
}

/** Many tasks listen to one signal, which is no leak. */
function newWake(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  return controller;
}

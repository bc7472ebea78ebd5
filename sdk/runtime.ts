import { randomBytes } from "node:crypto";
import { uptime } from "node:os";

/** Milliseconds that only grow, also across a suspended machine or process. The zero is arbitrary. */
export interface Clock {
  now(): number;
}

/** The timers the SDK uses, so that a test can move time. */
export interface Timers {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
  /** Lets the process end although the timer has not fired. Called for what waits in the background. */
  unref?(handle: unknown): void;
}

/** Randomness the SDK uses. */
export interface Random {
  /** At least 0, below 1: jitter. */
  next(): number;
  /** 128 unpredictable bits as 32 lower-case hex digits: attempts and holders. */
  hex128(): string;
}

export interface Runtime {
  readonly clock: Clock;
  readonly timers: Timers;
  readonly random: Random;
}

/**
 * The greater of the monotonic clock and the time since boot: Node's monotonic clock stands still while a machine is
 * suspended, the time since boot does not, and a suspended caller must find its hold expired.
 */
export function systemClock(): Clock {
  const monotonicStart = performance.now();
  const bootStart = uptime();
  return {
    now: () => Math.max(performance.now() - monotonicStart, (uptime() - bootStart) * 1000),
  };
}

export const systemTimers: Timers = {
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
  unref: (handle) => (handle as NodeJS.Timeout).unref(),
};

export const systemRandom: Random = {
  next: () => Math.random(),
  hex128: () => randomBytes(16).toString("hex"),
};

/** Resolves after the delay, or at once when the signal is aborted. Never rejects. */
export function sleep(runtime: Runtime, delayMs: number, signal?: AbortSignal): Promise<void> {
  return wait(runtime, delayMs, signal, () => undefined);
}

/** Like `sleep`, but does not keep the process alive: for work that nobody waits for. */
export function sleepInBackground(runtime: Runtime, delayMs: number, signal: AbortSignal): Promise<void> {
  return wait(runtime, delayMs, signal, (handle) => runtime.timers.unref?.(handle));
}

function wait(
  runtime: Runtime,
  delayMs: number,
  signal: AbortSignal | undefined,
  started: (handle: unknown) => void,
): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) {
      resolve();
      return;
    }
    const done = (): void => {
      runtime.timers.clearTimeout(handle);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const handle = runtime.timers.setTimeout(done, Math.max(0, delayMs));
    started(handle);
    signal?.addEventListener("abort", done, { once: true });
  });
}

/** Full-jitter backoff: a random part of `baseMs` · 2ⁿ, capped. */
export function fullJitter(random: Random, attempt: number, baseMs: number, capMs: number): number {
  return random.next() * Math.min(capMs, baseMs * 2 ** attempt);
}

/** Backoff between half and all of `baseMs` · 2ⁿ, capped: for waiting on somebody else's work. */
export function halfJitter(random: Random, attempt: number, baseMs: number, capMs: number): number {
  return (0.5 + random.next() / 2) * Math.min(capMs, baseMs * 2 ** attempt);
}

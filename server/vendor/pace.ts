import { type Runtime, sleep } from "@holdfast/sdk/stripe-vendor";

/** Resolves when the next read may be sent, or at once when the signal is aborted. */
export type Pace = (signal: AbortSignal) => Promise<void>;

/** Spreads reads evenly: never two closer than a second's share. */
export function createPace(runtime: Runtime, readsPerSecond: number): Pace {
  const gapMs = 1000 / readsPerSecond;
  let next = Number.NEGATIVE_INFINITY;
  return async (signal) => {
    const now = runtime.clock.now();
    const at = Math.max(now, next);
    next = at + gapMs;
    if (at > now) await sleep(runtime, at - now, signal);
  };
}

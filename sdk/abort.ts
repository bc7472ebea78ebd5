/** One signal that is aborted as soon as one of the given is; undefined if there is none. */
export function anySignal(...signals: readonly (AbortSignal | undefined)[]): AbortSignal | undefined {
  const given = signals.filter((signal) => signal !== undefined);
  return given.length < 2 ? given[0] : AbortSignal.any(given);
}

/**
 * A signal that follows another one, for one listener: a signal that many calls share warns of its many listeners, and
 * each of them makes the next one slower.
 */
export function followerOf(signal: AbortSignal): AbortSignal {
  return AbortSignal.any([signal]);
}

/** `work`, or a rejection with what `aborted` returns as soon as the signal is aborted. The work goes on. */
export function untilAborted<Value>(signal: AbortSignal, work: Promise<Value>, aborted: () => Error): Promise<Value> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(aborted());
    void work.then(resolve, reject).finally(() => signal.removeEventListener("abort", onAbort));
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}

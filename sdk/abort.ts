/** One signal that is aborted as soon as one of the given is; undefined if there is none. */
export function anySignal(...signals: readonly (AbortSignal | undefined)[]): AbortSignal | undefined {
  const given = signals.filter((signal) => signal !== undefined);
  return given.length < 2 ? given[0] : AbortSignal.any(given);
}

/** `work`, or a rejection with what `aborted` returns as soon as the signal is aborted. The work goes on. */
export function untilAborted<Value>(signal: AbortSignal, work: Promise<Value>, aborted: () => Error): Promise<Value> {
  return new Promise((resolve, reject) => {
    // A signal that many calls share would warn of its many listeners; one derived from it has only this one.
    const derived = AbortSignal.any([signal]);
    const onAbort = (): void => reject(aborted());
    void work.then(resolve, reject).finally(() => derived.removeEventListener("abort", onAbort));
    if (derived.aborted) onAbort();
    else derived.addEventListener("abort", onAbort, { once: true });
  });
}

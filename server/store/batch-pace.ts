/** How fast the batches of one lane go, to tell whoever would come too late before it waits. */
export interface BatchPace {
  /** The lane waited that long for a batch, in milliseconds. */
  took(ms: number): void;
  /** How long one more takes that comes behind `waiting` others and a batch under way, in milliseconds. */
  waitMs(waiting: number): number;
}

/** More than half of these have to be slow before anybody is refused for it: one that met a lock says nothing. */
const lastMax = 5;
/** Batches differ. With no reserve a whole queue would be a little late whenever one of them is slow. */
const reserve = 1.5;

/** Reckons with the median of the last few batches, each of at most `batchMax` commands. */
export function createBatchPace(batchMax: number): BatchPace {
  const last: number[] = [];
  return {
    took(ms) {
      last.push(ms);
      if (last.length > lastMax) last.shift();
    },
    waitMs(waiting) {
      if (last.length < lastMax) return 0;
      const batches = 1 + Math.ceil((waiting + 1) / batchMax);
      return reserve * batches * (last.toSorted((a, b) => a - b)[lastMax >> 1] ?? 0);
    },
  };
}

/** The value below which the given share (0 to 1) of the samples lies, by nearest rank. @throws RangeError without any. */
export function percentile(samples: readonly number[], share: number): number {
  const sorted = samples.toSorted((a, b) => a - b);
  const value = sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
  if (value === undefined) throw new RangeError("there are no samples");
  return value;
}

export function median(samples: readonly number[]): number {
  return percentile(samples, 0.5);
}

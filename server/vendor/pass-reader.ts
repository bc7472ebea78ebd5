import { createStripeReader, type StripeReader, type StripeReaderOptions } from "@holdfast/sdk/stripe-vendor";

/**
 * Reads the vendor for a pass. What cannot be read because of itself is told from a vendor that is away: whenever
 * something gets no answer, it asks for what every account has. While the vendor gives that, `spent` and `silent` stay
 * false, and the rest is read.
 */
export function createPassReader(options: StripeReaderOptions): StripeReader {
  const { get, signal, maxReads } = options;
  let inner = createStripeReader(options);
  let earlier = 0;
  let away = false;

  async function answers(): Promise<boolean> {
    earlier += 1;
    const read = await get("/v1/account", "");
    return read.kind === "answer" && read.status < 500 && read.status !== 401 && read.status !== 429;
  }

  async function told<Found extends { readonly kind: string; readonly status?: number }>(
    reading: Promise<Found>,
  ): Promise<Found> {
    const found = await reading;
    if (found.kind !== "unreadable" || found.status !== undefined || signal?.aborted === true) return found;
    if (reads() >= maxReads) return found;
    if (await answers()) {
      earlier += inner.reads();
      inner = createStripeReader({ ...options, maxReads: maxReads - earlier });
    } else {
      away = true;
    }
    return found;
  }

  const reads = (): number => earlier + inner.reads();
  return {
    reads,
    spent: () => away || inner.spent(),
    silent: () => away || inner.silent(),
    object: (path, account) => told(inner.object(path, account)),
    page: (path, query, account, after) => told(inner.page(path, query, account, after)),
    list: (path, query, account) => told(inner.list(path, query, account)),
  };
}

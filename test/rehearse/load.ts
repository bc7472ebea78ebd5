import type { Transport } from "@connectrpc/connect";
import { createHoldfast } from "@holdfast/sdk";

export interface LoadOptions {
  readonly vaultKey: string;
  /** An address, or a transport of the SDK's own making. */
  readonly to: { readonly baseUrl: string } | { readonly transport: Transport };
  readonly callers: number;
  readonly name: string;
}

/** Callers of the SDK that spend one dollar after the other until they are told to stop. */
export interface Load {
  readonly spent: () => number;
  /** Every call that its caller saw fail, so far. */
  readonly failures: readonly unknown[];
  /** Resolves when that many more were spent, or one has failed. */
  more(count: number): Promise<void>;
  stop(): Promise<void>;
}

export function startLoad({ vaultKey, to, callers, name }: LoadOptions): Load {
  // Long enough that a slow machine is no failure.
  const holdfast = createHoldfast({ ...to, vaultKey, timeoutMs: 300_000 });
  const failures: unknown[] = [];
  const waiting = new Set<() => void>();
  let spent = 0;
  let over = false;
  const caller = async (who: number): Promise<void> => {
    for (let n = 0; !over; n += 1) {
      const spend = { customerId: `${name}-${who}-${n}`, billingPeriod: "2026-11", purpose: "rehearsal" };
      const what = { amount: "1", currency: "usd", vendor: "stripe", endpoint: "POST /v1/charges" };
      try {
        await holdfast.spend(spend, what, (grant) =>
          Promise.resolve({ vendorReference: `ch_${grant.idempotencyKey}` }),
        );
        spent += 1;
      } catch (error) {
        failures.push(error);
        // A failure is the end of the rehearsal, not a loop.
        over = true;
      }
      for (const look of waiting) look();
    }
  };
  const all = Promise.all(Array.from({ length: callers }, (_, who) => caller(who)));
  return {
    spent: () => spent,
    failures,
    more(count) {
      const goal = spent + count;
      return new Promise((resolve) => {
        const look = (): void => {
          if (spent < goal && failures.length === 0) return;
          waiting.delete(look);
          resolve();
        };
        waiting.add(look);
        look();
      });
    },
    async stop() {
      over = true;
      await all;
      await holdfast.close();
    },
  };
}

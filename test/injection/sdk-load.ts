import { createHoldfast } from "@holdfast/sdk";
import { expect } from "vitest";
import { endpoint } from "./spend-call.ts";

/** Callers of the SDK that spend one dollar after the other until they are told to stop. */
export interface SdkLoad {
  /** Spends that were answered so far. */
  readonly spent: () => number;
  /** Resolves when that many more have been answered. */
  more(count: number): Promise<void>;
  /** Ends the load; every call that a caller saw fail. */
  stop(): Promise<unknown[]>;
}

export function startSdkLoad(options: {
  readonly baseUrl: string;
  readonly vaultKey: string;
  readonly callers: number;
  readonly name: string;
}): SdkLoad {
  const { baseUrl, vaultKey, callers, name } = options;
  // Long enough that a slow machine is no failure.
  const holdfast = createHoldfast({ baseUrl, vaultKey, timeoutMs: 120_000, holdMs: 600_000 });
  const failures: unknown[] = [];
  let spent = 0;
  let over = false;
  const caller = async (who: number): Promise<void> => {
    for (let n = 0; !over; n += 1) {
      const spend = { customerId: `${name}-${who}-${n}`, billingPeriod: "2026-11", purpose: "load" };
      const what = { amount: "1", currency: "usd", vendor: "stripe", endpoint };
      try {
        const { alreadyCommitted } = await holdfast.spend(spend, what, async (grant) => ({
          vendorReference: `ch_${grant.idempotencyKey}`,
        }));
        if (alreadyCommitted) failures.push(`${spend.customerId} was spent before`);
        spent += 1;
      } catch (error) {
        failures.push(error);
      }
    }
  };
  const all = Promise.all(Array.from({ length: callers }, (_, who) => caller(who)));
  return {
    spent: () => spent,
    async more(count) {
      const goal = spent + count;
      await expect.poll(() => spent >= goal || failures.length > 0, { timeout: 120_000 }).toBe(true);
    },
    async stop() {
      over = true;
      await all;
      await holdfast.close();
      return failures;
    },
  };
}

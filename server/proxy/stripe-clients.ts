import { createHash } from "node:crypto";
import type { Transport } from "@connectrpc/connect";
import { HoldfastClosedError, HoldfastOverloadedError } from "@holdfast/sdk";
import { type Assembly, assemble, type AssemblyOptions } from "@holdfast/sdk/stripe-vendor";

export interface StripeClientsOptions extends Omit<AssemblyOptions, "vaultKey"> {
  readonly transport: Transport;
  /** How many vault keys may be in use at once. */
  readonly clientsMax: number;
  /** How long one is kept that nobody uses, in milliseconds. */
  readonly clientIdleMs: number;
}

/** One client of the control plane for each vault key that comes by: their calls are batched, their settlements kept. */
export interface StripeClients {
  /** @throws HoldfastOverloadedError where too many keys are in use, HoldfastClosedError after `close`. */
  use<Result>(token: string, work: (client: Assembly) => Promise<Result>): Promise<Result>;
  /** Lets what runs end and delivers what waits, for at most that long. Never rejects. */
  close(graceMs: number): Promise<void>;
}

interface Entry {
  readonly client: Assembly;
  uses: number;
  /** A reading of the clock. */
  usedAt: number;
}

export function createStripeClients(options: StripeClientsOptions): StripeClients {
  const { clientsMax, clientIdleMs, runtime } = options;
  // By the hash of the token; the one that was used last comes last.
  const entries = new Map<string, Entry>();
  let closed = false;

  /** Only what has nothing left to deliver; closing it then takes no time. */
  function dropIdle(isOver: (entry: Entry) => boolean): void {
    for (const [key, entry] of entries) {
      if (!isOver(entry)) return;
      if (entry.uses > 0 || entry.client.background.size() > 0) continue;
      entries.delete(key);
      void entry.client.close(1);
    }
  }

  function entryOf(token: string): Entry {
    const key = createHash("sha256").update(token).digest("base64");
    const now = runtime.clock.now();
    dropIdle(({ usedAt }) => now - usedAt > clientIdleMs);
    let entry = entries.get(key);
    if (entry === undefined) {
      dropIdle(() => entries.size >= clientsMax);
      if (entries.size >= clientsMax) {
        throw new HoldfastOverloadedError(`${entries.size} vault keys are in use at once`, {});
      }
      entry = { client: assemble({ ...options, vaultKey: token }), uses: 0, usedAt: now };
    }
    entries.delete(key);
    entries.set(key, entry);
    return entry;
  }

  return {
    async use(token, work) {
      if (closed) throw new HoldfastClosedError();
      const entry = entryOf(token);
      entry.uses += 1;
      try {
        return await work(entry.client);
      } finally {
        entry.uses -= 1;
        entry.usedAt = runtime.clock.now();
      }
    },
    async close(graceMs) {
      closed = true;
      await Promise.all([...entries.values()].map(({ client }) => client.close(graceMs)));
    },
  };
}

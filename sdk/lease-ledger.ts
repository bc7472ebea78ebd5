import { authorizationName, type SpendIdentity } from "./stable-key.ts";

/** What became of the spends that were asked for under one billing lease. */
export interface LeaseLedger {
  asked(this: void, spend: SpendIdentity): void;
  settled(this: void, authorization: string): void;
  /** The spends that are neither committed nor refused by the vendor, in the order in which they were asked for. */
  unsettled(): readonly SpendIdentity[];
}

/**
 * Counts by spend and not by call: a spend that was denied first and charged by a later call is settled. A spend that
 * nobody could identify stays unsettled.
 */
export function createLeaseLedger(): LeaseLedger {
  const open = new Map<string, SpendIdentity>();
  return {
    asked(spend) {
      open.set(keyOf(spend), spend);
    },
    settled(authorization) {
      open.delete(authorization.replace(/-\d+$/, ""));
    },
    unsettled: () => [...open.values()],
  };
}

function keyOf(spend: SpendIdentity): string {
  try {
    return authorizationName(spend, 1).replace(/-1$/, "");
  } catch {
    return "";
  }
}

import type { Cap } from "../domain/cap.ts";

/**
 * What a cap does that is seldom meant. A cap of money that counts everything denies every spend in another currency:
 * right where a company has one, and a halt where a second one is added and nobody remembers the cap.
 */
export function capWarnings(cap: Cap): string[] {
  const { limit, scope, attachedOnly, enforcement, direction, archiveTime } = cap;
  const countsEverything = !attachedOnly && Object.values(scope).every((one) => one === undefined);
  if (limit.currency === undefined || !countsEverything || enforcement === "SHADOW" || archiveTime !== undefined) {
    return [];
  }
  const what = direction === "REFUND" ? "refund" : "spend";
  return [
    `caps/${cap.capId} counts ${limit.currency} and has no scope, so it denies every ${what} of the workspace in another currency. ` +
      "If there are others, give it a scope (a vault key, a vendor, a purpose) or attached_only, and make one for each currency.",
  ];
}

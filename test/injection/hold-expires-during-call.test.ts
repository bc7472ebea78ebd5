import { stableKey, SpendDeniedError } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, HOUR_MS, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

test.each<[BillingKind, string, number]>([
  ["one_call", "", HOUR_MS],
  ["two_step", "-confirm-1", HOUR_MS],
  ["one_call", "", 72 * HOUR_MS],
  ["two_step", "-confirm-1", 72 * HOUR_MS],
])(
  "a hold that runs out while the vendor is at it (%s%s, %d ms) stays counted, and its late commit is taken",
  async (kind, suffix, lateMs) => {
    const customerId = `${kind}-${lateMs}`;
    const before = await till.usage();
    // Room for this one spend only.
    await setLimit(before.committed + amount);
    const key = `${stableKey(customerId, billingPeriod, purpose)}${suffix}`;
    const slow = till.simulator.fault({ mode: "hold_after_execute", match: { key } });
    const call = till.clerk().charge(customerId, kind);
    await slow.arrivals();
    await till.advance(lateMs);
    // Decided by the clock when it is read, whether a sweep came by or not.
    expect(await till.state(customerId)).toBe("HELD");
    expect(await till.usage()).toEqual({ ...before, held: amount });
    expect(await rejection(till.clerk().charge(`${customerId}-other`, kind))).toBeInstanceOf(SpendDeniedError);
    slow.release();
    expect((await call).status).toBe("succeeded");
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect(till.charges(customerId)).toHaveLength(1);
    expect(await till.usage()).toEqual({ committed: before.committed + amount, held: 0 });
    const kinds = (await till.events(customerId)).map(({ kind: what }) => what);
    expect(kinds).toContain("spend.in_doubt");
    expect(kinds.at(-1)).toBe("spend.committed");
  },
);

async function setLimit(cents: number): Promise<void> {
  await till.server.admin.updateCap({
    cap: { name: "caps/everything", limit: { currency: "usd", amount: (cents / 100).toFixed(2) } },
    updateMask: { paths: ["limit"] },
  });
}

import { SpendDeniedError, stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { sweepExpired } from "../../server/store/spend.ts";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import { rejection } from "../sdk/setup.ts";
import { amount, HOUR_MS, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

const cases = (["one_call", "two_step"] as const satisfies readonly BillingKind[]).flatMap((kind) =>
  [HOUR_MS, 72 * HOUR_MS].flatMap((lateMs) => [true, false].map((swept) => ({ kind, lateMs, swept }))),
);

test.each(cases)(
  "a hold runs out during the vendor call ($kind, $lateMs ms, swept: $swept): counted on, commit taken",
  async ({ kind, lateMs, swept }) => {
    const customerId = `${kind}-${lateMs}-${swept}`;
    const before = await till.usage();
    // Room for this one spend only.
    await setLimit(before.committed + amount);
    const key = stableKey(customerId, billingPeriod, purpose);
    const moving = kind === "two_step" ? `${key}-confirm-1` : key;
    const slow = till.simulator.fault({ mode: "hold_after_execute", match: { key: moving } });
    const call = till.clerk().charge(customerId, kind);
    await slow.arrivals();
    await till.advance(lateMs);
    if (swept) {
      await sweepExpired(till.server.database.pool, "default", 100);
      expect(await till.state(customerId)).toBe("IN_DOUBT");
    }
    expect(await till.usage()).toEqual({ ...before, held: amount });
    expect(await rejection(till.clerk().charge(`${customerId}-other`, kind))).toBeInstanceOf(SpendDeniedError);
    slow.release();
    expect((await call).status).toBe("succeeded");
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect(till.charges(customerId)).toHaveLength(1);
    expect(await till.usage()).toEqual({ committed: before.committed + amount, held: 0 });
  },
);

async function setLimit(cents: number): Promise<void> {
  await till.server.admin.updateCap({
    cap: { name: "caps/everything", limit: { currency: "usd", amount: (cents / 100).toFixed(2) } },
    updateMask: { paths: ["limit"] },
  });
}

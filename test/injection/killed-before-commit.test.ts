import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { BillingKind } from "../crash/billing-call.ts";
import { startLineProcess } from "../crash/line-process.ts";
import { sweepExpired } from "../../server/store/spend.ts";
import { amount, openTill, type Till } from "./till.ts";

let till: Till;
beforeAll(async () => {
  till = await openTill();
});
afterAll(() => till.close());

const billingProcess = join(import.meta.dirname, "../crash/billing-process.ts");
const HOLD_MS = 60_000;

test.each<[BillingKind, string]>([
  ["one_call", "after POST /v1/charges"],
  ["two_step", "after POST /v1/payment_intents/:id/confirm"],
])(
  "%s, killed %s: counted, in doubt once its hold is over, and committed by whoever asks the vendor",
  async (kind, pauseAt) => {
    const customerId = `killed-${kind}`;
    const before = await till.usage();
    const child = startLineProcess(billingProcess);
    try {
      child.tell({ call: till.call(customerId, { kind, pauseAt, holdMs: HOLD_MS }) });
      await child.said((line) => line["at"] === pauseAt);
    } finally {
      await child.kill();
    }
    const [charge, ...others] = till.charges(customerId);
    expect(others).toEqual([]);
    const reference = charge?.payment_intent ?? charge?.id;
    expect(await till.state(customerId)).toBe("HELD");
    // Nothing is looked at while the attempt may still be at it.
    expect((await till.clerk().reconcile()).steps).toEqual([]);
    await till.advance(HOLD_MS);
    await sweepExpired(till.server.database.pool, "default", 100);
    expect(await till.state(customerId)).toBe("IN_DOUBT");
    expect(await till.usage()).toEqual({ ...before, held: before.held + amount });
    expect((await till.clerk().reconcile()).steps).toMatchObject([
      { outcome: "committed", vendorReference: reference, money: { amount: "4.90", currency: "usd" } },
    ]);
    expect(await till.state(customerId)).toBe("COMMITTED");
    expect(await till.usage()).toEqual({ ...before, committed: before.committed + amount });
    // The job that runs again gets the charge that exists.
    expect((await till.clerk().charge(customerId, kind)).id).toBe(reference);
    const asked = (await till.events(customerId)).at(-1);
    expect(asked).toMatchObject({ disposition: "ALREADY_COMMITTED" });
    expect(till.charges(customerId)).toHaveLength(1);
  },
);

import { stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type BillingKind, billingPeriod, purpose } from "./billing-call.ts";
import { createVirtualTime, type VirtualTime } from "../support/virtual-time.ts";
import { amount, type Desk, losesFirst, openDesk } from "./desk.ts";

let desk: Desk;
beforeAll(async () => {
  desk = await openDesk();
});
afterAll(async () => {
  await desk.close();
});

async function kinds(customerId: string): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const { kind } of await desk.events(customerId)) counts[kind] = (counts[kind] ?? 0) + 1;
  return counts;
}

describe("the lost answer of a charge", () => {
  test.each<[BillingKind, string]>([
    ["two_step", "AuthorizeSpend"],
    ["two_step", "BindVendorReference"],
    ["two_step", "CommitSpend"],
    ["one_call", "AuthorizeSpend"],
    ["one_call", "CommitSpend"],
  ])("%s, %s: one hold, one charge, counted once", async (kind, rpc) => {
    const customerId = `${kind}-${rpc}`;
    const before = await desk.usage();
    const lost = losesFirst(rpc);
    const outcome = await desk.client(desk.call(customerId, { kind }), lost.observe).charge();
    expect(lost.asked()).toBe(2);
    const [charge, ...others] = desk.charges(customerId);
    expect(others).toEqual([]);
    expect(outcome).toMatchObject({ ok: charge?.payment_intent ?? charge?.id, status: "succeeded" });
    expect(await desk.holds(customerId)).toBe(1);
    expect(await desk.usage()).toEqual({ ...before, committed: before.committed + amount });
    expect(await kinds(customerId)).toMatchObject({ "spend.granted": 1, "spend.committed": 1 });
    expect(await desk.generations(customerId)).toMatchObject([{ state: "COMMITTED" }]);
  });

  test("of many in a batch, authorizing and committing: each one charged and counted once", async () => {
    const before = await desk.usage();
    const customers = Array.from({ length: 8 }, (_, n) => `batch-${n}`);
    const authorize = losesFirst("BatchAuthorizeSpend");
    const commit = losesFirst("BatchCommitSpend");
    // All confirmations are answered in one turn, so that their commits travel together.
    let confirmed = 0;
    const together = Promise.withResolvers<void>();
    const { charge } = desk.client(desk.call("batch"), async (point) => {
      await authorize.observe(point);
      await commit.observe(point);
      if (!/^after .*confirm$/.test(point)) return;
      confirmed += 1;
      if (confirmed === customers.length) together.resolve();
      await together.promise;
    });
    const outcomes = await Promise.all(customers.map((customerId) => charge(customerId)));
    // The repeats wait for a random time each, so they travel together or alone.
    expect([authorize.lost(), commit.lost()]).toEqual([true, true]);
    for (const [index, customerId] of customers.entries()) {
      const charges = desk.charges(customerId);
      expect(charges).toHaveLength(1);
      expect(outcomes[index]).toMatchObject({ ok: charges[0]?.payment_intent });
      expect(await kinds(customerId)).toMatchObject({ "spend.granted": 1, "spend.committed": 1 });
    }
    expect(await desk.usage()).toEqual({ ...before, committed: before.committed + customers.length * amount });
  });
});

describe("the lost answer of an end without a charge", () => {
  test("VoidSpend: the headroom is given back once", async () => {
    const before = await desk.usage();
    const key = stableKey("void", billingPeriod, purpose);
    desk.simulator.fault({ mode: "declined_402", match: { key } });
    const lost = losesFirst("VoidSpend");
    const { charge } = desk.client(desk.call("void", { kind: "one_call" }), lost.observe);
    expect(await charge()).toMatchObject({ code: "card_declined" });
    expect(lost.asked()).toBe(2);
    expect(await desk.usage()).toEqual(before);
    expect(await desk.generations("void")).toMatchObject([{ state: "VOIDED" }]);
    expect(await kinds("void")).toEqual({ "spend.granted": 1, "spend.voided": 1 });
    // The same again is told of the failure, and nobody charges.
    expect(await charge()).toMatchObject({ error: "SpendAlreadyFailedError" });
    expect(desk.charges("void")).toEqual([]);
  });

  test("ReportUnknown: in doubt once, and the headroom stays taken", async () => {
    const before = await desk.usage();
    const key = stableKey("unknown", billingPeriod, purpose);
    desk.simulator.fault({ mode: "error_500_before", match: { key } });
    const lost = losesFirst("ReportUnknown");
    const { charge } = desk.client(desk.call("unknown", { kind: "one_call" }), lost.observe);
    expect(await charge()).toMatchObject({ error: "SpendInDoubtError" });
    expect(lost.asked()).toBe(2);
    expect(await desk.usage()).toEqual({ ...before, held: before.held + amount });
    expect(await kinds("unknown")).toEqual({ "spend.granted": 1, "spend.in_doubt": 1 });
    expect(await desk.generations("unknown")).toMatchObject([{ state: "IN_DOUBT" }]);
  });
});

describe("the lost answer of a lease call", () => {
  const ttlMs = 30_000;
  const run = (
    lease: string,
    observe: (point: string) => Promise<void>,
    job: () => Promise<void>,
    time?: VirtualTime,
  ) => {
    let tokens: bigint[] = [];
    const { holdfast } = desk.client(desk.call(lease), observe, time);
    const result = holdfast.withBillingLease({ lease, billingPeriod, ttlMs }, async (held) => {
      tokens = [...tokens, held.fencingToken];
      await job();
      held.assertHeld();
    });
    return result.then((value) => ({ value, tokens }));
  };

  test("AcquireBillingLease: the repeat holds the same lease", async () => {
    const lost = losesFirst("AcquireBillingLease");
    const { value, tokens } = await run("lost-acquire", lost.observe, () => Promise.resolve());
    expect(lost.asked()).toBe(2);
    expect(value).toMatchObject({ acquired: true, outcome: "completed" });
    expect(tokens).toEqual([1n]);
    const acquired = (await desk.leaseEvents("lost-acquire")).filter(({ kind }) => kind === "lease.acquire");
    expect(acquired.map(({ detail }) => detail["fencing_token"])).toEqual([1, 1]);
  });

  test("RenewBillingLease: the lease goes on", async () => {
    const lost = losesFirst("RenewBillingLease");
    const renewed = Promise.withResolvers<void>();
    const observe = async (point: string) => {
      await lost.observe(point);
      if (point === "after RenewBillingLease") renewed.resolve();
    };
    const time = createVirtualTime();
    const job = async () => {
      await time.advance(ttlMs / 3);
      await expect.poll(() => lost.lost()).toBe(true);
      // The pause before the repeat.
      while (lost.asked() < 2) await time.advance(100);
      await renewed.promise;
    };
    const { value } = await run("lost-renew", observe, job, time);
    expect(lost.asked()).toBe(2);
    expect(value).toMatchObject({ acquired: true, outcome: "completed" });
  });

  test("ReleaseBillingLease: completed once, and closed", async () => {
    const lost = losesFirst("ReleaseBillingLease");
    const { value } = await run("lost-release", lost.observe, () => Promise.resolve());
    expect(lost.asked()).toBe(2);
    expect(value).toMatchObject({ acquired: true, outcome: "completed" });
    const again = await run(
      "lost-release",
      () => Promise.resolve(),
      () => Promise.resolve(),
    );
    expect(again.value).toMatchObject({ acquired: false, answer: "already_completed" });
  });
});

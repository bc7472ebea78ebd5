import { Code } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";
import { BATCH_SIZE_MAX, createLane, type LaneOptions } from "../../sdk/batch.ts";
import { RpcFailure } from "../../sdk/rpc-failure.ts";
import { systemClock, systemRandom, systemTimers } from "../../sdk/runtime.ts";
import { createFakeControlPlane, failure } from "../support/fake-control-plane.ts";
import { createHoldfast } from "@holdfast/sdk";
import type { BatchAuthorizeSpendRequest } from "@holdfast/api/holdfast/v1/spend_control_service_pb";

const runtime = { clock: systemClock(), timers: systemTimers, random: systemRandom };

/** A lane of numbers that are answered with their double, over an exchange that the test lets go on. */
function laneOfDoubles(overrides: Partial<LaneOptions<number, number>> = {}) {
  const sizes: number[] = [];
  const gates: (() => void)[] = [];
  const gate = () => new Promise<void>((resolve) => gates.push(resolve));
  const lane = createLane<number, number>({
    inTrace: (request) => request,
    name: "test",
    runtime,
    bytesOf: () => 8,
    async sendOne(request) {
      sizes.push(1);
      await gate();
      return request * 2;
    },
    async sendMany(requests) {
      sizes.push(requests.length);
      await gate();
      return requests.map((request) =>
        request < 0 ? new RpcFailure({ message: "negative", code: Code.InvalidArgument }) : request * 2,
      );
    },
    ...overrides,
  });
  const submit = (request: number, inMs = 60_000) => lane.submit(request, runtime.clock.now() + inMs);
  const release = async () => {
    while (gates.length === 0) await new Promise((resolve) => setImmediate(resolve));
    gates.shift()?.();
  };
  return { submit, release, sizes };
}

describe("natural batching", () => {
  it("sends a lone request by itself and what comes together in one batch", async () => {
    const { submit, release, sizes } = laneOfDoubles();
    const lone = submit(1);
    await release();
    expect(await lone).toBe(2);
    const many = [2, 3, 4].map((request) => submit(request));
    await release();
    expect(await Promise.all(many)).toEqual([4, 6, 8]);
    expect(sizes).toEqual([1, 3]);
  });

  it("has one exchange in flight, and collects what arrives meanwhile", async () => {
    const { submit, release, sizes } = laneOfDoubles();
    const first = submit(1);
    while (sizes.length === 0) await new Promise((resolve) => setImmediate(resolve));
    const later = [2, 3].map((request) => submit(request));
    await new Promise((resolve) => setImmediate(resolve));
    expect(sizes).toEqual([1]);
    await release();
    await release();
    expect(await Promise.all([first, ...later])).toEqual([2, 4, 6]);
    expect(sizes).toEqual([1, 2]);
  });

  it("never sends more than the limit at once", async () => {
    const { submit, release, sizes } = laneOfDoubles();
    const all = Array.from({ length: BATCH_SIZE_MAX + 3 }, (_, index) => submit(index));
    await release();
    await release();
    await Promise.all(all);
    expect(sizes).toEqual([BATCH_SIZE_MAX, 3]);
  });

  it("gives every request its own failure", async () => {
    const { submit, release } = laneOfDoubles();
    const both = Promise.allSettled([submit(1), submit(-1)]);
    await release();
    expect(await both).toMatchObject([
      { status: "fulfilled", value: 2 },
      { status: "rejected", reason: { rpcCode: Code.InvalidArgument } },
    ]);
  });

  it("keeps every caller's own deadline, and does not send what nobody waits for", async () => {
    const { submit, release, sizes } = laneOfDoubles();
    const first = submit(1);
    while (sizes.length === 0) await new Promise((resolve) => setImmediate(resolve));
    await expect(submit(2, 20)).rejects.toMatchObject({ rpcCode: Code.DeadlineExceeded });
    await release();
    await first;
    expect(sizes).toEqual([1]);
  });

  it("fails all of a batch that failed as a whole, and goes on", async () => {
    let broken = true;
    const { submit, release } = laneOfDoubles({
      sendMany: (requests) => (broken ? Promise.reject(new Error("cut")) : Promise.resolve(requests.map((r) => r * 2))),
    });
    const failed = await Promise.allSettled([submit(1), submit(2)]);
    expect(failed.map(({ status }) => status)).toEqual(["rejected", "rejected"]);
    broken = false;
    expect(await Promise.all([submit(3), submit(4)])).toEqual([6, 8]);
    const lone = submit(5);
    await release();
    expect(await lone).toBe(10);
  });

  it("refuses an answer with another number of results", async () => {
    const { submit } = laneOfDoubles({ sendMany: () => Promise.resolve([1]) });
    const settled = await Promise.allSettled([submit(1), submit(2)]);
    expect(settled.map(({ status }) => status)).toEqual(["rejected", "rejected"]);
  });
});

describe("the client's batches", () => {
  const what = { amount: "1.00", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
  const spendOf = (index: number) => ({ customerId: `c${index}`, billingPeriod: "2026-11", purpose: "mail" });

  it("carry concurrent spends and their commits in few calls", async () => {
    const plane = createFakeControlPlane();
    const holdfast = createHoldfast({ baseUrl: "http://unused", vaultKey: "vk", transport: plane.transport });
    const results = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        holdfast.spend(spendOf(index), what, async () => ({ vendorReference: `mail_${index}` })),
      ),
    );
    expect(results.map(({ vendorReference }) => vendorReference)).toEqual(results.map((_, index) => `mail_${index}`));
    expect(plane.names().length).toBeLessThan(10);
    expect(plane.names()[0]).toBe("batchAuthorize");
    expect((plane.calls[0]?.request as BatchAuthorizeSpendRequest | undefined)?.requests).toHaveLength(100);
  });

  it("are sent again with the same attempts when the answer was lost", async () => {
    const plane = createFakeControlPlane();
    let lost = true;
    plane.intercept = () => {
      if (!lost) return;
      lost = false;
      throw failure(Code.Unavailable, "OUTCOME_UNKNOWN");
    };
    const holdfast = createHoldfast({ baseUrl: "http://unused", vaultKey: "vk", transport: plane.transport });
    await Promise.all(
      [1, 2].map((index) => holdfast.spend(spendOf(index), what, async () => ({ vendorReference: `m${index}` }))),
    );
    const attempts = plane.calls
      .filter(({ rpc }) => rpc.toLowerCase().includes("authorize"))
      .flatMap(({ request }) => {
        const batch = request as BatchAuthorizeSpendRequest;
        return (batch.requests ?? [request]).map(({ attemptId }) => attemptId);
      });
    expect(attempts).toHaveLength(4);
    expect(new Set(attempts).size).toBe(2);
  });

  it("judge one spend twice in one batch as one after the other", async () => {
    const plane = createFakeControlPlane();
    const holdfast = createHoldfast({ baseUrl: "http://unused", vaultKey: "vk", transport: plane.transport });
    let sent = 0;
    const results = await Promise.all(
      [1, 2].map(() =>
        holdfast.spend(spendOf(1), what, async () => {
          sent += 1;
          return { vendorReference: "mail_1" };
        }),
      ),
    );
    expect(sent).toBe(1);
    expect(results.filter(({ alreadyCommitted }) => alreadyCommitted)).toHaveLength(1);
  });
});

import { Code, ConnectError } from "@connectrpc/connect";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { BatchAuthorizeSpendRequest } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastOverloadedError, HoldfastRefusedError, SpendInProgressError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { BATCH_BYTES_MAX, createLane, REQUEST_BYTES_MAX } from "../../sdk/batch.ts";
import { createRetryBudget, withRetries } from "../../sdk/retry.ts";
import { RpcFailure } from "../../sdk/rpc-failure.ts";
import { systemRandom } from "../../sdk/runtime.ts";
import { createSlots } from "../../sdk/slots.ts";
import { failure } from "../support/fake-control-plane.ts";
import { createVirtualTime } from "../support/virtual-time.ts";
import { rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const spendOf = (index: number) => ({ ...SPEND, purpose: `mail-${index}` });
const mail = async () => ({ vendorReference: `mail_${Math.random()}` });

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

describe("more spends than may wait", () => {
  it("are refused at once, and the ones that wait go on", async () => {
    const go = Promise.withResolvers<void>();
    world.plane.intercept = () => go.promise;
    const holdfast = world.holdfast({ maxQueued: 3 });
    const waiting = [1, 2, 3].map((index) => holdfast.spend(spendOf(index), MAIL, mail));
    await expect.poll(() => world.plane.calls.length).toBe(1);
    const error = await rejection(holdfast.spend(spendOf(4), MAIL, () => Promise.reject(new Error("sent"))));
    expect(error).toBeInstanceOf(HoldfastOverloadedError);
    expect(error).toMatchObject({ code: "holdfast_overloaded", spend: spendOf(4) });
    go.resolve();
    expect(await Promise.all(waiting)).toHaveLength(3);
    await holdfast.spend(spendOf(4), MAIL, mail);
  });

  it("are refused too while as many settlements cannot be delivered, none of which is dropped", async () => {
    let gone = true;
    world.plane.intercept = (rpc) => {
      if (gone && rpc.toLowerCase().includes("commit")) throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const holdfast = world.holdfast({ maxQueued: 5 });
    await Promise.all([1, 2, 3, 4, 5].map((index) => holdfast.spend(spendOf(index), MAIL, mail)));
    const error = await rejection(holdfast.spend(spendOf(6), MAIL, mail));
    expect(error).toBeInstanceOf(HoldfastOverloadedError);
    gone = false;
    expect(await holdfast.flush()).toBe(true);
    await holdfast.spend(spendOf(6), MAIL, mail);
    expect(world.plane.authorizations().filter(({ committedAmount }) => committedAmount !== undefined)).toHaveLength(6);
  });

  it("do not count while they wait for another attempt", async () => {
    const holdfast = world.holdfast({ maxQueued: 1 });
    const finish = Promise.withResolvers<void>();
    const first = holdfast.spend(SPEND, MAIL, async () => {
      await finish.promise;
      return { vendorReference: "mail_1" };
    });
    await expect.poll(() => world.plane.calls.length).toBe(1);
    const second = rejection(holdfast.spend(SPEND, MAIL, mail));
    await expect.poll(() => world.plane.calls.length).toBeGreaterThan(1);
    // The second waits for the first; a third of another customer is asked for at once.
    await expect
      .poll(async () => {
        const error = await holdfast.spend(spendOf(9), MAIL, mail).catch((thrown: unknown) => thrown);
        return error instanceof HoldfastOverloadedError;
      })
      .toBe(false);
    expect(await second).toBeInstanceOf(SpendInProgressError);
    finish.resolve();
    await first;
  });
});

describe("a request that is no good", () => {
  it.each([
    ["too large", { endpoint: `POST /${"x".repeat(REQUEST_BYTES_MAX)}` }],
    ["no message at all", { vendorAccount: Object.create(null) as never }],
  ])("because it is %s is refused alone, and its neighbours are granted", async (_why, wrong) => {
    const holdfast = world.holdfast();
    const all = await Promise.allSettled([
      holdfast.spend(spendOf(1), MAIL, mail),
      holdfast.spend(spendOf(2), { ...MAIL, ...wrong }, mail),
      holdfast.spend(spendOf(3), MAIL, mail),
    ]);
    expect(all.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled"]);
    expect(all[1]).toMatchObject({ reason: expect.any(HoldfastRefusedError) as unknown });
    const batch = world.plane.calls[0]?.request as BatchAuthorizeSpendRequest;
    expect(batch.requests).toHaveLength(2);
  });
});

describe("a lane", () => {
  const time = createVirtualTime();
  const runtime = { clock: time, timers: time, random: systemRandom };
  beforeEach(() => time.flow());
  afterEach(() => time.stop());

  it("makes no batch larger than a message may be", async () => {
    const sizes: number[] = [];
    const lane = createLane<number, number>({
      inTrace: (request) => request,
      name: "test",
      runtime,
      bytesOf: (bytes) => bytes,
      sendOne: async (bytes) => sizes.push(bytes),
      sendMany: async (requests) => {
        sizes.push(requests.reduce((sum, bytes) => sum + bytes, 0));
        return requests;
      },
    });
    const requests = Array.from({ length: 40 }, () => 60_000);
    await Promise.all(requests.map((bytes) => lane.submit(bytes, time.now() + 1_000)));
    expect(sizes.length).toBeGreaterThan(1);
    expect(Math.max(...sizes)).toBeLessThanOrEqual(BATCH_BYTES_MAX);
    expect(sizes.reduce((sum, bytes) => sum + bytes, 0)).toBe(40 * 60_000);
  });

  it("goes on at the deadline when the transport never answers", async () => {
    let sent = 0;
    const lane = createLane<number, number>({
      inTrace: (request) => request,
      name: "test",
      runtime,
      bytesOf: () => 1,
      sendOne: (request) => {
        sent += 1;
        return sent === 1 ? new Promise(() => undefined) : Promise.resolve(request);
      },
      sendMany: async (requests) => requests,
    });
    expect(await rejection(lane.submit(1, time.now() + 1_000))).toMatchObject({ rpcCode: Code.DeadlineExceeded });
    expect(await lane.submit(2, time.now() + 60_000)).toBe(2);
  });

  it("makes few requests of many retries while the server is away", async () => {
    let tries = 0;
    const lane = createLane<number, number>({
      inTrace: (request) => request,
      name: "test",
      runtime,
      bytesOf: () => 1,
      sendOne: () => {
        tries += 1;
        return Promise.reject(new ConnectError("refused", Code.Unavailable));
      },
      sendMany: () => {
        tries += 1;
        return Promise.reject(new ConnectError("refused", Code.Unavailable));
      },
    });
    const deadline = time.now() + 20_000;
    const calls = Array.from({ length: 300 }, (_, index) =>
      rejection(withRetries({ runtime, deadline, tryTimeoutMaxMs: 10_000 }, (until) => lane.submit(index, until))),
    );
    await Promise.all(calls);
    // 300 callers over 20 s, and about one request per pause of 1 to 2 s.
    expect(tries).toBeLessThan(50);
  });
});

describe("retries", () => {
  const time = createVirtualTime();
  const runtime = { clock: time, timers: time, random: { ...systemRandom, next: () => 0.5 } };
  beforeEach(() => time.flow());
  afterEach(() => time.stop());

  it("wait as long as the server asks for", async () => {
    const times: number[] = [];
    const start = time.now();
    await withRetries({ runtime, deadline: start + 60_000, tryTimeoutMaxMs: 10_000 }, async () => {
      times.push(time.now() - start);
      if (times.length < 3) {
        throw new ConnectError("full", Code.ResourceExhausted, undefined, [
          { desc: ErrorInfoSchema, value: { reason: "QUEUE_FULL", domain: "holdfast" } },
          { desc: RetryInfoSchema, value: { retryDelay: durationFromMs(7_000) } },
        ]);
      }
    });
    expect(times).toEqual([0, 7_000, 14_000]);
  });

  it("stop when the budget of the process is used up, and come back with time", async () => {
    const budget = createRetryBudget(time);
    let tries = 0;
    const fail = () =>
      rejection(
        withRetries({ runtime, budget, deadline: time.now() + 1_000, tryTimeoutMaxMs: 1_000 }, () => {
          tries += 1;
          return Promise.reject(new ConnectError("refused", Code.Unavailable));
        }),
      );
    await Promise.all(Array.from({ length: 1_000 }, fail));
    expect(tries).toBeLessThan(2_100);
    tries = 0;
    await fail();
    expect(tries).toBe(1);
    await time.advance(10_000);
    tries = 0;
    await fail();
    expect(tries).toBeGreaterThan(1);
  });

  it("know whether any try may have been sent", async () => {
    const neverSent = new RpcFailure({ message: "aborted", code: Code.Canceled, neverSent: true });
    const options = { runtime, deadline: time.now() + 60_000, tryTimeoutMaxMs: 1_000 };
    let tries = 0;
    const later = withRetries(options, () => {
      tries += 1;
      return Promise.reject(tries === 1 ? new ConnectError("cut", Code.Unavailable) : neverSent);
    });
    expect(await rejection(later)).toMatchObject({ neverSent: false });
    const controller = new AbortController();
    controller.abort();
    const first = withRetries({ ...options, signal: controller.signal }, () => Promise.reject(neverSent));
    expect(await rejection(first)).toMatchObject({ neverSent: true });
  });
});

describe("slots", () => {
  const time = createVirtualTime();
  const runtime = { clock: time, timers: time, random: systemRandom };

  it("let a bounded number run, in order, and free the slot of a call that outlives its deadline", async () => {
    const slots = createSlots(runtime, 2);
    const started: number[] = [];
    const hang = (id: number) =>
      slots.run(time.now() + 1_000, () => {
        started.push(id);
        return new Promise<number>(() => undefined);
      });
    const hanging = [1, 2].map((id) => rejection(hang(id)));
    const third = slots.run(time.now() + 5_000, async () => started.push(3));
    const late = rejection(slots.run(time.now() + 500, async () => started.push(4)));
    expect(started).toEqual([1, 2]);
    await time.advance(600);
    expect(await late).toMatchObject({ rpcCode: Code.DeadlineExceeded });
    await time.advance(600);
    for (const error of await Promise.all(hanging)) expect(error).toMatchObject({ rpcCode: Code.DeadlineExceeded });
    await third;
    expect(started).toEqual([1, 2, 3]);
  });
});

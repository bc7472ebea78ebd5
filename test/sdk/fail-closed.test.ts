import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { Code } from "@connectrpc/connect";
import {
  createHoldfast,
  HoldfastRefusedError,
  HoldfastUnavailableError,
  NotChargedError,
  SpendInDoubtError,
  SpendInProgressError,
} from "@holdfast/sdk";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };

describe("without a grant nothing is sent", () => {
  it("when the control plane cannot be reached", async () => {
    const holdfast = createHoldfast({ baseUrl: "http://127.0.0.1:1", vaultKey: "vk_test_main_secret", timeoutMs: 500 });
    const stripe = holdfast.stripe(world.plain);
    const error = await rejection(stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastUnavailableError);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("when it accepts connections and never answers, and the call ends at its deadline", async () => {
    const silent = createServer(() => undefined).listen(0, "127.0.0.1");
    await new Promise((resolve) => silent.once("listening", resolve));
    const { port } = silent.address() as AddressInfo;
    try {
      const holdfast = createHoldfast({
        baseUrl: `http://127.0.0.1:${port}`,
        vaultKey: "vk_test_main_secret",
        timeoutMs: 600,
      });
      const started = performance.now();
      const error = await rejection(holdfast.stripe(world.plain).charges.create({ ...CHARGE }, { spend: SPEND }));
      expect(error).toBeInstanceOf(HoldfastUnavailableError);
      // By its own deadline and not by the default one of 30 s.
      expect(performance.now() - started).toBeLessThan(20_000);
      expect(world.simulator.requests()).toEqual([]);
    } finally {
      silent.close();
    }
  });

  it.each([
    [Code.Unavailable, "DATABASE_UNAVAILABLE"],
    [Code.ResourceExhausted, "QUEUE_FULL"],
    [Code.Unavailable, "OUTCOME_UNKNOWN"],
    [Code.Internal, "INTERNAL"],
  ])("when every try fails with %d %s", async (code, reason) => {
    world.plane.intercept = () => {
      throw failure(code, reason);
    };
    const error = await rejection(world.stripe({ timeoutMs: 800 }).charges.create({ ...CHARGE }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastUnavailableError);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("when the token is refused, which is not tried again", async () => {
    world.plane.intercept = () => {
      throw failure(Code.Unauthenticated, "INVALID_TOKEN");
    };
    const error = await rejection(world.stripe().charges.create({ ...CHARGE }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastRefusedError);
    expect(world.plane.calls).toHaveLength(1);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("when the bind is not answered: the object stays unconfirmed", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "bind") throw failure(Code.Unavailable, "OUTCOME_UNKNOWN");
    };
    const stripe = world.stripe({ timeoutMs: 500 });
    const error = await rejection(stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastUnavailableError);
    expect(world.posts()).toHaveLength(1);
    expect(world.charges()).toBe(0);
  });
});

describe("a lost reply of the control plane", () => {
  it("is asked for again with the same attempt, and charges once", async () => {
    let lost = 2;
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize" && lost > 0) {
        lost -= 1;
        throw failure(Code.Unavailable, "OUTCOME_UNKNOWN");
      }
    };
    await world.stripe().charges.create({ ...CHARGE }, { spend: SPEND });
    const attempts = world.plane.calls
      .filter(({ rpc }) => rpc === "authorize")
      .map(({ request }) => (request as { attemptId: string }).attemptId);
    expect(attempts).toHaveLength(3);
    expect(new Set(attempts).size).toBe(1);
    expect(world.charges()).toBe(1);
  });
});

describe("settings", () => {
  it.each([
    { holdMs: 60_000, vendorDeadlineMs: 30_000 },
    { holdMs: 4_000, vendorDeadlineMs: 1 },
    { resendSafeForMs: 24 * 3_600_000 },
    { timeoutMs: 0 },
    { vendorDeadlineMs: Number.NaN },
  ])("%o are refused", (settings) => {
    expect(() => world.holdfast(settings)).toThrow(TypeError);
  });
});

describe("a spend at any vendor", () => {
  it("gives the callback the key, commits what it says and runs it once", async () => {
    const holdfast = world.holdfast();
    const keys: string[] = [];
    const send = () =>
      holdfast.spend(SPEND, MAIL, async (grant) => {
        grant.assertHeld();
        keys.push(grant.idempotencyKey);
        return { vendorReference: "mail_1", amount: "0.0158" };
      });
    expect(await send()).toMatchObject({ vendorReference: "mail_1", alreadyCommitted: false });
    expect(await send()).toMatchObject({ money: { amount: "0.0158" }, alreadyCommitted: true });
    expect(keys).toHaveLength(1);
    expect(world.plane.authorization().idempotencyKey).toBe(keys[0]);
  });

  it("is in doubt when the callback throws, and is not run again", async () => {
    const holdfast = world.holdfast();
    const cause = new Error("socket hang up");
    const error = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(cause)));
    expect(error).toBeInstanceOf(SpendInDoubtError);
    expect((error as Error).cause).toBe(cause);
    expect(world.plane.authorization().state).toBe(AuthorizationState.IN_DOUBT);
    const again = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("ran again"))));
    expect(again).toBeInstanceOf(SpendInDoubtError);
    expect((again as Error).cause).toBeUndefined();
  });

  it("is free again when the callback sent nothing", async () => {
    const holdfast = world.holdfast();
    const error = await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new NotChargedError())));
    expect(error).toBeInstanceOf(NotChargedError);
    const result = await holdfast.spend(SPEND, MAIL, async () => ({ vendorReference: "mail_2" }));
    expect(result.vendorReference).toBe("mail_2");
  });

  it("waits for another attempt only until the deadline", async () => {
    const holdfast = world.holdfast({ timeoutMs: 400 });
    let finish: () => void = () => undefined;
    const first = holdfast.spend(SPEND, MAIL, async () => {
      await new Promise<void>((resolve) => {
        finish = resolve;
      });
      return { vendorReference: "mail_1" };
    });
    const second = await rejection(holdfast.spend(SPEND, MAIL, async () => ({ vendorReference: "mail_2" })));
    expect(second).toBeInstanceOf(SpendInProgressError);
    finish();
    expect((await first).vendorReference).toBe("mail_1");
  });
});

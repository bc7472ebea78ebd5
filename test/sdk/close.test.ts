import { spawn } from "node:child_process";
import { once } from "node:events";
import { Code } from "@connectrpc/connect";
import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { HoldfastClosedError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { failure } from "../support/fake-control-plane.ts";
import { servePlane } from "../support/plane-server.ts";
import { CHARGE, rejection, SPEND, startWorld, type World } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const JOB = { lease: "nightly-billing", billingPeriod: "2026-11" };
const mail = async () => ({ vendorReference: "mail_1" });

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

/** The database of the control plane is away for these RPCs until `back` is called. */
function away(...rpcs: string[]) {
  let gone = true;
  world.plane.intercept = (rpc) => {
    if (gone && rpcs.includes(rpc)) throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
  };
  return {
    back() {
      gone = false;
    },
  };
}

describe("a closed client", () => {
  it("charges nothing, asks for nothing and starts no job", async () => {
    const holdfast = world.holdfast();
    const stripe = holdfast.stripe(world.plain);
    await holdfast.close();
    for (const call of [
      () => stripe.charges.create({ ...CHARGE }, { spend: SPEND }),
      () => holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent"))),
      () => holdfast.withBillingLease(JOB, () => Promise.reject(new Error("ran"))),
    ]) {
      const error = await rejection(call());
      expect(error).toBeInstanceOf(HoldfastClosedError);
      expect(error).toMatchObject({ code: "holdfast_closed" });
    }
    expect(world.plane.calls).toEqual([]);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("has let the calls that ran come to their end", async () => {
    const holdfast = world.holdfast();
    const spent = holdfast.spend(SPEND, MAIL, mail);
    await holdfast.close();
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(await spent).toMatchObject({ alreadyCommitted: false });
  });

  it("gives up calls that still wait for a grant when the time to close is over", async () => {
    world.plane.intercept = (rpc) => {
      if (rpc === "authorize") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    const holdfast = world.holdfast({ timeoutMs: 60_000 });
    const spent = rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent"))));
    await holdfast.close({ timeoutMs: 500 });
    expect(await spent).toBeInstanceOf(HoldfastClosedError);
  });

  it("has delivered what waited, and a second close waits for the first", async () => {
    const database = away("commit");
    const holdfast = world.holdfast();
    await holdfast.spend(SPEND, MAIL, mail);
    expect(world.plane.authorization().state).toBe(AuthorizationState.HELD);
    database.back();
    await Promise.all([holdfast.close(), holdfast.close()]);
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(world.errors).toEqual([]);
  });

  it("has said what it could not deliver", async () => {
    away("commit");
    const holdfast = world.holdfast();
    await holdfast.spend(SPEND, MAIL, mail);
    await holdfast.close();
    expect(world.errors).toHaveLength(1);
  });

  it("waits no longer than it is told to, whatever the control plane does", async () => {
    const holdfast = world.holdfast();
    const never = Promise.withResolvers<void>();
    world.plane.intercept = (rpc) => (rpc === "commit" ? never.promise : undefined);
    const spent = holdfast.spend(SPEND, MAIL, mail);
    const closed = holdfast.close({ timeoutMs: 2_000 });
    await world.time.advance(3_000);
    await closed;
    never.resolve();
    await spent;
  });

  it.each([0, Number.NaN, -1, "soon"])("takes no %o for a time", (timeoutMs) => {
    expect(() => world.holdfast().close({ timeoutMs: timeoutMs as number })).toThrow(TypeError);
  });
});

describe("flush", () => {
  it("delivers what waits, and the client goes on", async () => {
    const database = away("commit");
    const holdfast = world.holdfast();
    await holdfast.spend(SPEND, MAIL, mail);
    database.back();
    expect(await holdfast.flush()).toBe(true);
    expect(world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
    expect(await holdfast.spend(SPEND, MAIL, mail)).toMatchObject({ alreadyCommitted: true });
  });

  it("says that something is left, which is delivered later", async () => {
    const database = away("commit");
    const holdfast = world.holdfast();
    await holdfast.spend(SPEND, MAIL, mail);
    expect(await holdfast.flush()).toBe(false);
    database.back();
    await expect.poll(() => world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
  });

  it("of a client with nothing to deliver is done", async () => {
    expect(await world.holdfast().flush()).toBe(true);
  });
});

describe("a settlement that nobody takes for long", () => {
  it("is kept and delivered in the end, and reported meanwhile", async () => {
    const database = away("commit");
    const holdfast = world.holdfast();
    await holdfast.spend(SPEND, MAIL, mail);
    const later = world.time.now() + 1_800_000;
    await expect.poll(() => world.time.now(), { timeout: 30_000 }).toBeGreaterThan(later);
    expect(world.errors.length).toBeGreaterThan(0);
    database.back();
    await expect.poll(() => world.plane.authorization().state).toBe(AuthorizationState.COMMITTED);
  });
});

describe("a process", () => {
  const run = async (baseUrl: string, script: string): Promise<{ code: number | null; output: string }> => {
    const program = `
      import { createHoldfast } from "@holdfast/sdk";
      const holdfast = createHoldfast({ baseUrl: "${baseUrl}", vaultKey: "vk_test_main_secret", timeoutMs: 2_000 });
      const spend = { customerId: "c", billingPeriod: "2026-11", purpose: String(process.pid) };
      const what = ${JSON.stringify(MAIL)};
      const mail = async () => ({ vendorReference: "mail_" + process.pid });
      ${script}`;
    const child = spawn(process.execPath, ["--conditions=holdfast-source", "--input-type=module", "-e", program], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    for (const stream of [child.stdout, child.stderr])
      stream.on("data", (chunk: Buffer) => (output += chunk.toString()));
    const [code] = (await once(child, "close")) as [number | null];
    return { code, output };
  };

  it("ends by itself when its spends are done, and when a settlement waits in the background", async () => {
    const server = await servePlane(world.plane);
    const baseUrl = `http://127.0.0.1:${server.port}`;
    world.plane.intercept = (rpc) => {
      if (rpc === "commit") throw failure(Code.Unavailable, "DATABASE_UNAVAILABLE");
    };
    try {
      const both = await Promise.all([
        run(baseUrl, 'console.log("charged", (await holdfast.spend(spend, what, mail)).vendorReference);'),
        run(
          baseUrl,
          "holdfast.withBillingLease({ lease: 'l', billingPeriod: 'p', ttlMs: 3_600_000 }, () => new Promise(() => undefined)); setTimeout(() => console.log('over'), 300);",
        ),
      ]);
      expect(both).toMatchObject([
        { code: 0, output: expect.stringContaining("charged mail_") as unknown },
        { code: 0, output: "over\n" },
      ]);
    } finally {
      await server.close();
    }
  });

  it("stays alive while one of its spends waits for the control plane", async () => {
    const { code, output } = await run(
      "http://127.0.0.1:1",
      "const error = await holdfast.spend(spend, what, mail).catch((thrown) => thrown); console.log(error.name);",
    );
    expect({ code, output }).toEqual({ code: 0, output: "HoldfastUnavailableError\n" });
  });
});

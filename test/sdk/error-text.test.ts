import { once } from "node:events";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { Code } from "@connectrpc/connect";
import {
  HoldfastRefusedError,
  HoldfastUnavailableError,
  SpendAlreadyFailedError,
  VendorUnreachableError,
} from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { networkCause } from "../../sdk/network-cause.ts";
import { createDefaultTransport } from "../../sdk/transport.ts";
import { createAuthority } from "../support/certificates.ts";
import { failure } from "../support/fake-control-plane.ts";
import { CHARGE, PAYMENT, rejection, SPEND, startWorld, stripeAt, timedTransport, type World } from "./setup.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

async function messageOf(promise: Promise<unknown>): Promise<string> {
  return ((await rejection(promise)) as Error).message;
}

describe("the message of an error says why", () => {
  it.each(["charges", "paymentIntents"] as const)("the vendor could not be reached for %s", async (resource) => {
    const stripe = world.holdfast({ vendorDeadlineMs: 300 }).stripe(world.unreachable);
    const error = await rejection(
      resource === "charges"
        ? stripe.charges.create({ ...CHARGE }, { spend: SPEND })
        : stripe.paymentIntents.create({ ...PAYMENT }, { spend: SPEND }),
    );
    expect(error).toBeInstanceOf(VendorUnreachableError);
    expect((error as Error).message).toContain("ECONNREFUSED");
  });

  it("the vendor's name is unknown", async () => {
    const plain = stripeAt(world.time, { host: "stripe.invalid", port: 443 });
    const stripe = world.holdfast({ vendorDeadlineMs: 300 }).stripe(plain);
    expect(await messageOf(stripe.charges.create({ ...CHARGE }, { spend: SPEND }))).toMatch(/ENOTFOUND|EAI_AGAIN/);
  });

  it("the vendor's certificate is not trusted", async () => {
    const { cert, key } = createAuthority().issue("localhost");
    const server = createServer({ cert, key }, () => undefined).listen(0, "127.0.0.1");
    await once(server, "listening");
    try {
      const { port } = server.address() as AddressInfo;
      const plain = stripeAt(world.time, { host: "localhost", port, protocol: "https" });
      const stripe = world.holdfast({ vendorDeadlineMs: 300 }).stripe(plain);
      const error = await rejection(stripe.charges.create({ ...CHARGE }, { spend: SPEND }));
      expect(error).toBeInstanceOf(VendorUnreachableError);
      expect((error as Error).message).toContain("UNABLE_TO_VERIFY_LEAF_SIGNATURE");
    } finally {
      server.close();
    }
  });

  it.each([
    ["http://127.0.0.1:1", "ECONNREFUSED"],
    ["https://holdfast.invalid", "holdfast.invalid"],
  ])(
    "the control plane could not be reached at %s, also when the deadline ended the last try",
    async (baseUrl, why) => {
      const transport = createDefaultTransport(baseUrl, undefined);
      const holdfast = world.holdfast({ transport: timedTransport(world.time, transport) });
      const error = await rejection(holdfast.stripe(world.plain).charges.create({ ...CHARGE }, { spend: SPEND }));
      expect(error).toBeInstanceOf(HoldfastUnavailableError);
      expect((error as Error).message).toContain(why);
      await holdfast.close({ timeoutMs: 1 });
    },
  );

  it.each(["INVALID_TOKEN", ""])("the token was refused (%j), and names the option", async (reason) => {
    world.plane.intercept = () => {
      throw failure(Code.Unauthenticated, reason);
    };
    const error = await rejection(world.stripe().charges.create({ ...CHARGE }, { spend: SPEND }));
    expect(error).toBeInstanceOf(HoldfastRefusedError);
    expect((error as Error).message).toContain("vaultKey");
    expect(world.plane.calls).toHaveLength(1);
  });

  it("a try failed, and shows what to pass for another one", async () => {
    const charge = (spend: object) =>
      world.stripe().charges.create({ ...CHARGE, source: "tok_chargeDeclined" }, { spend: { ...SPEND, ...spend } });
    await rejection(charge({}));
    const error = await rejection(charge({}));
    expect(error).toBeInstanceOf(SpendAlreadyFailedError);
    expect((error as Error).message).toContain(
      'spend: { customerId: "cust_123", billingPeriod: "2026-11", purpose: "subscription", retryAfterGeneration: 1 }',
    );
  });

  it.each([
    [{ amount: "0", currency: "usd" }, "upTo.amount"],
    [{ amount: "0.00", currency: "usd" }, "upTo.amount"],
    [{ amount: 49, currency: "usd" }, "upTo.amount"],
    [{ amount: "49.00", currency: "USD" }, "upTo.currency"],
    ["49.00", "upTo"],
  ])("upTo is %o, and names its member", async (upTo, named) => {
    const params = { mode: "payment", success_url: "https://example.com" } as const;
    const spend = { ...SPEND, upTo: upTo as never };
    expect(
      await messageOf(world.stripe().checkout.sessions.create({ ...params, line_items: [] }, { spend })),
    ).toContain(named);
    expect(world.plane.calls).toEqual([]);
    expect(world.simulator.requests()).toEqual([]);
  });
});

describe("what the network said", () => {
  const system = (code: string, message: string, cause?: unknown) =>
    Object.assign(new Error(message, { cause }), { code });

  it.each<[unknown, string | undefined]>([
    [system("ECONNREFUSED", "connect ECONNREFUSED 127.0.0.1:1"), "connect ECONNREFUSED 127.0.0.1:1"],
    [system("CERT_HAS_EXPIRED", "certificate has expired"), "certificate has expired (CERT_HAS_EXPIRED)"],
    [
      new TypeError("fetch failed", { cause: system("ENOTFOUND", "getaddrinfo ENOTFOUND x") }),
      "getaddrinfo ENOTFOUND x",
    ],
    [new AggregateError([system("EHOSTUNREACH", "")], ""), "EHOSTUNREACH"],
    [new Error("a secret of the application"), undefined],
    [system("holdfast_refused", "no system error"), undefined],
    ["text", undefined],
  ])("of %o is %s", (error, said) => {
    expect(networkCause(error)).toBe(said);
  });
});

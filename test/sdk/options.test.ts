import { createHoldfast, type HoldfastOptions } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createAuthority } from "../support/certificates.ts";
import { rejection, SPEND, startWorld, type World } from "./setup.ts";

const vaultKey = "vk_default_main_0123456789abcdefghijABCDEFGHIJ";
const baseUrl = "https://holdfast.internal:8443";
const { cert, issue } = createAuthority();
const identity = issue("billing");

const wrong: [string, object, string][] = [
  ["no address", { vaultKey }, "baseUrl"],
  ["an address without a scheme", { baseUrl: "holdfast:8443", vaultKey }, "baseUrl"],
  ["an address of another protocol", { baseUrl: "postgres://holdfast", vaultKey }, "https://"],
  ["an empty address", { baseUrl: "", vaultKey }, "baseUrl"],
  ["a token in the address", { baseUrl: "https://vk@holdfast", vaultKey }, "vaultKey"],
  ["a query in the address", { baseUrl: "https://holdfast?x=1", vaultKey }, "baseUrl"],
  ["a path in the address", { baseUrl: "https://holdfast:8443/holdfast", vaultKey }, 'Use "https://holdfast:8443"'],
  ["plain HTTP to another machine", { baseUrl: "http://holdfast:8080", vaultKey }, "allowPlaintext"],
  [
    "plain HTTP to a name that only begins like the own machine",
    { baseUrl: "http://localhost.evil.test", vaultKey },
    "allowPlaintext",
  ],
  ["no key", { baseUrl }, "vaultKey"],
  ["an empty key", { baseUrl, vaultKey: "" }, "vaultKey"],
  ["a key with a line end", { baseUrl, vaultKey: `${vaultKey}\n` }, "vaultKey"],
  ["an operator's token", { baseUrl, vaultKey: vaultKey.replace("vk", "op") }, "operator"],
  ["a vendor's key", { baseUrl, vaultKey: "sk_live_0123456789" }, "vaultKey"],
  ["a number as text", { baseUrl, vaultKey, timeoutMs: "30000" }, "timeoutMs"],
  ["a number that is none", { baseUrl, vaultKey, timeoutMs: Number.NaN }, "timeoutMs"],
  ["an endless time", { baseUrl, vaultKey, timeoutMs: Number.POSITIVE_INFINITY }, "timeoutMs"],
  ["a time below nothing", { baseUrl, vaultKey, holdMs: -1 }, "holdMs"],
  ["half a spend", { baseUrl, vaultKey, maxQueued: 1.5 }, "maxQueued"],
  ["an option that is unknown", { baseUrl, vaultKey, timeout: 30 }, '"timeout"'],
  ["a callback that is none", { baseUrl, vaultKey, onBackgroundError: "log" }, "onBackgroundError"],
  ["a transport that is none", { vaultKey, transport: {} }, "transport"],
  ["certificates beside a transport", { vaultKey, transport: { unary: () => undefined }, tls: {} }, "tls"],
  ["certificates without encryption", { baseUrl: "http://localhost:1", vaultKey, tls: { ca: cert } }, "https://"],
  ["an authority that is no certificate", { baseUrl, vaultKey, tls: { ca: "/etc/ca.pem" } }, "tls.ca"],
  ["a certificate without its key", { baseUrl, vaultKey, tls: { cert: identity.cert } }, "tls.key"],
  [
    "a certificate with another key",
    { baseUrl, vaultKey, tls: { cert: identity.cert, key: issue("x").key } },
    "tls.key",
  ],
  ["an unknown TLS option", { baseUrl, vaultKey, tls: { rejectUnauthorized: false } }, '"rejectUnauthorized"'],
  ["nothing at all", undefined as unknown as object, "options"],
];

describe("createHoldfast", () => {
  it.each(wrong)("refuses %s and names it", (_what, options, named) => {
    const create = () => createHoldfast(options as HoldfastOptions);
    expect(create).toThrow(TypeError);
    expect(create).toThrow(named);
  });

  it("never shows a token in an error", () => {
    for (const token of [`${vaultKey} `, vaultKey.replace("vk", "op"), "sk_live_0123456789"]) {
      let message = "";
      try {
        createHoldfast({ baseUrl, vaultKey: token });
      } catch (error) {
        message = String(error);
      }
      expect(message).toContain("vaultKey");
      expect(message).not.toContain(token.slice(3, 20));
    }
  });

  it.each<Partial<HoldfastOptions>>([
    { baseUrl },
    { baseUrl: "http://localhost:8080" },
    { baseUrl: `${baseUrl}/` },
    { baseUrl: "http://127.0.0.1:8080" },
    { baseUrl: "http://127.8.9.10" },
    { baseUrl: "http://[::1]:8080" },
    { baseUrl: "http://holdfast:8080", allowPlaintext: true },
    { baseUrl, tls: { ca: cert, ...identity, serverName: "holdfast" } },
  ])("takes %o", async (options) => {
    await createHoldfast({ vaultKey, ...options }).close();
  });
});

describe("a caller without types", () => {
  let world: World;
  beforeAll(async () => {
    world = await startWorld();
  });
  afterAll(() => world.close());
  const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
  const send = () => Promise.reject(new Error("sent"));

  it.each<[string, object, string]>([
    ["an unknown property", { ...SPEND, amount: 4900 }, '"amount"'],
    ["a misspelt one", { customer: "cust_123", billingPeriod: "2026-11", purpose: "x" }, '"customer"'],
    ["none", undefined as unknown as object, "spend"],
    ["a flag for a generation", { ...SPEND, retryAfterGeneration: true }, "retryAfterGeneration"],
    ["half a generation", { ...SPEND, retryAfterGeneration: 1.5 }, "retryAfterGeneration"],
    ["a missing period", { customerId: "c", purpose: "p" }, "billingPeriod"],
  ])("learns what is wrong with a spend that has %s", async (_what, spend, named) => {
    const holdfast = world.holdfast();
    for (const error of [
      await rejection(holdfast.spend(spend as never, MAIL, send)),
      await rejection(Promise.resolve().then(() => holdfast.withSpend(spend as never, () => undefined))),
      await rejection(
        holdfast.stripe(world.plain).charges.create({ amount: 1, currency: "usd" }, { spend: spend as never }),
      ),
    ]) {
      expect((error as Error).message).toContain(named);
    }
    expect(world.plane.calls).toEqual([]);
    expect(world.simulator.requests()).toEqual([]);
  });

  it("learns what is wrong with what it wants to spend", async () => {
    const holdfast = world.holdfast();
    for (const [what, named] of [
      [{ ...MAIL, ammount: "1" }, '"ammount"'],
      [{ ...MAIL, amount: 5 }, "amount"],
      [undefined, "object"],
    ] as const) {
      expect(((await rejection(holdfast.spend(SPEND, what as never, send))) as Error).message).toContain(named);
    }
    expect(await rejection(holdfast.spend(SPEND, MAIL, "send" as never))).toBeInstanceOf(TypeError);
    expect(world.plane.calls).toEqual([]);
  });

  it("learns what is wrong with the options of a lease and of a Stripe client", async () => {
    const holdfast = world.holdfast();
    const job = { lease: "l", billingPeriod: "p" };
    const run = () => Promise.resolve();
    for (const [options, named] of [
      [{ ...job, ttl: 5 }, '"ttl"'],
      [{ ...job, ttlMs: 5 }, "ttlMs"],
      [{ ...job, ttlMs: Number.NaN }, "ttlMs"],
      [{ ...job, signal: {} }, "signal"],
    ] as const) {
      expect(((await rejection(holdfast.withBillingLease(options as never, run))) as Error).message).toContain(named);
    }
    expect(() => holdfast.stripe(world.plain, { ondecline: "keep" } as never)).toThrow('"ondecline"');
    expect(() => holdfast.stripe(world.plain, { onDecline: "retry" as never })).toThrow("onDecline");
    expect(world.plane.calls).toEqual([]);
  });
});

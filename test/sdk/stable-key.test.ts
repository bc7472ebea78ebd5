import { authorizationName, stableKey } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";

describe("the stable key", () => {
  it("is the golden vector that callers in other languages use", () => {
    expect(stableKey("cust_123", "2026-11", "ratpack-billing")).toBe("8ee6c974a09685f4291fef983a1129f5");
  });

  it("differs per generation and cannot be reached by a purpose", () => {
    const second = stableKey("c", "p", "x", 2);
    expect(second).not.toBe(stableKey("c", "p", "x"));
    expect(second).not.toBe(stableKey("c", "p", "x:g2"));
  });

  it("lets only the purpose contain a colon", () => {
    expect(stableKey("c", "p", "a:b")).toMatch(/^[0-9a-f]{32}$/);
    expect(() => stableKey("c:p", "x", "y")).toThrow(/customerId/);
    expect(() => stableKey("c", "p:x", "y")).toThrow(/billingPeriod/);
  });

  it.each(["", "a b", "a\n", "a\u0000", "ä", "a".repeat(129)])("refuses the field %j", (field) => {
    expect(() => stableKey(field, "p", "x")).toThrow(TypeError);
    expect(() => stableKey("c", field, "x")).toThrow(TypeError);
    expect(() => stableKey("c", "p", field)).toThrow(TypeError);
  });

  it.each([0, -1, 1.5, Number.NaN])("refuses generation %d", (generation) => {
    expect(() => stableKey("c", "p", "x", generation)).toThrow(/generation/);
  });

  it("names an authorization by the key of the first generation", () => {
    const identity = { customerId: "cust_123", billingPeriod: "2026-11", purpose: "ratpack-billing" };
    expect(authorizationName(identity, 3)).toBe("authorizations/05e08ee6c974a09685f4291fef983a1129f5-3");
  });
});

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { HoldfastError } from "../../server/domain/errors.ts";
import { formatAuthorizationName, parseAuthorizationName, spendKeyOf, stableKey } from "../../server/domain/spend.ts";

const visible = (pattern: RegExp) => fc.stringMatching(pattern);
const identity = fc.record({
  customerId: visible(/^[!-9;-~]{1,128}$/),
  billingPeriod: visible(/^[!-9;-~]{1,128}$/),
  purpose: visible(/^[!-~]{1,128}$/),
});

describe("the stable key", () => {
  test("has the value that callers in other languages compute", () => {
    const spend = { customerId: "cust_123", billingPeriod: "2026-11", purpose: "ratpack-billing" };
    expect(stableKey(spend)).toBe("8ee6c974a09685f4291fef983a1129f5");
    expect(stableKey(spend, 1)).toBe(stableKey(spend));
  });

  test("is 32 lower-case hex digits and the same every time", () => {
    fc.assert(
      fc.property(identity, fc.integer({ min: 1, max: 1_000_000 }), (spend, generation) => {
        expect(stableKey(spend, generation)).toMatch(/^[0-9a-f]{32}$/);
        expect(stableKey({ ...spend }, generation)).toBe(stableKey(spend, generation));
      }),
    );
  });

  test("differs where the identity or the generation differs, also where colons could hide it", () => {
    const part = fc.stringMatching(/^[a:g12]{1,4}$/);
    const closed = part.filter((text) => !text.includes(":"));
    const close = fc.tuple(closed, closed, part, fc.integer({ min: 1, max: 12 }));
    fc.assert(
      fc.property(close, close, (left, right) => {
        const key = ([customerId, billingPeriod, purpose, generation]: typeof left) =>
          stableKey({ customerId, billingPeriod, purpose }, generation);
        expect(key(left) === key(right)).toBe(JSON.stringify(left) === JSON.stringify(right));
      }),
      { numRuns: 1000 },
    );
  });
});

describe("the key of a spend", () => {
  test("begins with what all spends of its period have in common, and ends with the stable key", () => {
    fc.assert(
      fc.property(identity, identity, (spend, other) => {
        const period = spendKeyOf(spend).slice(0, 4);
        expect(spendKeyOf(spend)).toBe(period + stableKey(spend));
        expect(spendKeyOf({ ...other, billingPeriod: spend.billingPeriod }).slice(0, 4)).toBe(period);
      }),
    );
    expect(spendKeyOf({ customerId: "cust_123", billingPeriod: "2026-11", purpose: "x" })).toMatch(
      /^05e0[0-9a-f]{32}$/,
    );
  });
});

describe("the name of an authorization", () => {
  test("is read back as it was written", () => {
    fc.assert(
      fc.property(identity, fc.integer({ min: 1, max: 9_999_999 }), (spend, generation) => {
        const id = { spendKey: spendKeyOf(spend), generation };
        expect(parseAuthorizationName(formatAuthorizationName(id), "name")).toEqual(id);
      }),
    );
  });

  const key = "05e08ee6c974a09685f4291fef983a1129f5";
  test.each([
    "",
    key,
    `authorizations/${key}`,
    `authorizations/${key}-0`,
    `authorizations/${key}-01`,
    `authorizations/${key}-12345678`,
    `authorizations/${key.toUpperCase()}-1`,
    `authorizations/${key}-1/`,
    `/authorizations/${key}-1`,
    `authorizations/${key}-1\n`,
    `authorizations/${key.slice(1)}-1`,
  ])("%j is refused and the field is named", (name) => {
    let thrown: unknown;
    try {
      parseAuthorizationName(name, "authorization");
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(HoldfastError);
    expect(thrown).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "authorization" } });
  });
});

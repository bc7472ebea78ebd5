import { describe, expect, test } from "vitest";
import { type IdentityRules, identify } from "../../server/proxy/identity.ts";
import { RefusedRequest } from "../../server/proxy/refusal.ts";
import { requestKeyOf } from "../../server/proxy/request-key.ts";
import type { Pair, ProxyRequest } from "../../server/proxy/vendor.ts";

function request(changes: Partial<ProxyRequest> = {}): ProxyRequest {
  return {
    method: "POST",
    endpoint: "POST /v1/charges",
    path: "/v1/charges",
    ids: [],
    query: [],
    token: "vk_default_k_secret",
    idempotencyKey: undefined,
    spend: undefined,
    apiVersion: undefined,
    account: "",
    contentType: "application/x-www-form-urlencoded",
    expectsContinue: false,
    takesBody: true,
    fields: [],
    body: "",
    ...changes,
  };
}

const fields = (values: Record<string, string>): Pair[] =>
  Object.entries(values).map(([key, value]) => ({ key, value }));

function rules(changes: Partial<IdentityRules["proxy"]> & { periods?: readonly string[] } = {}): IdentityRules {
  const { periods, ...proxy } = changes;
  return {
    vaultKeyId: "k",
    billingPeriods: periods,
    proxy: { identities: [], keylessEndpoints: [], ...proxy },
  };
}

const derived = {
  periods: ["2026-11"],
  identities: [{ endpoint: "POST /v1/charges", customer: "body.customer", purpose: "fixed:subscription" }],
} as const;

const random = (): string => "0".repeat(32);

function refused(act: () => unknown): { code: string; status: number; param: string | undefined } {
  try {
    act();
  } catch (error) {
    if (error instanceof RefusedRequest) {
      const { code, status, param } = error.refusal;
      return { code, status, param };
    }
    throw error;
  }
  throw new Error("was not refused");
}

describe("which spend a request is", () => {
  test("in the header, with what it may cost and which try it is", () => {
    const spend = "customer=c-1; period=2026-11; purpose=plan:pro; up_to=12.50 usd; retry_after_generation=2";
    expect(identify(request({ spend }), rules(), random)).toEqual({
      kind: "stated",
      spend: {
        customerId: "c-1",
        billingPeriod: "2026-11",
        purpose: "plan:pro",
        upTo: { amount: "12.50", currency: "usd" },
        retryAfterGeneration: 2,
      },
    });
  });

  test("in the metadata", () => {
    const stated = fields({
      "metadata[holdfast_customer]": "c-1",
      "metadata[holdfast_period]": "2026-11",
      "metadata[holdfast_purpose]": "pro",
    });
    expect(identify(request({ fields: stated }), rules(), random)).toEqual({
      kind: "stated",
      spend: { customerId: "c-1", billingPeriod: "2026-11", purpose: "pro" },
    });
  });

  test("the key's only period stands in for one that is not stated", () => {
    const spend = "customer=c-1; purpose=pro";
    expect(identify(request({ spend }), rules({ periods: ["2026-11"] }), random)?.spend.billingPeriod).toBe("2026-11");
    expect(refused(() => identify(request({ spend }), rules(), random)).code).toBe("incomplete_identity");
    expect(refused(() => identify(request({ spend }), rules({ periods: ["a", "b"] }), random)).code).toBe(
      "incomplete_identity",
    );
  });

  test.each([
    "customer=a:b; period=p; purpose=x",
    "customer=; period=p; purpose=x",
    "customer=a; customer=a; period=p; purpose=x",
    "customer=a; period=p; purpose=x; color=red",
    "customer=a; period=p; purpose=x;",
    "customer=a; period=p; purpose=x; up_to=1",
    "customer=a; period=p; purpose=x; up_to=1e3 usd",
    "customer=a; period=p; purpose=x; up_to=1 USD",
    "customer=a; period=p; purpose=x; retry_after_generation=0",
    "__proto__=a; customer=a; period=p; purpose=x",
    "constructor=a",
    `customer=${"a".repeat(129)}; period=p; purpose=x`,
    "customer=a b; period=p; purpose=x",
    "",
  ])("%j is malformed", (spend) => {
    expect(refused(() => identify(request({ spend }), rules(), random))).toEqual({
      code: "malformed_identity",
      status: 400,
      param: "Holdfast-Spend",
    });
  });

  test("derived by the policy, whatever key the client sends", () => {
    const of = (idempotencyKey: string | undefined) =>
      identify(request({ idempotencyKey, fields: fields({ customer: "cus_1" }) }), rules(derived), random);
    const expected = {
      kind: "derived",
      spend: { customerId: "cus_1", billingPeriod: "2026-11", purpose: "subscription" },
    };
    expect(of("3f0c")).toEqual(expected);
    expect(of("9a77")).toEqual(expected);
    expect(of(undefined)).toEqual(expected);
  });

  test("a statement may not name another spend than the policy derives, and may say what it costs", () => {
    const body = fields({ customer: "cus_1" });
    const of = (spend: string) => identify(request({ spend, fields: body }), rules(derived), random);
    expect(refused(() => of("customer=cus_2; period=2026-11; purpose=subscription")).code).toBe("identity_conflict");
    expect(refused(() => of("customer=cus_1; period=2026-12; purpose=subscription")).code).toBe("identity_conflict");
    expect(of("customer=cus_1; up_to=5 usd")?.spend).toMatchObject({ customerId: "cus_1", upTo: { amount: "5" } });
  });

  test("a derived identity needs its parameters, and a key with one period", () => {
    expect(refused(() => identify(request(), rules(derived), random))).toEqual({
      code: "identity_missing",
      status: 400,
      param: "customer",
    });
    const named = request({ fields: fields({ customer: "a:b" }) });
    expect(refused(() => identify(named, rules(derived), random)).code).toBe("malformed_identity");
    const twice = rules({ ...derived, periods: ["a", "b"] });
    expect(refused(() => identify(request({ fields: fields({ customer: "c" }) }), twice, random)).code).toBe(
      "identity_without_period",
    );
  });

  test("by the client's own key, one spend per key and vault key", () => {
    const of = (idempotencyKey: string) => identify(request({ idempotencyKey }), rules(), random);
    expect(of("k-1")).toEqual(of("k-1"));
    expect(of("k-1")?.spend.purpose).not.toBe(of("k-2")?.spend.purpose);
    expect(of("k-1")).toMatchObject({ kind: "client_key", spend: { customerId: "k", billingPeriod: "-" } });
  });

  test("what it may cost may be stated beside the client's own key", () => {
    const own = identify(request({ idempotencyKey: "k-1", spend: "up_to=5 usd" }), rules(), random);
    expect(own).toMatchObject({ kind: "client_key", spend: { upTo: { amount: "5", currency: "usd" } } });
  });

  test("without any, only where the policy lets it through", () => {
    expect(identify(request(), rules(), random)).toBeUndefined();
    const keyless = identify(request(), rules({ keylessEndpoints: ["POST /v1/charges"] }), random);
    expect(keyless).toMatchObject({ kind: "keyless", spend: { purpose: `keyless:${random()}` } });
    expect(identify(request(), rules({ keylessEndpoints: ["POST /v1/payouts"] }), random)).toBeUndefined();
  });

  test("header and metadata at once are refused", () => {
    const both = request({
      spend: "customer=a; period=p; purpose=x",
      fields: fields({ "metadata[holdfast_customer]": "a" }),
    });
    expect(refused(() => identify(both, rules(), random)).code).toBe("identity_conflict");
  });
});

describe("under which key an answer is remembered", () => {
  const isPaymentMethod = (name: string): boolean => name === "payment_method";
  const client = { kind: "client_key", spend: { customerId: "k", billingPeriod: "-", purpose: "key:1" } } as const;
  const stated = { kind: "stated", spend: { customerId: "c", billingPeriod: "p", purpose: "x" } } as const;

  const keyOf = (changes: Partial<ProxyRequest>, identity: Parameters<typeof requestKeyOf>[2] = client) =>
    requestKeyOf(request(changes), "begin", identity, isPaymentMethod);

  test("the order of parameters says nothing, that of a list's items does", () => {
    const one = keyOf({ fields: fields({ amount: "1", currency: "usd" }) });
    expect(keyOf({ fields: fields({ currency: "usd", amount: "1" }) })).toEqual(one);
    const list = (...values: string[]) => values.map((value) => ({ key: "expand[]", value }));
    expect(keyOf({ fields: list("a", "b") })?.bodySha256).not.toEqual(keyOf({ fields: list("b", "a") })?.bodySha256);
  });

  test.each<[string, Partial<ProxyRequest>]>([
    ["amount", { fields: fields({ amount: "2" }) }],
    ["path", { path: "/v1/charges/ch_1/capture" }],
    ["account", { account: "acct_1" }],
    ["body", { body: '{"amount":1}' }],
    ["a name that looks like a name and a value", { fields: fields({ "amount=1&x": "" }) }],
  ])("another %s is another request under the same key", (_, changes) => {
    const one = keyOf({ fields: fields({ amount: "1" }) });
    const other = keyOf(changes);
    expect(other?.requestKey).toEqual(one?.requestKey);
    expect(other?.bodySha256).not.toEqual(one?.bodySha256);
  });

  test("the payment method is what a declined customer may change", () => {
    const one = keyOf({ fields: fields({ amount: "1", payment_method: "pm_1" }) });
    const other = keyOf({ fields: fields({ amount: "1", payment_method: "pm_2" }) });
    expect(other?.bodySha256).not.toEqual(one?.bodySha256);
    expect(other?.retrySha256).toEqual(one?.retrySha256);
  });

  test("no answer is remembered for a request that is nobody's repeat", () => {
    expect(requestKeyOf(request(), "begin", undefined, isPaymentMethod)).toBeUndefined();
    expect(keyOf({}, { ...client, kind: "keyless" })).toBeUndefined();
    expect(requestKeyOf(request(), "continue", stated, isPaymentMethod)).toBeUndefined();
    expect(requestKeyOf(request(), "continue", client, isPaymentMethod)).toBeDefined();
  });

  test("one spend at two endpoints has two answers", () => {
    const at = (endpoint: string) => keyOf({ endpoint }, stated)?.requestKey;
    expect(at("POST /v1/charges")).not.toEqual(at("POST /v1/payment_intents"));
  });
});

import { describe, expect, test } from "vitest";
import {
  type PolicyDocument,
  PolicyDocumentError,
  type PolicyProblem,
  parsePolicyDocument,
} from "../../server/domain/policy-document.ts";
import { policyDocumentRequest } from "../../server/rpc/policy-document.ts";

const now = BigInt(Date.parse("2026-11-15T12:00:00Z")) * 1000n;
const seed = `vendor: stripe
daily_usd_cap: 11000.00
allowed_endpoints:
  - POST /v1/charges
  - "GET /v1/charges/:id"
expires_at: 2026-12-31T23:59:59Z
`;
const parse = (text: string): PolicyDocument => parsePolicyDocument(text, now);

function problems(text: string): readonly PolicyProblem[] {
  try {
    parse(text);
  } catch (error) {
    if (error instanceof PolicyDocumentError) return error.problems;
    throw error;
  }
  return [];
}

describe("a policy document", () => {
  test("is read as it stands", () => {
    expect(parse(seed)).toEqual({
      vendor: "stripe",
      allowedEndpoints: ["POST /v1/charges", "GET /v1/charges/:id"],
      expireTime: BigInt(Date.parse("2026-12-31T23:59:59Z")) * 1000n,
      dailyCaps: [{ currency: "usd", micros: 11_000_000_000n }],
    });
  });

  test.each([
    [
      "JSON",
      '{"vendor": "stripe", "daily_usd_cap": 11000.00, "allowed_endpoints": ["POST /v1/charges", "GET /v1/charges/:id"], "expires_at": "2026-12-31T23:59:59Z"}',
    ],
    [
      "JSON with tabs",
      '{\n\t"vendor": "stripe",\n\t"daily_usd_cap": 11000.00,\n\t"allowed_endpoints": [\n\t\t"POST /v1/charges",\n\t\t"GET /v1/charges/:id"\n\t],\n\t"expires_at": "2026-12-31T23:59:59Z"\n}\n',
    ],
    ["CRLF", seed.replaceAll("\n", "\r\n")],
    ["a byte order mark", `\uFEFF${seed}`],
    ["comments", `# nightly\n${seed.replace("11000.00", "11000.00 # a day")}`],
    ["quoted amounts", seed.replace("11000.00", '"11000.00"')],
    ["an instant in another zone", seed.replace("23:59:59Z", "23:59:59-00:00")],
  ])("may be %s", (_what, text) => {
    expect(parse(text)).toEqual(parse(seed));
  });

  test("loses no digit of an amount that no floating-point number can carry", () => {
    const text = seed.replace("vendor: stripe", "vendor: twilio").replace("11000.00", "999999999999.123457");
    expect(parse(text).dailyCaps).toEqual([{ currency: "usd", micros: 999_999_999_999_123_457n }]);
  });

  test("may have caps in several currencies and no end", () => {
    const text = "vendor: stripe\ndaily_eur_cap: 5\ndaily_jpy_cap: 90000\nallowed_endpoints: [POST /v1/charges]\n";
    expect(parse(text)).toMatchObject({
      expireTime: undefined,
      dailyCaps: [
        { currency: "eur", micros: 5_000_000n },
        { currency: "jpy", micros: 90_000_000_000n },
      ],
    });
  });

  test("becomes the request of a key with an inline DAY cap", () => {
    expect(policyDocumentRequest(parse(seed), "nightly")).toMatchObject({
      vaultKeyId: "nightly",
      vaultKey: { vendor: "stripe", allowedEndpoints: ["POST /v1/charges", "GET /v1/charges/:id"] },
      caps: [
        {
          capId: "nightly-daily-usd",
          cap: { limit: { currency: "usd", amount: "11000" }, scope: { vaultKey: "vaultKeys/nightly" } },
        },
      ],
    });
  });
});

describe("an amount that is no plain decimal number is refused by field and line", () => {
  test.each([
    "NaN",
    ".nan",
    "Infinity",
    "1e4",
    "0.1+0.2",
    "0.1234567",
    "0x10",
    "0o17",
    "1_000",
    "11,000.00",
    "+5",
    "-5",
    "0",
    "05",
    ".5",
    "5.",
    "~",
    "null",
    "true",
    "",
    "'  '",
    "[5]",
    "{a: 5}",
    "&a 5e0",
    "9999999999999",
    "$5",
    "٥",
  ])("%s", (amount) => {
    const [problem, ...others] = problems(seed.replace("11000.00", amount));
    expect(problem).toMatchObject({ field: "daily_usd_cap", line: 2 });
    expect(problem?.message).toMatch(/11000\.00/);
    expect(others).toEqual([]);
  });

  test("a part of a cent at Stripe", () => {
    expect(problems(seed.replace("11000.00", "11000.005"))).toMatchObject([{ field: "daily_usd_cap", line: 2 }]);
    expect(problems(seed.replace("daily_usd_cap: 11000.00", "daily_jpy_cap: 1.5"))).toMatchObject([
      { field: "daily_jpy_cap", line: 2 },
    ]);
  });
});

describe("what cannot be meant is refused by field and line", () => {
  test.each([
    ["a misspelt field", `${seed}daily_usd_capp: 5\n`, "daily_usd_capp", 7, /did you mean daily_usd_cap\?/],
    ["another misspelt field", seed.replace("expires_at", "expire_at"), "expire_at", 6, /did you mean expires_at\?/],
    ["an unknown field", `${seed}budget: 5\n`, "budget", 7, /there are vendor/],
    ["a field twice", `${seed}vendor: twilio\n`, "vendor", 7, /stands on line 1 already/],
    ["a cap twice", `${seed}daily_usd_cap: 5\n`, "daily_usd_cap", 7, /stands on line 2 already/],
    ["no vendor", seed.replace("vendor: stripe\n", ""), "vendor", 1, /is missing/],
    ["a vendor that is none", seed.replace("stripe", "Stripe Inc."), "vendor", 1, /like "stripe"/],
    ["no endpoints", "vendor: stripe\ndaily_usd_cap: 5\n", "allowed_endpoints", 1, /is missing/],
    [
      "an empty list of endpoints",
      "vendor: stripe\ndaily_usd_cap: 5\nallowed_endpoints: []\n",
      "allowed_endpoints",
      3,
      /1 to 100/,
    ],
    [
      "an endpoint that is none",
      seed.replace("POST /v1/charges", "POST /v1/charges/"),
      "allowed_endpoints[0]",
      4,
      /canonical/,
    ],
    [
      "a way up in an endpoint",
      seed.replace("/v1/charges/:id", "/v1/../refunds"),
      "allowed_endpoints[1]",
      5,
      /canonical/,
    ],
    ["no cap", seed.replace("daily_usd_cap: 11000.00\n", ""), "daily_usd_cap", 1, /is missing/],
    ["an end that has passed", seed.replace("2026-12-31", "2026-11-01"), "expires_at", 6, /has passed/],
    ["an end without a zone", seed.replace("59Z", "59"), "expires_at", 6, /with its zone/],
    ["a day", seed.replace("2026-12-31T23:59:59Z", "2026-12-31"), "expires_at", 6, /with its zone/],
    [
      "a day that does not exist",
      seed.replace("12-31", "02-30").replace("2026-02", "2027-02"),
      "expires_at",
      6,
      /with its zone/,
    ],
  ] as const)("%s", (_what, text, field, line, message) => {
    const [problem, ...others] = problems(text);
    expect(problem).toMatchObject({ field, line });
    expect(problem?.message).toMatch(message);
    expect(others).toEqual([]);
  });

  test.each([
    ["nothing", ""],
    ["a list", "- vendor"],
    ["a text", "stripe"],
    ["broken YAML", "vendor: [stripe\n"],
    ["broken JSON", '{"vendor": "stripe",,}'],
    ["several documents", `${seed}---\n${seed}`],
    ["far too much", `# ${"a".repeat(70_000)}`],
    ["an alias", `vendor: &v stripe\ndaily_usd_cap: *v\nallowed_endpoints: [POST /v1/x]\n`],
  ])("%s", (_what, text) => {
    expect(problems(text)).not.toEqual([]);
  });

  test("every problem is told at once, in the order of the lines", () => {
    const text = "vendor: STRIPE\ndaily_usd_cap: 1e4\nallowed_endpoints: []\nexpires_at: never\nextra: 1\n";
    expect(problems(text).map(({ field, line }) => [line, field])).toEqual([
      [1, "vendor"],
      [2, "daily_usd_cap"],
      [3, "allowed_endpoints"],
      [4, "expires_at"],
      [5, "extra"],
    ]);
  });
});

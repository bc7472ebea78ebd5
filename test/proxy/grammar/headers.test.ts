import { expect, test } from "vitest";
import { RefusedRequest } from "../../../server/proxy/refusal.ts";
import { stripeDialect } from "../../../server/proxy/stripe-dialect.ts";
import { formType, lines, read, request, verdict } from "./requests.ts";

const body = "amount=100&currency=usd";

function basic(text: string): string {
  return `Basic ${Buffer.from(text).toString("base64")}`;
}

test.each([
  ["A20 two credentials", lines(["authorization", "Bearer other"]), "401 ambiguous_credentials Authorization"],
  ["A20 the same twice", lines(["AUTHORIZATION", "Bearer hf_token"]), "401 ambiguous_credentials Authorization"],
  [
    "A21 two idempotency keys",
    lines(["Idempotency-Key", "a"], ["idempotency-key", "b"]),
    "400 duplicate_header idempotency-key",
  ],
  ["A21 an empty key", lines(["Idempotency-Key", ""]), "400 malformed_header idempotency-key"],
  ["A21 a key of 256", lines(["Idempotency-Key", "a".repeat(256)]), "400 malformed_header idempotency-key"],
  ["A32 a key with CRLF", lines(["Idempotency-Key", "a\r\nX: y"]), "400 malformed_header idempotency-key"],
  ["A32 a key that is not ASCII", lines(["Idempotency-Key", "\u00e9"]), "400 malformed_header idempotency-key"],
  [
    "two statements of a spend",
    lines(["Holdfast-Spend", "customer=a"], ["holdfast-spend", "customer=b"]),
    "400 duplicate_header holdfast-spend",
  ],
  ["A32 a spend with CRLF", lines(["Holdfast-Spend", "customer=a\r\nb"]), "400 malformed_header holdfast-spend"],
  ["A32 a spend with NUL", lines(["Holdfast-Spend", "customer=a\0"]), "400 malformed_header holdfast-spend"],
  ["a spend without end", lines(["Holdfast-Spend", "a".repeat(1_025)]), "400 malformed_header holdfast-spend"],
  ["A22 two types", lines(["content-type", formType], ["Content-Type", formType]), "415 duplicate_header content-type"],
  ["A24 another expectation", lines(["Expect", "200-maybe"]), "417 unknown_expectation Expect"],
  ["A26 a context", lines(["Stripe-Context", "acct_1"]), "403 header_not_allowed Stripe-Context"],
  [
    "A26 a context beside an account",
    lines(["Stripe-Account", "acct_1"], ["stripe-context", "acct_1"]),
    "403 header_not_allowed Stripe-Context",
  ],
  [
    "A26 two accounts",
    lines(["Stripe-Account", "acct_1"], ["STRIPE-ACCOUNT", "acct_1"]),
    "403 header_not_allowed Stripe-Account",
  ],
  ["A26 two accounts in one", lines(["Stripe-Account", "acct_1, acct_2"]), "403 header_not_allowed Stripe-Account"],
  ["A26 an empty account", lines(["Stripe-Account", ""]), "403 header_not_allowed Stripe-Account"],
  [
    "A27 two versions",
    lines(["Stripe-Version", "2024-06-20"], ["stripe-version", "2020-08-27"]),
    "400 duplicate_header stripe-version",
  ],
  ["A27 no version", lines(["Stripe-Version", "latest"]), "400 malformed_header Stripe-Version"],
  ["A27 an empty version", lines(["Stripe-Version", ""]), "400 malformed_header Stripe-Version"],
  ["A40 a compressed body", lines(["Content-Encoding", "gzip"]), "415 encoded_body"],
  ["A40 a body coded twice", lines(["Content-Encoding", "identity, gzip"]), "415 encoded_body"],
  [
    "A40 two codings",
    lines(["Content-Encoding", "identity"], ["content-encoding", "gzip"]),
    "415 duplicate_header content-encoding",
  ],
])("%s: refused", (_, more, expected) => {
  expect(verdict(request("POST", "/v1/charges", body, more))).toBe(expected);
});

test.each([
  "Bearer",
  "Bearer ",
  "Bearer a b",
  "Bearer a, Bearer b",
  "Digest x",
  "hf_token",
  "",
  "Bearer \u00e9",
  basic("hf_token:secret"),
  basic("hf_token::"),
  basic(":hf_token"),
  basic("hf\ttoken:"),
  "Basic",
  "Basic hf_token",
  "Basic aGY6=aGY6",
  "Basic aGZ=",
])("the credentials %j are refused", (value) => {
  const head = { method: "POST", target: "/v1/charges", rawHeaders: ["Authorization", value] };
  expect(() => stripeDialect.tokenOf(head)).toThrow(
    expect.objectContaining({ refusal: expect.objectContaining({ status: 401, code: "malformed_credentials" }) }),
  );
  expect(() => stripeDialect.readHead(head)).toThrow(RefusedRequest);
});

test.each([
  ["Bearer hf_token", "hf_token"],
  ["bearer   hf_token", "hf_token"],
  [basic("hf_token:"), "hf_token"],
  [basic("hf_token"), "hf_token"],
  [basic("hf_token:").replace(/=+$/, ""), "hf_token"],
])("the credentials %j are the token", (value, token) => {
  const head = { method: "GET", target: "/v1/charges/ch_1", rawHeaders: ["authorization", value] };
  expect(stripeDialect.tokenOf(head)).toBe(token);
  expect(stripeDialect.readHead(head).token).toBe(token);
});

test("without credentials there is no token", () => {
  const head = { method: "GET", target: "/v1/charges/ch_1", rawHeaders: ["Proxy-Authorization", "Bearer a"] };
  expect(stripeDialect.tokenOf(head)).toBeUndefined();
  expect(stripeDialect.readHead(head).token).toBeUndefined();
});

const wrongType = "415 wrong_content_type Content-Type";
test.each([
  ["JSON", "application/json"],
  ["a type with a tab and a parameter", "application/json\t; x"],
  ["JSON and more", "application/json garbage"],
  ["another charset", `${formType}; charset=utf-16`],
  ["two charsets", `${formType}; charset=utf-8; charset=utf-16`],
  ["another parameter", `${formType}; boundary=x`],
  ["two types in one", `${formType}, application/json`],
  ["multipart", "multipart/form-data; boundary=x"],
  ["text", "text/plain"],
  ["nothing", ""],
  ["a longer word", `${formType}x`],
])("A38 a form sent as %s is refused", (_, type) => {
  expect(verdict(request("POST", "/v1/charges", body, ["Content-Type", type]))).toBe(wrongType);
  expect(verdict(request("POST", "/v1/charges", "", ["Content-Type", type]))).toBe(wrongType);
});

test.each([
  formType,
  `${formType};charset=UTF-8`,
  `${formType}; charset=utf-8`,
  `${formType}; charset="utf-8"`,
  `  ${formType}\t`,
  "Application/X-WWW-Form-Urlencoded",
])("A38 a form sent as %j is read", (type) => {
  expect(read(request("POST", "/v1/charges", body, ["Content-Type", type])).contentType).toBe(formType);
});

test("A38 a body for /v2/ is JSON, and one without a type is nothing", () => {
  const target = "/v2/billing/meter_events";
  expect(verdict(request("POST", target, '{"event_name":"a"}'))).toBe("accepted");
  expect(verdict(request("POST", target, "event_name=a", ["Content-Type", formType]))).toBe(wrongType);
  const head = { method: "POST", target: "/v1/charges", rawHeaders: ["Content-Length", "3"] };
  expect(verdict({ head, body: Buffer.from("a=1") })).toBe(wrongType);
  expect(verdict({ head: { ...head, rawHeaders: [] }, body: Buffer.from("a=1") })).toBe(wrongType);
  expect(verdict({ head: { ...head, rawHeaders: [] }, body: Buffer.alloc(0) })).toBe("accepted");
});

test.each([
  ["a length", ["Content-Length", "3"]],
  ["chunks", ["Transfer-Encoding", "chunked"]],
])("A24 a GET or DELETE whose head announces %s is refused", (_, more) => {
  for (const method of ["GET", "DELETE"]) {
    const head = { method, target: "/v1/invoices/in_1", rawHeaders: more };
    expect(verdict({ head, body: Buffer.alloc(0) })).toBe("400 unexpected_body");
  }
});

test("A24 a GET with a body that its head did not announce is refused, one with an empty body is not", () => {
  const head = { method: "GET", target: "/v1/charges/ch_1", rawHeaders: ["Content-Length", "0"] };
  expect(verdict({ head, body: Buffer.from("a=1") })).toBe("400 unexpected_body");
  expect(verdict({ head, body: Buffer.alloc(0) })).toBe("accepted");
  expect(stripeDialect.readHead(head).takesBody).toBe(false);
});

test("A24 whoever waits for a go-ahead is told to wait for one", () => {
  expect(read(request("POST", "/v1/charges", body, ["Expect", "100-Continue"])).expectsContinue).toBe(true);
  expect(read(request("POST", "/v1/charges", body)).expectsContinue).toBe(false);
});

test("what is not looked at has no effect, repeated or not", () => {
  const more = lines(
    ["Connection", "Authorization, Idempotency-Key, close"],
    ["Upgrade", "h2c"],
    ["TE", "trailers"],
    ["X-Forwarded-Host", "evil.test"],
    ["X-Original-URL", "/v1/refunds"],
    ["Cookie", "a=b"],
    ["Cookie", "c=d"],
    ["__proto__", "x"],
    ["constructor", "x"],
    ["hasOwnProperty", "x"],
    ["X-Stripe-Client-User-Agent", "{}"],
    ["Idempotency_Key", "c"],
  );
  const plain = read(request("POST", "/v1/charges", body));
  expect(read(request("POST", "/v1/charges", body, more))).toEqual(plain);
});

test("what is looked at is read by its name in any case", () => {
  const more = lines(
    ["IDEMPOTENCY-KEY", " a key "],
    ["holdfast-SPEND", "customer=c; period=2026-01; purpose=renewal"],
    ["stripe-version", "2025-03-31.basil"],
    ["STRIPE-account", "acct_1"],
  );
  expect(read(request("POST", "/v1/charges", body, more))).toMatchObject({
    idempotencyKey: "a key",
    spend: "customer=c; period=2026-01; purpose=renewal",
    apiVersion: "2025-03-31.basil",
    account: "acct_1",
  });
});

test.each([
  "2010-01-01",
  "2026-10-28.endive",
  "2026-10-28.preview",
  "2020-08-27; beta=v1",
  "2022-11-15; a_beta=v3; b=v1",
])("A27 the version %j is handed on for the policy to judge", (version) => {
  expect(read(request("GET", "/v1/charges/ch_1", "", ["Stripe-Version", version])).apiVersion).toBe(version);
});

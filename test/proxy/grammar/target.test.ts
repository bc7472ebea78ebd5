import { expect, test } from "vitest";
import { read, request, verdict } from "./requests.ts";

const invalid = "400 invalid_target";
const unknown = "404 unknown_endpoint";

test.each([
  ["A01 another host as a whole URI", "http://evil.test/v1/refunds", invalid],
  ["A02 another host after two slashes", "//evil.test/v1/charges", invalid],
  ["A03 another host after a backslash", "/\\evil.test/v1/charges", invalid],
  ["A04 a dot segment up", "/v1/charges/../refunds", invalid],
  ["A04 a dot segment in place", "/v1/./charges", invalid],
  ["A04 a dot segment at the end", "/v1/charges/..", invalid],
  ["A04 more dots than two", "/v1/charges/.../capture", invalid],
  ["A05 an escaped dot segment", "/v1/charges/%2e%2e/refunds", invalid],
  ["A05 a half escaped dot segment", "/v1/charges/%2E./refunds", invalid],
  ["A06 an escaped slash", "/v1/charges%2f..%2frefunds", invalid],
  ["A06 an escaped backslash", "/v1/charges%5crefunds", invalid],
  ["A07 a parameter in a dot segment", "/v1/charges/..;a=b/refunds", invalid],
  ["A07 a parameter in a segment", "/v1/charges;x=1", invalid],
  ["A08 a fragment", "/v1/charges#/refunds", invalid],
  ["A08 a fragment behind a query", "/v1/charges?#/refunds", invalid],
  ["A08 an escaped fragment", "/v1/charges%23", invalid],
  ["A09 an empty segment", "/v1//charges", invalid],
  ["A09 a slash at the end", "/v1/charges/", unknown],
  ["A09 two slashes at the end", "/v1/charges//", invalid],
  ["A09 another case", "/V1/Charges", unknown],
  ["A10 an escape of an escape", "/v1/%252e%252e/charges", invalid],
  ["A10 an escaped NUL", "/v1/charges%00", invalid],
  ["A10 a letter of another script", "/v1/charg%D0%B5s", invalid],
  ["A10 an ideographic full stop", "/v1/charges/%E3%80%82", invalid],
  ["A10 an escape of what needs none", "/v1/%63harges", invalid],
  ["A11 a NUL", "/v1/charges\0", invalid],
  ["A11 a tab", "/v1/charges\t", invalid],
  ["A11 a space", "/v1/charges /x", invalid],
  ["A11 UTF-8 as it is", "/v1/charg\u00d0\u00b5s", invalid],
  ["A11 no slash at the beginning", "v1/charges", invalid],
  ["A11 an authority", "evil.test:443", invalid],
  ["A11 nothing", "", invalid],
  ["A11 a query only", "?amount=1", invalid],
  ["A13 a query of 9 KB", `/v1/charges?${"a".repeat(9_000)}`, "414 uri_too_long"],
  ["A13 a path of 64 KB", `/v1/${"a".repeat(65_536)}`, "414 uri_too_long"],
  ["the root", "/", unknown],
  ["a version that does not exist", "/v3/charges", unknown],
  ["the prefix of another vendor", "/twilio/v1/charges", unknown],
  ["the prefix twice", "/stripe/stripe/v1/charges", unknown],
  ["the prefix with another host", "/stripe//evil.test/v1/charges", invalid],
  ["the prefix alone", "/stripe", unknown],
  ["the template itself", "/v1/charges/:id/capture", invalid],
  ["a write of no endpoint", "/v1/charges/ch_1/explode", unknown],
  ["an id with a minus", "/v1/charges/ch-1/capture", invalid],
  ["an id with a dot", "/v1/payment_intents/pi_1.json/confirm", invalid],
  ["an id of 256 characters", `/v1/charges/${"a".repeat(256)}/capture`, invalid],
  ["a word of Stripe's where an id stands", "/v1/invoices/create_preview/pay", unknown],
  ["parameters outside the body", "/v1/charges?amount=1", "400 query_not_allowed"],
])("%s is refused in a POST", (_, target, expected) => {
  expect(verdict(request("POST", target))).toBe(expected);
});

test.each(["OPTIONS", "TRACE", "PUT", "PATCH", "HEAD", "CONNECT", "post", "Get", "GET ", "PROPFIND", ""])(
  "A12 the method %j is refused, whatever the target",
  (method) => {
    for (const target of ["/v1/charges", "*", "evil:443", "http://evil.test/"]) {
      expect(verdict(request(method, target))).toBe("405 method_not_allowed");
    }
  },
);

test.each([
  ["POST", "/v1/charges/ch_1/capture", "POST /v1/charges/:id/capture", ["ch_1"]],
  ["POST", "/stripe/v1/charges/ch_1/capture", "POST /v1/charges/:id/capture", ["ch_1"]],
  ["POST", "/v1/charges?", "POST /v1/charges", []],
  ["GET", "/v1/charges/ch_1?expand[]=customer", "GET /v1/charges/:id", ["ch_1"]],
  ["GET", "/v1/charges/search?query=a%3Ab", "GET /v1/charges/search", []],
  ["DELETE", "/v1/coupons/SUMMER-25.5", "DELETE /v1/coupons/:id", ["SUMMER-25.5"]],
  ["POST", "/v1/accounts/acct_1/persons/person_2", "POST /v1/accounts/:id/persons/:id", ["acct_1", "person_2"]],
])("%s %s is %s", (method, target, endpoint, ids) => {
  const found = read(request(method, target));
  expect(found).toMatchObject({ method, endpoint, ids });
  expect(found.path).toBe(target.replace("/stripe", "").split("?")[0]);
});

test.each([
  ["A14 a method in the query", "/v1/charges?_method=delete", "400 malformed_parameter"],
  ["A31 a name of every object", "/v1/charges?constructor=1", "400 malformed_parameter"],
  ["a repeated parameter", "/v1/charges?limit=1&limit=2", "400 duplicate_parameter limit"],
  ["a key in the query", "/v1/charges?key=sk_1", "400 parameter_not_allowed key"],
  ["a semicolon", "/v1/charges?limit=1;limit=2", "400 malformed_parameter"],
  ["a second question mark", "/v1/charges??limit=1", "400 malformed_parameter"],
  ["a parameter without a value", "/v1/charges?limit", "400 malformed_parameter"],
  ["an escape that is none", "/v1/charges?limit=%1", "400 malformed_parameter"],
])("%s is refused in a GET", (_, target, expected) => {
  expect(verdict(request("GET", target))).toBe(expected);
});

test("A14 a header that names another method changes nothing", () => {
  const more = ["X-HTTP-Method-Override", "DELETE", "X-HTTP-Method", "DELETE", "X-Method-Override", "DELETE"];
  const found = read(request("POST", "/v1/invoices/in_1", "", more));
  expect(found).toMatchObject({ method: "POST", endpoint: "POST /v1/invoices/:id" });
  expect(JSON.stringify(found)).not.toContain("DELETE");
});

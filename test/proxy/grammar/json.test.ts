import { expect, test } from "vitest";
import { read, request, verdict } from "./requests.ts";

const target = "/v2/money_management/outbound_payments";
const malformed = "400 malformed_body";

test.each([
  ["a member twice", '{"amount":{"value":1,"value":100,"currency":"usd"}}', malformed],
  ["a member twice, once escaped", '{"from":1,"\\u0066rom":2}', malformed],
  ["a member twice in two cases", '{"to":{"a":1,"A":2}}', malformed],
  ["an unknown member", '{"amuont":1}', "400 unknown_parameter amuont"],
  ["an unknown member of two words", '{"a b":1}', "400 unknown_parameter"],
  ["a byte order mark", '\ufeff{"description":"a"}', malformed],
  ["something behind", '{"description":"a"} x', malformed],
  ["two objects", '{"description":"a"}{"description":"b"}', malformed],
  ["a comma too many", '{"description":"a",}', malformed],
  ["a comment", '{"description":"a"/**/}', malformed],
  ["single quotes", "{'description':'a'}", malformed],
  ["a list", '[{"description":"a"}]', malformed],
  ["a text", '"a"', malformed],
  ["null", "null", malformed],
  ["depth", `{"metadata":${"[".repeat(10_000)}${"]".repeat(10_000)}}`, malformed],
  ["half a surrogate", '{"description":"\\ud800"}', malformed],
  ["half a surrogate in a name", '{"metadata":{"\\udfff":"a"}}', malformed],
  ["no UTF-8", Buffer.from('{"description":"\u00ff"}', "latin1"), malformed],
  ["UTF-16", Buffer.from('{"description":"a"}', "utf16le"), malformed],
  ["a number as JavaScript would not write it", '{"amount":{"value":1e2}}', malformed],
  ["a number with a point", '{"amount":{"value":100.0}}', malformed],
  ["minus zero", '{"amount":{"value":-0}}', malformed],
  ["a number that a double cannot hold", '{"amount":{"value":9007199254740993}}', malformed],
  ["a number beyond any", '{"amount":{"value":1e999}}', malformed],
  ["NUL", '{"description":"\\u0000"}', malformed],
  ["a name of every object", '{"metadata":{"__proto__":{"a":1}}}', malformed],
  ["the same, escaped", '{"metadata":{"\\u005f_proto__":{"a":1}}}', malformed],
  ["a constructor", '{"metadata":{"constructor":1}}', malformed],
  ["brackets in a name", '{"amount[value]":1}', malformed],
])("A39 %s is refused", (_, body, expected) => {
  expect(verdict(request("POST", target, body))).toBe(expected);
});

test("what is accepted is written anew", () => {
  const body = `{ "amount" : {"value": 1000, "currency":"usd"},\r\n "description":"\\u0041\\\\ud800 \u00e9 \\ud83d\\ude00" }`;
  const found = read(request("POST", target, body));
  expect(found).toMatchObject({ fields: [], contentType: "application/json" });
  expect(found.body).toBe('{"amount":{"value":1000,"currency":"usd"},"description":"A\\\\ud800 \u00e9 \u{1f600}"}');
  expect(read(request("POST", target, found.body)).body).toBe(found.body);
});

test("a text of the size of a whole body is read", () => {
  expect(verdict(request("POST", target, JSON.stringify({ description: '\\"'.repeat(60_000) })))).toBe("accepted");
});

test("no body at all is none", () => {
  expect(read(request("POST", "/v2/money_management/payout_intents/pi_1/confirm")).body).toBe("");
});

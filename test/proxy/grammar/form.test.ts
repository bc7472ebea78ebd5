import { expect, test } from "vitest";
import { read, request, verdict } from "./requests.ts";

const malformed = "400 malformed_parameter";

function charge(body: string | Uint8Array): string {
  return verdict(request("POST", "/v1/charges", body));
}

test.each([
  ["A35 an amount twice", "amount=1&amount=100", "400 duplicate_parameter amount"],
  ["A35 the same twice", "amount=100&amount=100", "400 duplicate_parameter amount"],
  ["A35 an amount twice, once escaped", "amount=1&%61mount=100", "400 duplicate_parameter amount"],
  ["A35 an amount as a list", "amount[]=100", `${malformed} amount`],
  ["A35 an amount as an escaped list", "amount%5B%5D=100", `${malformed} amount`],
  ["A35 an amount and a list", "amount=1&amount[]=100", `${malformed} amount`],
  ["A35 a list and an amount", "amount[]=100&amount=1", `${malformed} amount`],
  ["A35 an amount with an index", "amount[0]=1", `${malformed} amount`],
  ["A35 an amount as a group", "amount[a]=5", `${malformed} amount`],
  ["A37 another case", "Amount=1", "400 unknown_parameter Amount"],
  ["A37 a space before", " amount=1", "400 unknown_parameter"],
  ["A37 an escaped space before", "+amount=1", "400 unknown_parameter"],
  ["A37 a space after", "amount%20=1", "400 unknown_parameter"],
  ["A37 a NUL after", "amount%00=1", "400 unknown_parameter"],
  ["A37 a semicolon", "amount=1;amount=100", malformed],
  ["A37 a name that nobody knows", "amuont=100", "400 unknown_parameter amuont"],
  ["A37 a name that another write has", "amount_to_capture=100", "400 unknown_parameter amount_to_capture"],
  ["A14 a method", "_method=delete", "400 unknown_parameter _method"],
  ["a key", "key=sk_1", "400 unknown_parameter key"],
  ["A31 a name of every object", "__proto__=1", "400 unknown_parameter __proto__"],
  ["A31 a group of it", "__proto__[amount]=1", "400 unknown_parameter __proto__"],
  ["A31 a member of it", "metadata[__proto__]=1", `${malformed} metadata`],
  ["A31 a constructor", "metadata[constructor][prototype][amount]=1", `${malformed} metadata`],
  ["A31 a method of every object", "metadata[hasOwnProperty]=1", `${malformed} metadata`],
  ["brackets that do not close", "metadata[a=1", malformed],
  ["brackets that do not open", "metadata]a=1", "400 unknown_parameter"],
  ["brackets in brackets", "metadata[a[b]]=1", malformed],
  ["something behind brackets", "metadata[a]b=1", malformed],
  ["an amount in brackets", "[amount]=1", "400 unknown_parameter"],
  ["A49 a NUL in a value", "description=a%00b", `${malformed} description`],
  ["A49 an escape character in a value", "description=%1b[0m", `${malformed} description`],
  ["A49 a C1 character in a value", "description=%c2%85", `${malformed} description`],
  ["a control character as it is", "description=a\nb", malformed],
  ["A32 CRLF in a customer", "customer=cus_1%0d%0aX:%20y", `${malformed} customer`],
  ["half a letter as it is", Buffer.from("description=%c3\u00a9", "latin1"), malformed],
  ["the other half as it is", Buffer.from("description=\u00c3%a9", "latin1"), malformed],
  ["no UTF-8", "description=%ff", malformed],
  ["an overlong form", "description=%c0%af", malformed],
  ["half a surrogate", "description=%ed%a0%80", malformed],
  ["an escape that is none", "description=%zz", malformed],
  ["an escape that is cut", "description=%4", malformed],
  ["an escape of another kind", "description=%u0041", malformed],
  ["a name that ends in a value", "source=a[b]=c", malformed],
  ["the same, escaped", "description=true%26source%5bb%5d=c", malformed],
  ["A32 a customer that decodes twice", "customer=cus_%2541", `${malformed} customer`],
  ["an empty part", "amount=1&&currency=usd", malformed],
  ["an ampersand at the end", "amount=1&", malformed],
  ["an empty name", "=1", malformed],
  ["a name without a value", "amount", malformed],
  ["a byte order mark", "\ufeffamount=1", "400 unknown_parameter"],
  ["groups in a list without indexes", "metadata[][a]=1", `${malformed} metadata`],
  ["a value and a group", "source=tok_1&source[object]=card", `${malformed} source`],
  ["a group and a list", "source[object]=card&source[]=1", `${malformed} source`],
  ["a group and an index", "source[object]=card&source[0]=1", `${malformed} source`],
  ["an index first", "expand[1]=a", `${malformed} expand`],
  ["indexes turned round", "expand[1]=a&expand[0]=b", `${malformed} expand`],
  ["a gap", "expand[0]=a&expand[2]=b", `${malformed} expand`],
  ["an index with zeros", "expand[00]=a", `${malformed} expand`],
  ["an index that is huge", "expand[99999999999999999999]=a", `${malformed} expand`],
  ["too many steps", `metadata${"[a]".repeat(12)}=1`, malformed],
  ["a transfer's amount below zero", "transfer_data[amount]=-1", `${malformed} transfer_data[amount]`],
  ["a transfer's amount as a list", "transfer_data[amount][]=1", `${malformed} transfer_data[amount]`],
  ["transfers as a list", "transfer_data[][amount]=1", `${malformed} transfer_data`],
  ["a transfer as a word", "transfer_data=acct_1", `${malformed} transfer_data`],
  ["A42 two currencies in one", "currency=usd%20", `${malformed} currency`],
  ["A42 a currency of letters that fold", "currency=%C5%BF%C5%BF%C5%BF", `${malformed} currency`],
  ["a capture that is neither", "capture=0", `${malformed} capture`],
  ["a capture that is empty", "capture=", `${malformed} capture`],
])("%s: %s is refused", (_, body, expected) => {
  expect(charge(body)).toBe(expected);
});

test.each([
  "+100",
  "%2B100",
  "%20100",
  "100%20",
  "1e3",
  "100.0",
  "100%2e0",
  "0x64",
  "-5",
  "0",
  "-0",
  "00100",
  "",
  "1,000",
])("A36 the amount %j is refused", (amount) => {
  expect(charge(`amount=${amount}`)).toBe(`${malformed} amount`);
});

test.each(["%D9%A3", "1_000", "9".repeat(20), "Infinity", "null", "100%0a", "%EF%BC%91", "1%00"])(
  "A36 the amount %j is refused",
  (amount) => {
    expect(charge(`amount=${amount}`)).toBe(`${malformed} amount`);
  },
);

test("A36 an amount beyond what a double holds comes through to the last digit", () => {
  const { fields, body } = read(request("POST", "/v1/charges", "amount=9007199254740993&currency=usd"));
  expect(fields[0]).toEqual({ key: "amount", value: "9007199254740993" });
  expect(body).toBe("amount=9007199254740993&currency=usd");
});

test.each([
  ["/v1/payment_intents/pi_1", "amount=007", `${malformed} amount`],
  ["/v1/payment_intents/pi_1/confirm", "amount_to_confirm[]=1", `${malformed} amount_to_confirm`],
  ["/v1/payment_intents/pi_1/capture", "amount_to_capture=1.5", `${malformed} amount_to_capture`],
  ["/v1/payment_intents/pi_1/capture", "amount=100", "400 unknown_parameter amount"],
  ["/v1/payment_intents/pi_1/capture", "final_capture=no", `${malformed} final_capture`],
  ["/v1/payment_intents", "confirm[]=true", `${malformed} confirm`],
  ["/v1/payment_intents", "payment_method_types=card", `${malformed} payment_method_types`],
  ["/v1/payment_intents", "payment_method_types[a]=card", `${malformed} payment_method_types`],
  ["/v1/payment_intents", "payment_method_options[]=card", `${malformed} payment_method_options`],
  ["/v1/payment_intents", "payment_method_data=pm_1", `${malformed} payment_method_data`],
  ["/v1/payment_intents", "payment_method[id]=pm_1", `${malformed} payment_method`],
  ["/v1/payment_intents", "application_fee_amount=-1", `${malformed} application_fee_amount`],
  ["/v1/payment_intents", "on_behalf_of[]=acct_1", `${malformed} on_behalf_of`],
  ["/v1/invoices/in_1/pay", "paid_out_of_band=1", `${malformed} paid_out_of_band`],
  ["/v1/invoices/in_1/pay", "amount=1", "400 unknown_parameter amount"],
  ["/v1/refunds", "amount=-1", `${malformed} amount`],
  ["/v1/refunds", "currency=us", `${malformed} currency`],
  ["/v1/refunds", "customer[]=cus_1", `${malformed} customer`],
  ["/v1/transfers", "amount=%2D1", `${malformed} amount`],
  ["/v1/payouts", "amount=1e2", `${malformed} amount`],
  ["/v1/topups", "amount=0", `${malformed} amount`],
  ["/v1/invoiceitems", "amount=-0", `${malformed} amount`],
  ["/v1/billing/credit_grants", "amount=1", `${malformed} amount`],
  ["/v1/billing/credit_grants", "amount[monetary][value]=1.0", `${malformed} amount[monetary][value]`],
  ["/v1/subscriptions", "items[0][price]=a&items[0][price]=b", "400 duplicate_parameter items"],
  ["/v1/subscriptions", "items[][price]=a&items[][quantity]=2", `${malformed} items`],
  ["/v1/customers", "constructor=1", malformed],
  ["/v1/customers", "key=sk_1", "400 parameter_not_allowed key"],
  ["/v1/customers", "_method=delete", malformed],
  ["/v1/customers", "payment_method[]=pm_1", `${malformed} payment_method`],
  ["/v1/setup_intents", "customer=cus_1%0a", `${malformed} customer`],
  ["/v1/setup_intents", "customer[0]=cus_1", `${malformed} customer`],
  ["/v1/customers", "Email=a", malformed],
])("A41 to %s, %s is refused", (target, body, expected) => {
  expect(verdict(request("POST", target, body))).toBe(expected);
});

test("currencies and flags are folded once, and nothing else is", () => {
  const { fields } = read(request("POST", "/v1/charges", "amount=1&currency=USD&capture=False&description=USD+True"));
  expect(fields.map(({ value }) => value)).toEqual(["1", "usd", "false", "USD True"]);
});

test("metadata holds whatever can be printed", () => {
  const value = "50% off; a&b=c [x] {y} \u00e9 \u6f22 \u{1f600} \u202e\tline\nline";
  const key = "Order no. 7/B \u00e9";
  const body = `metadata[${encodeURIComponent(key)}]=${encodeURIComponent(value)}`;
  const found = read(request("POST", "/v1/charges", body));
  expect(found.fields).toEqual([{ key: `metadata[${key}]`, value }]);
  expect(read(request("POST", "/v1/charges", found.body)).fields).toEqual(found.fields);
});

test("an amount below zero is the customer's only where Stripe has such amounts", () => {
  for (const target of ["/v1/invoiceitems", "/v1/invoiceitems/ii_1", "/v1/customers/cus_1/balance_transactions"]) {
    expect(verdict(request("POST", target, "amount=-500"))).toBe("accepted");
  }
});

test("bodies have a size and a number of parameters", () => {
  const many = (count: number): string => Array.from({ length: count }, (_, at) => `expand[${at}]=a`).join("&");
  expect(charge(many(5_000))).toBe("accepted");
  expect(charge(many(5_001))).toBe("400 too_many_parameters");
  expect(charge(`description=${"a".repeat(262_144 - 12)}`)).toBe("accepted");
  expect(charge(`description=${"a".repeat(262_144 - 11)}`)).toBe("413 body_too_large");
});

test("a refusal names no value, and a parameter only by a name that can be shown", () => {
  for (const body of ["secret%00%0d=sk_live_1", "description=sk_live_1%00", "amount=sk_live_1"]) {
    expect(() => read(request("POST", "/v1/charges", body))).toThrow(/^(?!.*sk_live)/);
  }
});

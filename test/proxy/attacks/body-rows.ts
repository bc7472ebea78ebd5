import { all, type AttackRow } from "./attack-row.ts";
import { form, raw } from "./attack-world.ts";

const bodies = (answer: string, ...list: readonly string[]) => all(answer, ...list.map((body) => raw({ body })));
const rest = "&currency=usd&source=tok_visa";
const amounts = (answer: string, ...list: readonly string[]) =>
  bodies(answer, ...list.map((amount) => `amount=${amount}${rest}`));
const typed = (type: string, body = form) => raw({ type: [type], body });
const formType = "application/x-www-form-urlencoded";
const meter = (body: string) =>
  raw({ target: "/v2/money_management/outbound_payments", type: ["application/json"], body });

/** Bodies and what they say of money. */
export const bodyRows: readonly AttackRow[] = [
  {
    id: "A35",
    what: "an amount twice, as a list, with an index, as a group",
    shots: [
      ...bodies("400 duplicate_parameter", `amount=1&amount=100${rest}`, `amount=1&%61mount=100${rest}`),
      ...bodies(
        "400 malformed_parameter",
        `amount[]=100${rest}`,
        `amount=1&amount[]=100${rest}`,
        `amount[0]=1${rest}`,
        `amount[a]=5${rest}`,
      ),
    ],
  },
  {
    id: "A36",
    what: "amounts that are not written plainly",
    shots: amounts(
      "400 malformed_parameter",
      "+100",
      "%20100",
      "1e3",
      "100.0",
      "0x64",
      "-5",
      "0",
      "00100",
      "",
      "%D9%A3",
      "9".repeat(20),
    ),
  },
  {
    id: "A37",
    what: "names that are nearly known",
    shots: [
      ...bodies("400 unknown_parameter", `Amount=1${rest}`, ` amount=1${rest}`, `amount%00=1${rest}`),
      ...bodies("400 malformed_parameter", `amount=1;amount=100${rest}`),
    ],
  },
  {
    id: "A38",
    what: "a body of another type than it says, or of none",
    shots: [
      ...bodies("400 malformed_parameter", '{"amount":4900,"currency":"usd"}'),
      ...all(
        "415 wrong_content_type",
        typed("application/json"),
        typed("application/json", '{"amount":4900}'),
        typed("application/json\t; x"),
        typed(" application/json garbage"),
        typed(`${formType}; charset=utf-16`),
        typed("multipart/form-data; boundary=x"),
        raw({ type: [] }),
      ),
    ],
  },
  {
    id: "A39",
    what: "JSON that two parsers read differently",
    policy: { allowedEndpoints: ["POST /v2/money_management/outbound_payments"] },
    shots: [
      ...all(
        "400 malformed_body",
        meter('{"amount":{"value":1,"value":100,"currency":"usd"}}'),
        meter('\xef\xbb\xbf{"description":"a"}'),
        meter('{"description":"a"} x'),
        meter(`{"metadata":${"[".repeat(10_000)}${"]".repeat(10_000)}}`),
        meter('{"description":"\\ud800"}'),
      ),
      ...all("400 unknown_parameter", meter('{"amuont":1}')),
    ],
  },
  {
    id: "A40",
    what: "a compressed body",
    shots: all("415 encoded_body", raw({ lines: ["Content-Encoding: gzip"] })),
  },
  {
    id: "A41",
    what: "money that does not stand in a known amount",
    policy: { allowedEndpoints: ["POST /v1/charges"] },
    shots: [
      ...all(
        "403 endpoint_not_allowed",
        ...[
          "/v1/payment_intents/pi_1/confirm",
          "/v1/payment_intents/pi_1/capture",
          "/v1/payment_intents/pi_1",
          "/v1/invoices/in_1/pay",
          "/v1/payouts",
        ].map((target) => raw({ target, body: "metadata[a]=b" })),
      ),
    ],
  },
  {
    id: "A42",
    what: "another currency than the cap's",
    shots: [
      ...all(
        "403 currency_not_allowed",
        raw({ body: "amount=4900&currency=jpy&source=tok_visa", key: ["jpy"] }),
        raw({ body: "amount=4900&currency=JPY&source=tok_visa", key: ["JPY"] }),
        raw({ body: "amount=4900&currency=kwd&source=tok_visa", key: ["kwd"] }),
      ),
      ...bodies("400 malformed_parameter", "amount=4900&currency=usd%20&source=tok_visa"),
    ],
  },
];

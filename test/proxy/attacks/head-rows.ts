import { all, type AttackRow, unread } from "./attack-row.ts";
import { form, hostName, raw, TOKEN } from "./attack-world.ts";

const targets = (answer: string, ...list: readonly string[]) => all(answer, ...list.map((target) => raw({ target })));
const framed = (...framing: readonly string[]) => raw({ framing, body: "0\r\n\r\n" });
const length = `Content-Length: ${form.length}`;

/** Request lines and paths, framing and headers. */
export const headRows: readonly AttackRow[] = [
  {
    id: "A01",
    what: "another host as a whole URI",
    shots: targets("400 invalid_target", "http://evil.test/v1/refunds"),
  },
  { id: "A02", what: "another host after two slashes", shots: targets("400 invalid_target", "//evil.test/v1/charges") },
  {
    id: "A03",
    what: "another host after a backslash",
    shots: targets("400 invalid_target", "/\\evil.test/v1/charges"),
  },
  {
    id: "A04",
    what: "dot segments",
    shots: targets("400 invalid_target", "/v1/charges/../refunds", "/v1/./charges", "/v1/charges/.."),
  },
  {
    id: "A05",
    what: "escaped dot segments",
    shots: targets("400 invalid_target", "/v1/charges/%2e%2e/refunds", "/v1/charges/%2E./refunds"),
  },
  {
    id: "A06",
    what: "escaped slashes and backslashes",
    shots: targets("400 invalid_target", "/v1/charges%2f..%2frefunds", "/v1/charges%5crefunds"),
  },
  {
    id: "A07",
    what: "path parameters",
    shots: targets("400 invalid_target", "/v1/charges/..;a=b/refunds", "/v1/charges;x=1"),
  },
  {
    id: "A08",
    what: "fragments",
    shots: targets("400 invalid_target", "/v1/charges#/refunds", "/v1/charges%23"),
  },
  {
    id: "A09",
    what: "an empty segment, a slash at the end, another case",
    shots: [
      ...targets("400 invalid_target", "/v1//charges"),
      ...targets("404 unknown_endpoint", "/v1/charges/", "/V1/Charges"),
    ],
  },
  {
    id: "A10",
    what: "escapes of escapes, of NUL and of other scripts",
    shots: targets(
      "400 invalid_target",
      "/v1/%252e%252e/charges",
      "/v1/charges%00",
      "/v1/charg%D0%B5s",
      "/v1/charges/%E3%80%82%E3%80%82/refunds",
    ),
  },
  {
    id: "A11",
    what: "NUL, tab and raw UTF-8 in the target, no slash at its beginning",
    shots: unread(
      "400 invalid_request",
      raw({ target: "/v1/charges\0" }),
      raw({ target: "/v1/\tcharges" }),
      raw({ target: "/v1/charg\xd0\xb5s" }),
      raw({ target: "v1/charges" }),
    ),
  },
  {
    id: "A12",
    what: "OPTIONS *, TRACE, CONNECT",
    shots: [
      ...all("405 method_not_allowed", raw({ method: "OPTIONS", target: "*" }), raw({ method: "TRACE" })),
      ...unread("closed", raw({ method: "CONNECT", target: "evil.test:443", host: ["evil.test:443"] })),
    ],
  },
  {
    id: "A13",
    what: "a path of 64 KB, a query of 9 KB",
    shots: [
      ...unread("431 headers_too_large", raw({ target: `/v1/${"a".repeat(65_536)}` })),
      ...all("414 uri_too_long", raw({ method: "GET", target: `/v1/charges?${"a".repeat(9_216)}` })),
    ],
  },
  {
    id: "A14",
    what: "another method in a parameter",
    shots: all(
      "400 unknown_parameter",
      raw({ body: `${form}&_method=delete` }),
      raw({ lines: ["X-HTTP-Method-Override: DELETE"], body: "_method=delete" }),
    ),
  },
  {
    id: "A16",
    what: "a body whose end is said in two ways, or in none",
    shots: [
      ...unread(
        "400 invalid_request",
        framed("Content-Length: 5", "Transfer-Encoding: chunked"),
        framed("Content-Length: 5", "Content-Length: 6"),
        framed("Content-Length: 5", "Content-Length: 5"),
        framed("Content-Length: +5"),
        framed("Content-Length: 5, 5"),
        framed("Transfer-Encoding: chunked, identity"),
        framed("Content-Length : 5"),
        framed("X-Folded: a", " b", "Content-Length: 5"),
        raw().replaceAll("\r\n", "\n"),
      ),
      ...all("400 invalid_framing", framed("Transfer-Encoding: xchunked")),
      ...all(
        "400 invalid_request",
        raw({ framing: ["Transfer-Encoding: chunked"], body: "zz\r\nabc\r\n0\r\n\r\n" }),
        raw({ framing: ["Transfer-Encoding: chunked"], body: `3;${"a".repeat(20_000)}\r\nabc\r\n0\r\n\r\n` }),
      ),
    ],
  },
  {
    id: "A17",
    what: "a coding before chunked",
    shots: all("400 invalid_framing", framed("Transfer-Encoding: identity, chunked")),
  },
  {
    id: "A18",
    what: "two Hosts",
    shots: all("400 invalid_host", raw({ host: [hostName, "evil.test"] }), raw({ host: [hostName, hostName] })),
  },
  {
    id: "A19",
    what: "a Host of another name",
    shots: all(
      "421 unknown_host",
      ...["evil/?", "x#", "evil.test", `${hostName}.evil.test`].map((host) => raw({ host: [host] })),
    ),
  },
  {
    id: "A20",
    what: "two Authorizations",
    shots: unread(
      "401 ambiguous_credentials",
      raw({ authorization: [`Bearer ${TOKEN}`, "Bearer other"] }),
      raw({ authorization: [`Bearer ${TOKEN}`, `Bearer ${TOKEN}`] }),
    ),
  },
  { id: "A21", what: "two Idempotency-Keys", shots: all("400 duplicate_header", raw({ key: ["a", "b"] })) },
  {
    id: "A22",
    what: "two Content-Types",
    shots: all(
      "415 duplicate_header",
      raw({ type: ["application/x-www-form-urlencoded", "application/json"] }),
      raw({ type: ["application/x-www-form-urlencoded", "application/x-www-form-urlencoded"] }),
    ),
  },
  {
    id: "A23",
    what: "65 and 2 500 header lines",
    shots: all(
      "431 too_many_headers",
      raw({ lines: Array.from({ length: 60 }, () => "X-A: b") }),
      raw({ lines: Array.from({ length: 2_500 }, () => "a:") }),
    ),
  },
  {
    id: "A24",
    what: "a body on GET, a body that waits for a go-ahead which its head forbids, credentials in a trailer",
    shots: [
      ...all("400 unexpected_body", raw({ method: "GET", target: "/v1/charges/ch_1", body: "a=1" })),
      ...all(
        "403 endpoint_not_allowed",
        raw({ target: "/v1/topups", lines: ["Expect: 100-continue", length], framing: [], body: "" }),
      ),
      ...unread(
        "401 missing_credentials",
        raw({
          authorization: [],
          framing: ["Transfer-Encoding: chunked"],
          body: `3\r\na=1\r\n0\r\nAuthorization: Bearer ${TOKEN}\r\n\r\n`,
        }),
      ),
    ],
  },
  {
    id: "A26",
    what: "another account",
    shots: all(
      "403 header_not_allowed",
      raw({ lines: ["Stripe-Account: acct_x"] }),
      raw({ lines: ["sTRIPE-aCCOUNT: acct_x"] }),
      raw({ lines: ["Stripe-Account: acct_x", "Stripe-Account: acct_x"] }),
      raw({ lines: ["Stripe-Context: acct_x"] }),
    ),
  },
  {
    id: "A27",
    what: "another version of the API than the policy's",
    policy: { proxy: { apiVersions: ["2026-10-28.endive"] } },
    shots: [
      ...all(
        "400 api_version_not_allowed",
        raw({ lines: ["Stripe-Version: 2010-01-01"] }),
        raw({ lines: ["Stripe-Version: 2027-01-01.preview"] }),
      ),
      ...all(
        "400 duplicate_header",
        raw({ lines: ["Stripe-Version: 2026-10-28.endive", "Stripe-Version: 2010-01-01"] }),
      ),
    ],
  },
  {
    id: "A30",
    what: "no Idempotency-Key where money moves",
    shots: all("400 idempotency_key_required", raw({ key: [] })),
  },
  {
    id: "A31",
    what: "names that every object of JavaScript has",
    shots: [
      ...all("400 unknown_parameter", raw({ body: `${form}&__proto__=1` }), raw({ body: `${form}&constructor=1` })),
      ...all(
        "400 malformed_parameter",
        raw({ body: `${form}&metadata[__proto__]=1` }),
        raw({ body: `${form}&metadata[hasOwnProperty]=1` }),
      ),
    ],
  },
  {
    id: "A32",
    what: "line ends in what is stated about a spend",
    shots: [
      ...all("400 malformed_parameter", raw({ body: `${form}&customer=cus_1%0d%0aSet-Cookie:%20a` })),
      ...all(
        "400 malformed_identity",
        raw({
          body: `${form}&metadata[holdfast_customer]=a%0d%0ab&metadata[holdfast_period]=p&metadata[holdfast_purpose]=q`,
        }),
      ),
      ...unread("400 invalid_request", raw({ lines: ["Holdfast-Spend: customer=a\rb; period=p; purpose=q"] })),
      ...unread("400 invalid_request", raw({ key: ["a\rb"] })),
    ],
  },
];

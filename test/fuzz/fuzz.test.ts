import { expect, test } from "vitest";
import { stripeDialect } from "../../server/proxy/stripe-dialect.ts";
import type { VendorDialect } from "../../server/proxy/vendor.ts";
import { fuzz } from "./fuzz.ts";

test("what is accepted is read by everybody as it was read here", () => {
  const { accepted, refused, outside, findings } = fuzz({ requests: 20_000, seed: 1, dialect: stripeDialect });
  expect(findings).toEqual([]);
  expect(outside).toBe(0);
  // A generator that makes nothing acceptable, or nothing wrong, would find nothing.
  expect(accepted).toBeGreaterThan(3_000);
  for (const code of ["duplicate_parameter", "malformed_parameter", "unknown_parameter", "invalid_target"]) {
    expect(refused.get(code), code).toBeGreaterThan(100);
  }
});

/** Mistakes that a reader of requests may have: each is seen only because others read the same request differently. */
const mistakes: readonly (readonly [string, VendorDialect])[] = [
  [
    "of two parameters the last counts",
    {
      ...stripeDialect,
      readBody(head, body) {
        const pairs = Buffer.from(body)
          .toString("latin1")
          .split("&")
          .map((part) => [part.split("=")[0] ?? "", part] as const);
        return stripeDialect.readBody(head, Buffer.from([...new Map(pairs).values()].join("&"), "latin1"));
      },
    },
  ],
  [
    "a path is resolved before it is read",
    {
      ...stripeDialect,
      readHead(head) {
        const resolved = URL.parse(head.target, "http://proxy.test");
        const target = resolved === null ? head.target : resolved.pathname + resolved.search;
        return stripeDialect.readHead({ ...head, target });
      },
    },
  ],
  [
    "of two headers the first counts",
    {
      ...stripeDialect,
      readHead(head) {
        const seen = new Set<string>();
        const rawHeaders = head.rawHeaders.filter((_, at) => {
          const name = (head.rawHeaders[at - (at % 2)] ?? "").toLowerCase();
          if (at % 2 === 0) return !seen.has(name);
          return !seen.has(name) && seen.add(name) !== undefined;
        });
        return stripeDialect.readHead({ ...head, rawHeaders });
      },
    },
  ],
  [
    "spaces around a name are dropped",
    {
      ...stripeDialect,
      readBody(head, body) {
        const text = Buffer.from(body).toString("latin1");
        return stripeDialect.readBody(head, Buffer.from(text.replaceAll(/(?:%20|\+)(?==)/g, ""), "latin1"));
      },
    },
  ],
];

test.each(mistakes)("the mistake is found: %s", (_, dialect) => {
  expect(fuzz({ requests: 10_000, seed: 1, dialect }).outside).toBeGreaterThan(0);
});

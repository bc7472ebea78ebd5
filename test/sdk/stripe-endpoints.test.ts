import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { findStripeEndpoint } from "../../sdk/stripe-endpoints.ts";
import { STRIPE_ENDPOINTS } from "../../sdk/stripe-endpoint-table.ts";

const resources = join(dirname(fileURLToPath(import.meta.resolve("stripe"))), "resources");

/** Every write that the installed Stripe client can make, with its ids as one placeholder. */
function writesOfStripe(): string[] {
  const writes = new Set<string>();
  for (const file of readdirSync(resources, { recursive: true, encoding: "utf8" })) {
    if (!file.endsWith(".js")) continue;
    const text = readFileSync(join(resources, file), "utf8");
    for (const [, method, path] of text.matchAll(/_makeRequest\(\s*'(POST|DELETE)',\s*[`']([^`']+)[`']/g)) {
      writes.add(`${method} ${path?.replaceAll(/\$\{[^}]+\}/g, "x")}`);
    }
  }
  return [...writes];
}

describe("the table of Stripe's writes", () => {
  it("knows every write of the installed Stripe client", () => {
    const writes = writesOfStripe();
    expect(writes.length).toBeGreaterThan(350);
    const unknown = writes.filter((write) => {
      const [method = "", path = ""] = write.split(" ");
      return findStripeEndpoint(method, path) === undefined;
    });
    expect(unknown).toEqual([]);
  });

  it("is what the reviewed JSON says", () => {
    const rows: { m: string; p: string; effect: string }[] = JSON.parse(
      readFileSync(new URL("../../tools/data/money-endpoints.json", import.meta.url), "utf8"),
    );
    for (const { m, p, effect } of rows) {
      expect(findStripeEndpoint(m, p.replaceAll(":id", "x"))).toEqual({ endpoint: `${m} ${p}`, effect });
    }
    const listed = Object.values(STRIPE_ENDPOINTS).flatMap((list) => list.match(/(POST|DELETE) /g) ?? []);
    expect(listed.length).toBe(rows.length);
  });

  it.each([
    "/v1//charges",
    "/v1/charges/",
    "/v1/%63harges",
    "/v1/./charges",
    "/v1/../v1/charges",
    "/V1/charges",
    "v1/charges",
    "/v1/charges\u0000",
  ])("does not know the path %j", (path) => {
    expect(findStripeEndpoint("POST", path)).toBeUndefined();
  });
});

import { readFileSync } from "node:fs";
import { create, getOption } from "@bufbuild/protobuf";
import { field as fieldRules } from "@bufbuild/protovalidate/gen/buf/validate/validate_pb.js";
import { CapScopeSchema } from "@holdfast/api/holdfast/v1/cap_pb";
import { AuthorizeSpendRequestSchema } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { CreateBillingPeriodKeyRequestSchema, VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { endpointAllowed, isEndpoint } from "../../server/domain/endpoint.ts";
import { InvalidRequestError } from "../../server/rpc/errors.ts";
import { validateMessage } from "../../server/rpc/validate.ts";
import { endpointAttacks } from "../support/endpoint-attacks.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

/** What the grant decides by. */
async function allowedInSql(templates: readonly string[], endpoint: string): Promise<boolean> {
  const { rows } = await database.pool.query<{ allowed: boolean }>(
    "select holdfast.endpoint_allowed($1::text[], $2::text) as allowed",
    [templates, endpoint],
  );
  return rows[0]?.allowed ?? true;
}

/** The fields that validation refuses. */
function refusedFields(validate: () => void): string[] {
  try {
    validate();
    return [];
  } catch (error) {
    if (!(error instanceof InvalidRequestError)) throw error;
    return error.violations.map((one) => one.field);
  }
}

const policy = ["POST /v1/charges", "GET /v1/charges/:id", "POST /v1/charges/:id/capture", "POST /v1/:kind"];

describe("an endpoint that is not canonical", () => {
  test.each(endpointAttacks)("%s is none", async (_what, endpoint) => {
    expect(isEndpoint(endpoint)).toBe(false);
    expect(endpointAllowed(policy, endpoint)).toBe(false);
    const asked = create(AuthorizeSpendRequestSchema, { endpoint });
    expect(refusedFields(() => validateMessage(AuthorizeSpendRequestSchema, asked))).toContain("endpoint");
    const key = create(VaultKeySchema, { vendor: "stripe", allowedEndpoints: ["POST /v1/x", endpoint] });
    expect(refusedFields(() => validateMessage(VaultKeySchema, key))).toContain("allowed_endpoints[1]");
    const scope = create(CapScopeSchema, { endpoint });
    expect(refusedFields(() => validateMessage(CapScopeSchema, scope))).toContain("endpoint");
    const period = create(CreateBillingPeriodKeyRequestSchema, { allowedEndpoints: [endpoint] });
    expect(refusedFields(() => validateMessage(CreateBillingPeriodKeyRequestSchema, period))).toContain(
      "allowed_endpoints[0]",
    );
  });

  test.each(endpointAttacks.filter(([, endpoint]) => !endpoint.includes("\0")))(
    "%s is allowed by no exact template in the database either",
    async (_what, endpoint) => {
      expect(
        await allowedInSql(["POST /v1/charges", "POST /v1/refunds", "POST /v1/charges/:id/capture"], endpoint),
      ).toBe(false);
    },
  );

  test.each(["..", ".", "...", ""])("a parameter does not match the segment '%s' in the database", async (segment) => {
    expect(await allowedInSql(["GET /v1/charges/:id"], `GET /v1/charges/${segment}`)).toBe(false);
  });
});

describe("a canonical endpoint", () => {
  test.each([
    "POST /v1/charges",
    "GET /v1/charges/:id",
    "POST /v1/invoices/:invoice_id/pay",
    "POST /2010-04-01/Accounts/AC0123/Messages.json",
    "DELETE /a",
    "PUT /a_b/c-d/e.f",
  ])("%s", (endpoint) => {
    expect(isEndpoint(endpoint)).toBe(true);
    const asked = create(AuthorizeSpendRequestSchema, { endpoint });
    expect(refusedFields(() => validateMessage(AuthorizeSpendRequestSchema, asked))).not.toContain("endpoint");
  });

  test("every write endpoint of Stripe is one", () => {
    const text = readFileSync(new URL("../../tools/data/money-endpoints.json", import.meta.url), "utf8");
    const found = [...text.matchAll(/"((?:POST|DELETE|PUT|PATCH) \/[^"]*)"/g)].map(([, endpoint = ""]) => endpoint);
    const templates = found.map((endpoint) => endpoint.replaceAll(/\{(\w+)\}/g, ":$1"));
    expect(templates.filter((endpoint) => !isEndpoint(endpoint))).toEqual([]);
  });
});

const segment = fc.constantFrom("v1", "V1", "charges", "Charges", "ch_1", "a.b", ":id", ":kind", "x-y");
const endpoint = fc
  .tuple(fc.constantFrom("GET", "POST"), fc.array(segment, { minLength: 1, maxLength: 4 }))
  .map(([method, segments]) => `${method} /${segments.join("/")}`);

test("the database and this function allow the same of every canonical endpoint", async () => {
  const cases = fc.sample(fc.tuple(fc.array(endpoint, { maxLength: 3 }), endpoint), { numRuns: 2000, seed: 7 });
  const { rows } = await database.pool.query<{ allowed: boolean[] }>(
    `select array_agg(holdfast.endpoint_allowed(
       (select coalesce(array_agg(t), '{}') from jsonb_array_elements_text(c.one -> 0) as t), c.one ->> 1) order by c.n)
       as allowed
     from jsonb_array_elements($1::jsonb) with ordinality as c (one, n)`,
    [JSON.stringify(cases)],
  );
  const expected = cases.map(([templates, asked]) => endpointAllowed(templates, asked));
  expect(rows[0]?.allowed).toEqual(expected);
  expect(expected.filter(Boolean).length).toBeGreaterThan(20);
});

test("a long text is judged in linear time", () => {
  const patterns = [
    getOption(AuthorizeSpendRequestSchema.field.endpoint, fieldRules),
    getOption(CapScopeSchema.field.endpoint, fieldRules),
  ].map((rules) => (rules.type.case === "string" ? rules.type.value.pattern : ""));
  for (const pattern of patterns) {
    const expression = new RegExp(pattern, "u");
    for (const text of [
      `POST ${"/a".repeat(32_768)}!`,
      `POST /${"a".repeat(65_536)}!`,
      `POST /:${"a".repeat(65_536)}!`,
    ]) {
      // Doubling the text must not square the time; the bound is generous, a quadratic one takes minutes.
      const begun = performance.now();
      expect(expression.test(text)).toBe(false);
      expect(performance.now() - begun).toBeLessThan(2000);
    }
  }
});

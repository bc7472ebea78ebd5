import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { batchJson } from "../../server/store/batch-json.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

const aRequest = fc.record({
  ord: fc.nat(5),
  spend_key: fc.constantFrom("a", "b"),
  generation: fc.constantFrom(1, 2),
  amount_micros: fc.constantFrom("1", "9007199254740993"),
  vendor_reference: fc.constantFrom("", "null", 'q"uote', undefined),
  resolution: fc.constantFrom(undefined, "", "why"),
});

test("whatever the requests have in common, the database reads each as it is", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(aRequest, { maxLength: 6 }), async (requests) => {
      const { rows } = await database.pool.query(
        `select ord, spend_key, generation, amount_micros::text, vendor_reference, resolution
         from jsonb_populate_recordset(
           jsonb_populate_record(null::holdfast.commit_request, $1::jsonb -> 'shared'), $1::jsonb -> 'each')`,
        [batchJson(requests)],
      );
      const whole = requests.map(({ vendor_reference = null, resolution = null, ...others }) => {
        return { ...others, vendor_reference, resolution };
      });
      expect(rows).toEqual(whole);
    }),
    { numRuns: 200, seed: 3 },
  );
});

test("what all have in common is said once", () => {
  const common = { customer_id: "cust_1", lease: undefined };
  expect(
    JSON.parse(
      batchJson([
        { ...common, ord: 1 },
        { ...common, ord: 2 },
        { ...common, ord: 3, lease: "x" },
      ]),
    ),
  ).toEqual({
    shared: { customer_id: "cust_1", ord: 1 },
    each: [{}, { ord: 2 }, { ord: 3, lease: "x" }],
  });
});

import { afterAll, beforeAll, expect, test } from "vitest";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { openGranting, usd } from "../support/granting.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

test("a contradiction that is told again shows the amount and the currency that were told together", async () => {
  const granting = await openGranting(database.pool);
  await granting.cap("all", usd(100));
  const id = await granting.grant();
  await granting.commit(id, { vendorReference: "pi_first" });
  const amount = { currency: "eur", micros: usd(7).micros };
  expect(await granting.commit(id, { vendorReference: "pi_second", amount })).toMatchObject({
    errorReason: "COMMIT_CONTRADICTS",
  });
  await granting.commit(id, { vendorReference: "pi_second", amount: usd(8) });
  const { rows } = await database.pool.query(
    "select currency, amount_micros, counted_micros from holdfast.contradictions where workspace_id = $1",
    [granting.workspace],
  );
  expect(rows).toEqual([{ currency: "usd", amount_micros: usd(8).micros, counted_micros: usd(8).micros }]);
  await granting.expectCountersToAddUp();
});

import { afterAll, beforeAll, expect, test } from "vitest";
import { microsMax, toMicros } from "../../server/domain/money.ts";
import { getCapUsage } from "../../server/store/cap.ts";
import { asks, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

const largest = { currency: "usd", micros: toMicros(microsMax) };

test("charges of the largest amount are all counted, however far above the cap, and the next spend is denied", async () => {
  const granting = await openGranting(database.pool);
  await granting.cap("all", largest);
  const ids = await Promise.all(
    [...Array(20).keys()].map((n) => granting.grant({ customerId: `c${n}`, amount: usd(1) })),
  );
  for (const id of ids) {
    expect(await granting.commit(id, { amount: largest })).toMatchObject({
      overCommitted: true,
      errorReason: undefined,
    });
  }
  await granting.expectCountersToAddUp();
  const committed = 20n * microsMax;
  expect(await granting.counters()).toMatchObject([{ committed, held: 0n }]);
  const [denied] = await granting.authorize(asks({ amount: usd(1) }));
  expect(denied).toMatchObject({ rule: "CAP_HEADROOM", cap: { committed, held: 0n, limit: microsMax } });
  const counter = { window: "", customerId: "" };
  expect(await getCapUsage(database.pool, granting.workspace, "all", counter)).toMatchObject({ committed });
});

test("a hold of the largest amount cannot be raised, and is refunded as a whole", async () => {
  const granting = await openGranting(database.pool);
  await granting.cap("all", largest, { refundsRestoreHeadroom: true });
  const id = await granting.grant({ amount: largest });
  expect(await granting.raise(id, largest)).toMatchObject({ rule: undefined });
  await granting.commit(id, { amount: largest, vendorReference: "ch_1" });
  for (const purpose of ["r1", "r2"]) {
    const refund = await granting.grant({ purpose, amount: largest, direction: "REFUND", refundOf: "ch_1" });
    await granting.commit(refund, { amount: largest });
  }
  expect(await granting.counters()).toMatchObject([{ committed: 0n }]);
  expect(await granting.row(id)).toMatchObject({ refunded_micros: Number(2n * microsMax) });
});

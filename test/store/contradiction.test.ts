import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { bindVendorReference } from "../../server/store/spend.ts";
import { type Asked, attempt, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

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

describe("an object that is reached through the platform's own account once by its id and once without", () => {
  const accounts = ["", "acct_own"] as const;

  async function opened(settlement: "TWO_STEP" | "SEND_ONCE") {
    const granting = await openGranting(database.pool);
    await granting.cap("all", usd(100));
    const made = async (asked: Asked) => {
      const attemptId = attempt();
      const authorization = await granting.grant({ settlement, attemptId, ...asked });
      const bind = async (vendorReference: string) => {
        const command = { vaultKeyId: "main", authorization, attemptId, vendorReference, traceId: "" };
        const how = { vendorState: "", followForMs: 1000 };
        const { errorReason } = await bindVendorReference(database.pool, granting.workspace, { ...command, ...how });
        return errorReason;
      };
      return { authorization, bind };
    };
    return { granting, made };
  }

  test("is bound to one spend", async () => {
    const { made } = await opened("TWO_STEP");
    const [one, other] = [
      await made({ customerId: "a", vendorAccount: accounts[0] }),
      await made({ customerId: "b", vendorAccount: accounts[1] }),
    ];
    expect(await one.bind("pi_1")).toBeUndefined();
    expect(await other.bind("pi_1")).toBe("REFERENCE_BOUND_ELSEWHERE");
  });

  test("settles one spend, and is bound to no other one afterwards", async () => {
    const { granting, made } = await opened("TWO_STEP");
    const [one, other] = [
      await made({ customerId: "a", vendorAccount: accounts[1] }),
      await made({ customerId: "b", vendorAccount: accounts[0] }),
    ];
    const vendorReference = "pi_1";
    expect(await granting.commit(one.authorization, { vendorReference })).toMatchObject({ errorReason: undefined });
    expect(await other.bind(vendorReference)).toBe("REFERENCE_BOUND_ELSEWHERE");
    expect(await granting.commit(other.authorization, { vendorReference })).toMatchObject({
      errorReason: "REFERENCE_ALREADY_COMMITTED",
    });
    expect(await granting.counters()).toMatchObject([{ committed: usd(10).micros, held: usd(10).micros }]);
    await granting.expectCountersToAddUp();
  });

  test("counts once as a contradiction of both", async () => {
    const { granting, made } = await opened("SEND_ONCE");
    for (const [index, vendorAccount] of accounts.entries()) {
      const { authorization } = await made({ customerId: `c${index}`, vendorAccount });
      await granting.commit(authorization, { vendorReference: `ch_${index}` });
      expect(await granting.commit(authorization, { vendorReference: "ch_second" })).toMatchObject({
        errorReason: "COMMIT_CONTRADICTS",
      });
    }
    expect(await granting.counters()).toMatchObject([{ committed: usd(30).micros }]);
    await granting.expectCountersToAddUp();
  });
});

import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { bindVendorReference } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

const hour = 3_600_000;
const bodyA = { bodyFingerprint: "a".repeat(64) };
const bodyB = { bodyFingerprint: "b".repeat(64) };
const strict = { sameBodyRequired: true };
let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
});

const ask = async (asked: Asked) => (await granting.authorize(asks(asked)))[0];
const refused = (...differingFields: string[]) => ({
  disposition: undefined,
  errorReason: "SPEND_MISMATCH",
  differingFields,
});

async function bound(asked: Asked): Promise<void> {
  const attemptId = attempt();
  const authorization = await granting.grant({ ...asked, attemptId });
  const result = await bindVendorReference(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization,
    attemptId,
    vendorReference: "pi_1",
    vendorState: "requires_action",
    followForMs: hour,
    traceId: "",
  });
  expect(result).toMatchObject({ errorReason: undefined });
}

describe("a request that rules out another body", () => {
  test("is refused where the spend is committed with another one, and answered where it is the same", async () => {
    await granting.commit(await granting.grant(bodyA));
    expect(await ask({ ...bodyB, ...strict })).toMatchObject(refused("body_fingerprint"));
    expect(await ask({ ...bodyA, ...strict })).toMatchObject({ disposition: "ALREADY_COMMITTED", differingFields: [] });
    expect(await ask({ ...bodyB, ...strict, amount: usd(11) })).toMatchObject(
      refused("spend.amount.amount", "body_fingerprint"),
    );
    expect(await ask({ ...bodyA, ...strict, amount: usd(11) })).toMatchObject({ disposition: "ALREADY_COMMITTED" });
    expect(await ask(bodyB)).toMatchObject({ disposition: "ALREADY_COMMITTED", differingFields: [] });
  });

  test.each(["TWO_STEP", "SEND_ONCE"] as const)("is refused where the spend is bound: %s", async (settlement) => {
    await bound({ ...bodyA, settlement });
    const going = { settlement, continueVendorReference: "pi_1" };
    for (const more of [{ settlement }, going]) {
      expect(await ask({ ...bodyB, ...strict, ...more })).toMatchObject(refused("body_fingerprint"));
    }
    expect(await ask({ ...bodyB, settlement })).toMatchObject({ disposition: "IN_PROGRESS" });
    expect(await ask({ ...bodyA, ...strict, ...going })).toMatchObject({ disposition: "GRANTED" });
  });

  test("is compared only where both sides say what their body is", async () => {
    await granting.commit(await granting.grant({}));
    expect(await ask({ ...bodyB, ...strict })).toMatchObject({ disposition: "ALREADY_COMMITTED" });
    await granting.commit(await granting.grant({ ...bodyA, customerId: "cust_2" }));
    expect(await ask({ ...strict, customerId: "cust_2" })).toMatchObject({ disposition: "ALREADY_COMMITTED" });
  });

  test("learns nothing of another vault key's body", async () => {
    await granting.vaultKey("other");
    await granting.commit(await granting.grant(bodyA));
    expect(await ask({ ...bodyB, ...strict, vaultKeyId: "other" })).toMatchObject({
      disposition: "ALREADY_COMMITTED",
      differingFields: [],
      authorization: undefined,
    });
  });

  test("may correct what was refused before, and what was never bound", async () => {
    await granting.refuse(await granting.grant(bodyA));
    expect(await ask({ ...bodyB, ...strict })).toMatchObject({ disposition: "ALREADY_FAILED" });
    expect(await ask({ ...bodyB, ...strict, retryAfterGeneration: 1 })).toMatchObject({ disposition: "GRANTED" });
    const twoStep = { settlement: "TWO_STEP", customerId: "cust_2" } as const;
    await granting.grant({ ...bodyA, ...twoStep });
    await clock.advance(600_000);
    expect(await ask({ ...bodyB, ...strict, ...twoStep })).toMatchObject({
      disposition: "GRANTED",
      authorization: { generation: 2 },
    });
  });
});

describe("what is sent again", () => {
  const resend = { settlement: "RESEND_SAFE", resendSafeForMs: hour } as const;
  const [mine, others] = [{ credentialFingerprint: "1".repeat(32) }, { credentialFingerprint: "2".repeat(32) }];

  test.each<[string, Asked, Asked, readonly string[] | undefined]>([
    ["the same body and credential", { ...bodyA, ...mine }, { ...bodyA, ...mine }, undefined],
    ["another credential", { ...bodyA, ...mine }, { ...bodyA, ...others }, ["credential_fingerprint"]],
    ["a credential instead of none", bodyA, { ...bodyA, ...mine }, ["credential_fingerprint"]],
    ["another body", { ...bodyA, ...mine }, { ...bodyB, ...mine }, ["body_fingerprint"]],
    [
      "another body and credential",
      { ...bodyA, ...mine },
      { ...bodyB, ...others },
      ["body_fingerprint", "credential_fingerprint"],
    ],
    ["a body that nobody knows", mine, { ...bodyA, ...others }, undefined],
  ])("%s", async (_name, first, second, differingFields) => {
    await granting.grant({ ...resend, ...first });
    await clock.advance(600_000);
    expect(await ask({ ...resend, ...second })).toMatchObject(
      differingFields === undefined
        ? { disposition: "GRANTED", mayHaveBeenSent: true }
        : { disposition: "IN_DOUBT", differingFields },
    );
  });

  test("another credential does not start an object anew that was never bound", async () => {
    await granting.grant({ settlement: "TWO_STEP", ...bodyA, ...mine });
    await clock.advance(600_000);
    expect(await ask({ settlement: "TWO_STEP", ...bodyA, ...others })).toMatchObject({
      disposition: "GRANTED",
      authorization: { generation: 1 },
    });
  });
});

import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { recover } from "../../server/store/instance.ts";
import { sweepExpired, voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

// Between a promotion and `recover`: rows may be older than what was acknowledged, so they prove nothing.
let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
  granting = await openGranting(database.pool);
  await granting.cap("everything", usd(1000));
});
afterAll(() => database.close());
beforeEach(async () => {
  await recover(database.connection, { force: false });
  await clock.set("2026-11-15T12:00:00Z");
});

const promoted = () => database.pool.query("update holdfast.instance set timeline = timeline + 1");

test("a hold that runs out is not swept as never bound: its bind may be what was lost", async () => {
  const asked = { settlement: "TWO_STEP", customerId: "swept" } as const;
  await granting.grant(asked);
  await promoted();
  await clock.advance(11 * 60_000);
  expect(await sweepExpired(database.pool, granting.workspace, 200)).toBe(0);
  await recover(database.connection, { force: false });
  const [answer] = await granting.authorize(asks(asked));
  expect(answer?.disposition).toBe("IN_DOUBT");
});

test.each([
  ["NEVER_SENT", 0],
  ["NOT_EXECUTED", 429],
  ["VENDOR_REFUSED", 401],
] as const)("%s voids nothing: a takeover that charged may be what was lost", async (evidence, vendorStatus) => {
  const attemptId = attempt();
  const authorization = await granting.grant({ attemptId, customerId: evidence.toLowerCase() });
  await promoted();
  const voided = voidSpend(database.pool, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    attemptId,
    evidence,
    vendorStatus,
    vendorReplayed: false,
    vendorReference: "",
    reason: "",
    traceId: "",
  });
  await expect(voided).rejects.toThrow();
  expect((await granting.row(authorization)).state).toBe("HELD");
});

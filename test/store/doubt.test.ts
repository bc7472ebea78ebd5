import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization, AuthorizationId } from "../../server/domain/spend.ts";
import { bindVendorReference, reportUnknown, sweepExpired, voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

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

const minute = 60_000;
const hour = 60 * minute;

async function doubtTime(id: AuthorizationId): Promise<unknown> {
  const { in_doubt_time: time, state } = await granting.row(id);
  return time === null ? state : new Date(time as string).toISOString();
}

const sweep = () => sweepExpired(database.pool, granting.workspace, 1000);
const calls = (authorization: AuthorizationId, attemptId: string) => ({
  vaultKeyId: "main",
  authorization,
  attemptId,
  traceId: "",
});

async function held(asked: Asked = {}): Promise<{ one: Authorization; attemptId: string }> {
  const attemptId = attempt();
  return { one: await granting.grant({ attemptId, ...asked }), attemptId };
}

const bind = (id: AuthorizationId, attemptId: string, vendorState: string) =>
  bindVendorReference(database.pool, granting.workspace, {
    ...calls(id, attemptId),
    vendorReference: "pi_1",
    vendorState,
    followForMs: hour,
  });

const unknown = (id: AuthorizationId, attemptId: string) =>
  reportUnknown(database.pool, granting.workspace, { ...calls(id, attemptId), reason: "" });

describe("an authorization is in doubt since", () => {
  test("its attempt has said so, and a second report changes nothing", async () => {
    const { one, attemptId } = await held();
    await clock.advance(minute);
    const reported = await unknown(one, attemptId);
    expect(reported.authorization?.inDoubtTime).toBe(BigInt(Date.parse("2026-11-15T12:01:00Z")) * 1000n);
    await clock.advance(minute);
    await unknown(one, attemptId);
    expect(await doubtTime(one)).toBe("2026-11-15T12:01:00.000Z");
  });

  test("its hold ran out, whenever the sweep came by", async () => {
    const { one } = await held();
    await clock.advance(2 * hour);
    await sweep();
    expect(await doubtTime(one)).toBe("2026-11-15T12:10:00.000Z");
  });

  test("its hold ran out, whenever the next attempt or the old one learned of it", async () => {
    const { one } = await held();
    const second = await held({ customerId: "c2" });
    await clock.advance(2 * hour);
    const [decision] = await granting.authorize(asks());
    expect(decision?.authorization).toMatchObject({
      state: "IN_DOUBT",
      inDoubtTime: BigInt(Date.parse("2026-11-15T12:10:00Z")) * 1000n,
    });
    await unknown(second.one, second.attemptId);
    expect([await doubtTime(one), await doubtTime(second.one)]).toEqual([
      "2026-11-15T12:10:00.000Z",
      "2026-11-15T12:10:00.000Z",
    ]);
  });

  test.each([
    ["one call", { settlement: "SEND_ONCE", holdForMs: minute }, "2026-11-15T13:00:00.000Z"],
    ["two-step whose hold lasts longer", { settlement: "TWO_STEP", holdForMs: 3 * hour }, "2026-11-15T15:00:00.000Z"],
  ] as const)("its object was followed long enough: %s", async (_kind, asked, since) => {
    const { one, attemptId } = await held(asked);
    await bind(one, attemptId, "processing");
    await clock.advance(4 * hour);
    await sweep();
    expect(await doubtTime(one)).toBe(since);
  });

  test("evidence was given that proves nothing", async () => {
    const { one, attemptId } = await held();
    await clock.advance(minute);
    await voidSpend(database.pool, granting.workspace, {
      actor: { kind: "vault_key", id: "main" },
      authorization: one,
      attemptId,
      evidence: "VENDOR_REFUSED",
      vendorStatus: 500,
      vendorReplayed: false,
      vendorReference: "",
      reason: "",
      traceId: "",
    });
    expect(await doubtTime(one)).toBe("2026-11-15T12:01:00.000Z");
  });
});

describe("an authorization is no longer in doubt", () => {
  test("when it is taken over, followed, committed or voided", async () => {
    const taken = await held({ customerId: "c1", settlement: "TWO_STEP" });
    const followed = await held({ customerId: "c2" });
    const committed = await held({ customerId: "c3" });
    const voided = await held({ customerId: "c4", settlement: "TWO_STEP", holdForMs: minute });
    for (const { one, attemptId } of [taken, followed, committed, voided]) await unknown(one, attemptId);
    await granting.authorize(asks({ customerId: "c1", settlement: "TWO_STEP" }));
    await bind(followed.one, followed.attemptId, "processing");
    await granting.commit(committed.one);
    await clock.advance(2 * minute);
    await sweep();
    expect(await Promise.all([taken, followed, committed, voided].map(({ one }) => doubtTime(one)))).toEqual([
      "HELD",
      "HELD",
      "COMMITTED",
      "VOIDED",
    ]);
  });
});

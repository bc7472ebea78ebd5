import type pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { AuthorizationId, AuthorizeDecision } from "../../server/domain/spend.ts";
import { acquireBillingLease } from "../../server/store/lease.ts";
import { authorizeBatch } from "../../server/store/authorize.ts";
import { bindVendorReference, reportUnknown, sweepExpired, voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
import { openPaused, type Paused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

const hour = 3_600_000;
const day = 24 * hour;
let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
let paused: Paused;

beforeAll(async () => {
  database = await createTestDatabase({ pool: { max: 20, lockTimeoutMs: 20_000, statementTimeoutMs: 30_000 } });
  clock = await replaceClock(database.pool);
});
afterAll(() => database.close());
beforeEach(async () => {
  await clock.set("2026-11-15T12:00:00Z");
  granting = await openGranting(database.pool);
  paused = await openPaused(database.pool);
});
afterEach(() => paused.release());

async function bind(id: AuthorizationId, attemptId: string, vendorState: string, vendorReference = "py_1") {
  return await bindVendorReference(database.pool, granting.workspace, {
    vaultKeyId: "main",
    authorization: id,
    attemptId,
    vendorReference,
    vendorState,
    followForMs: day,
    traceId: "",
  });
}

const settlements: Readonly<Record<string, Asked>> = {
  TWO_STEP: { settlement: "TWO_STEP" },
  RESEND_SAFE: { settlement: "RESEND_SAFE", resendSafeForMs: hour },
  SEND_ONCE: { settlement: "SEND_ONCE" },
};

/** A spend whose vendor object is followed in the state "processing". */
async function followed(asked: Asked = {}) {
  const attemptId = attempt();
  const id = await granting.grant({ ...asked, attemptId });
  expect(await bind(id, attemptId, "processing")).toMatchObject({ errorReason: undefined });
  return { id, attemptId };
}

async function ask(asked: Asked, on: pg.Pool | pg.PoolClient = database.pool): Promise<AuthorizeDecision | undefined> {
  return (await authorizeBatch(on, granting.workspace, [asks(asked)]))[0];
}

const going: Asked = { continueVendorReference: "py_1" };
const answer = (one: AuthorizeDecision | undefined) => one?.rule ?? one?.errorReason ?? one?.disposition;

describe.each(Object.entries(settlements))("a followed object of a spend that is %s", (settlement, asked) => {
  test("is IN_PROGRESS with its reference until it is followed no longer", async () => {
    await followed(asked);
    await clock.advance(day - 1);
    expect(await ask(asked)).toMatchObject({
      disposition: "IN_PROGRESS",
      authorization: { vendorReference: "py_1", vendorState: "processing" },
    });
    await clock.advance(1);
    expect(answer(await ask(asked))).toBe(settlement === "TWO_STEP" ? "GRANTED" : "IN_DOUBT");
  });

  test("is taken over at once by an attempt that names it, once, and followed again by that one", async () => {
    const { id, attemptId } = await followed(asked);
    const next = attempt();
    expect(await ask({ ...asked, ...going, attemptId: next, bodyFingerprint: "b".repeat(64) })).toMatchObject({
      disposition: "GRANTED",
      mayHaveBeenSent: true,
      authorization: { generation: 1, vendorReference: "py_1", vendorState: "", followUntilTime: undefined },
    });
    expect(await granting.row(id)).toMatchObject({ attempt_id: next, told_may_have_been_sent: true, state: "HELD" });
    expect(answer(await ask({ ...asked, ...going }))).toBe("IN_PROGRESS");
    expect(answer(await ask({ ...asked, ...going, attemptId: next }))).toBe("GRANTED");
    expect(await bind(id, attemptId, "processing")).toMatchObject({ errorReason: "ATTEMPT_SUPERSEDED" });
    expect(await bind(id, next, "requires_action")).toMatchObject({ errorReason: undefined });
    expect(answer(await ask({ ...asked, ...going, attemptId: attempt() }))).toBe("GRANTED");
  });

  test("is not taken over by an attempt that names another one, or by another key", async () => {
    await granting.vaultKey("other");
    const { id } = await followed(asked);
    const before = await granting.row(id);
    expect(answer(await ask({ ...asked, continueVendorReference: "py_2" }))).toBe("IN_PROGRESS");
    expect(await ask({ ...asked, ...going, vaultKeyId: "other" })).toMatchObject({
      disposition: "IN_PROGRESS",
      authorization: undefined,
    });
    expect(await granting.row(id)).toEqual(before);
  });

  test("is continued out of doubt, however late", async () => {
    await followed(asked);
    await clock.advance(30 * day);
    await sweepExpired(database.pool, granting.workspace, 100);
    expect(await ask({ ...asked, ...going })).toMatchObject({
      disposition: "GRANTED",
      authorization: { state: "HELD", vendorReference: "py_1" },
    });
  });

  test("is continued only after the policy, the comparison and the fence", async () => {
    await followed(asked);
    const fence = { lease: "nightly", billingPeriod: "2026-11", holderId: "h1", fencingToken: 99n };
    expect(answer(await ask({ ...asked, ...going, fence }))).toBe("FENCING_TOKEN");
    expect(answer(await ask({ ...asked, ...going, amount: usd(11) }))).toBe("SPEND_MISMATCH");
    const { lease } = await acquireBillingLease(database.pool, granting.workspace, {
      vaultKeyId: "main",
      lease: "nightly",
      billingPeriod: "2026-11",
      holderId: "h1",
      ttlMs: hour,
      traceId: "",
    });
    const held = { ...fence, fencingToken: lease.fencingToken };
    expect(answer(await ask({ ...asked, ...going, fence: held }))).toBe("GRANTED");
    await granting.revoke("main");
    expect(answer(await ask({ ...asked, ...going }))).toBe("VAULT_KEY_REVOKED");
  });

  test("of two attempts that name it at once one gets it", async () => {
    await followed(asked);
    expect(answer(await ask({ ...asked, ...going }, paused.client))).toBe("GRANTED");
    const late = ask({ ...asked, ...going });
    await paused.expectBlocking(late);
    await paused.commit();
    expect(answer(await late)).toBe("IN_PROGRESS");
  });

  test("needs its tombstone to be voided, or an operator", async () => {
    const { id, attemptId } = await followed(asked);
    const voiding = (command: object) =>
      voidSpend(database.pool, granting.workspace, {
        actor: { kind: "vault_key", id: "main" },
        authorization: id,
        attemptId,
        evidence: "TOMBSTONE",
        vendorStatus: 402,
        vendorReplayed: false,
        vendorReference: "py_1",
        reason: "",
        traceId: "",
        ...command,
      });
    for (const evidence of ["NEVER_SENT", "VENDOR_REFUSED", "NOT_EXECUTED"] as const) {
      expect(await voiding({ evidence })).toMatchObject({ errorReason: "EVIDENCE_INSUFFICIENT" });
    }
    expect(await voiding({})).toMatchObject({ errorReason: undefined, authorization: { state: "VOIDED" } });
  });
});

test("a one-call is bound only with a state of the vendor", async () => {
  const attemptId = attempt();
  const id = await granting.grant({ attemptId });
  expect(await bind(id, attemptId, "")).toMatchObject({ errorReason: "STATE_NOT_ALLOWED" });
  expect(await bind(id, attemptId, "pending")).toMatchObject({ errorReason: undefined });
  expect(await bind(id, attemptId, "")).toMatchObject({ errorReason: "STATE_NOT_ALLOWED" });
  expect(await bind(id, attemptId, "pending", "py_2")).toMatchObject({ errorReason: "ALREADY_BOUND" });
});

test("what was reported unknown cannot be voided as never sent, nor by a refusal of a first send", async () => {
  const command = (id: AuthorizationId, attemptId: string) => ({
    vaultKeyId: "main",
    authorization: id,
    attemptId,
    traceId: "",
    reason: "timeout",
  });
  for (const swept of [false, true]) {
    const attemptId = attempt();
    const id = await granting.grant({ attemptId, customerId: `${swept}`, holdForMs: swept ? 0 : hour });
    if (swept) await sweepExpired(database.pool, granting.workspace, 100);
    await reportUnknown(database.pool, granting.workspace, command(id, attemptId));
    expect(await granting.row(id)).toMatchObject({ state: "IN_DOUBT", told_may_have_been_sent: true });
    const before = await granting.row(id);
    await reportUnknown(database.pool, granting.workspace, command(id, attemptId));
    expect(await granting.row(id)).toEqual(before);
  }
});

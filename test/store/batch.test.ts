import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { AuthorizeDecision } from "../../server/domain/spend.ts";
import { voidSpend } from "../../server/store/spend.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { type Asked, asks, attempt, type Granting, openGranting, usd } from "../support/granting.ts";
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

function answer(decision: AuthorizeDecision | undefined): string {
  const generation = decision?.authorization?.generation;
  const verdict = decision?.rule ?? decision?.errorReason ?? decision?.disposition ?? "";
  return decision?.disposition === "GRANTED" ? `${verdict} ${generation}` : verdict;
}

const same = attempt();
const expired: Asked = { settlement: "TWO_STEP", bodyFingerprint: "a".repeat(64) };

/** What exists before: nothing, or generation 1 of cust_1 in that state. */
const before: Readonly<Record<string, (g: Granting) => Promise<unknown>>> = {
  nothing: async () => {},
  "a hold": (g) => g.grant({}),
  "an expired one-call hold": async (g) => {
    await g.grant({});
    await clock.advance(600_000);
  },
  "an expired two-step hold that was never bound": async (g) => {
    await g.grant(expired);
    await clock.advance(600_000);
  },
  "a commit": async (g) => g.commit(await g.grant({})),
  "a proven refusal": async (g) => void (await g.refuse(await g.grant({}))),
  "a void of what was never sent": neverSent,
};

async function neverSent(g: Granting): Promise<void> {
  const attemptId = attempt();
  const authorization = await g.grant({ attemptId });
  const result = await voidSpend(database.pool, g.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization,
    attemptId,
    evidence: "NEVER_SENT",
    vendorStatus: 0,
    vendorReplayed: false,
    vendorReference: "",
    reason: "seen",
    traceId: "",
  });
  expect(result.errorReason).toBeUndefined();
}

/** Requests of one spend that come in one batch. */
const batches: Readonly<Record<string, readonly Asked[]>> = {
  "two attempts": [{}, {}],
  "one attempt twice": [{ attemptId: same }, { attemptId: same }],
  "too much, then less": [{ amount: usd(101) }, { amount: usd(10) }],
  "less, then another amount": [{ amount: usd(10) }, { amount: usd(11) }],
  "too much, then too much": [{ amount: usd(101) }, { amount: usd(102) }],
  "a retry, then none": [{ retryAfterGeneration: 1 }, {}],
  "none, then a retry": [{}, { retryAfterGeneration: 1 }],
  "two retries": [{ retryAfterGeneration: 1 }, { retryAfterGeneration: 1 }],
  "a retry that is denied, then one that fits": [
    { retryAfterGeneration: 1, amount: usd(101) },
    { retryAfterGeneration: 1, amount: usd(9) },
  ],
  "a key that is revoked, then one that is not": [{ vaultKeyId: "revoked" }, {}],
  "two keys": [{}, { vaultKeyId: "other" }],
  "another body twice": [
    { ...expired, bodyFingerprint: "b".repeat(64), attemptId: same },
    { ...expired, bodyFingerprint: "b".repeat(64), attemptId: same },
  ],
  "another body, which is ruled out, then the same": [
    { ...expired, bodyFingerprint: "b".repeat(64), sameBodyRequired: true },
    { ...expired, sameBodyRequired: true },
  ],
  "a neighbour between": [{}, { customerId: "cust_2" }, {}, { customerId: "cust_2" }],
  "a neighbour that fits only without the first": [{ amount: usd(60) }, { customerId: "cust_2", amount: usd(50) }, {}],
};

async function open(): Promise<Granting> {
  const g = await openGranting(database.pool);
  await g.vaultKey("other");
  await g.vaultKey("revoked");
  await g.revoke("revoked");
  await g.cap("all", usd(100));
  await g.cap("each", usd(100), { perCustomer: true });
  return g;
}

describe("a batch is judged as if its requests had come one after the other", () => {
  for (const [state, prepare] of Object.entries(before)) {
    test.each(Object.entries(batches))(`after ${state}: %s`, async (_name, requests) => {
      await clock.set("2026-11-15T12:00:00Z");
      const alone = await open();
      await prepare(alone);
      await clock.set("2026-11-15T12:00:00Z");
      const together = await open();
      await prepare(together);

      const wanted: string[] = [];
      for (const one of requests) wanted.push(answer((await alone.authorize(asks(one)))[0]));
      const got = (await together.authorize(...requests.map(asks))).map(answer);

      expect(got).toEqual(wanted);
      expect(await together.counters()).toEqual(await alone.counters());
      await together.expectCountersToAddUp();
      expect(await rows(together)).toEqual(await rows(alone));
    });
  }
});

async function rows(g: Granting): Promise<unknown[]> {
  const { rows: found } = await database.pool.query(
    `select t.spend_key, t.generation, t.state, t.amount_micros, t.vault_key_id, t.idempotency_key,
       t.told_may_have_been_sent, t.void_evidence
     from holdfast.authorizations t where t.workspace_id = $1 order by 1, 2`,
    [g.workspace],
  );
  return found;
}

test("a request that does not fit is denied, and a later smaller one may still fit", async () => {
  await granting.cap("all", usd(100));
  const decisions = await granting.authorize(
    asks({ customerId: "a", amount: usd(60) }),
    asks({ customerId: "b", amount: usd(50) }),
    asks({ customerId: "c", amount: usd(40) }),
    asks({ customerId: "d", amount: usd("0.01") }),
  );
  expect(decisions.map(answer)).toEqual(["GRANTED 1", "CAP_HEADROOM", "GRANTED 1", "CAP_HEADROOM"]);
  expect(decisions[1]?.cap).toMatchObject({ committed: 0n, held: usd(60).micros });
});

test("headroom that an expired two-step gives back is there for the next request of the batch", async () => {
  await granting.cap("one", usd(10));
  await granting.grant(expired);
  await clock.advance(600_000);
  const decisions = await granting.authorize(
    asks({ ...expired, bodyFingerprint: "b".repeat(64), amount: usd(10) }),
    asks({ customerId: "cust_2" }),
  );
  expect(decisions.map(answer)).toEqual(["GRANTED 2", "CAP_HEADROOM"]);
  await granting.expectCountersToAddUp();
});

test("an answer stands at the place of its request, for 500 requests", async () => {
  await granting.cap("all", usd(2500));
  const decisions = await granting.authorize(
    ...Array.from({ length: 500 }, (_, n) => asks({ customerId: `c${n}`, amount: usd(10) })),
  );
  expect(decisions.map(answer).filter((one) => one === "GRANTED 1")).toHaveLength(250);
  for (const [n, { authorization }] of decisions.slice(0, 250).entries()) {
    expect(authorization?.spend.customerId).toBe(`c${n}`);
  }
  await granting.expectCountersToAddUp();
});

import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { AuthorizeCommand, AuthorizeDecision } from "../../server/domain/spend.ts";
import { acquireBillingLease } from "../../server/store/lease.ts";
import { getAuthorization } from "../../server/store/spend.ts";
import { type Asked, asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

/** Key and caps of every kind, with room for a few of what is asked for below. */
async function open(): Promise<Granting> {
  const granting = await openGranting(database.pool);
  await granting.vaultKey("pinned", { billingPeriods: ["2026-11"] });
  await granting.vaultKey("other");
  await granting.cap("all", usd(100));
  await granting.cap("customers", usd(40), { perCustomer: true, window: "DAY" });
  await granting.cap("number", 6);
  await granting.cap("period", usd(90), { window: "BILLING_PERIOD", scope: { vaultKeyId: "pinned" } });
  await granting.cap("big", usd(100), { maxPerSpend: usd(30).micros });
  await granting.cap("shadow", usd(25), { enforcement: "SHADOW", scope: { customerId: "watched" } });
  return granting;
}

function spends(...asked: readonly Asked[]): AuthorizeCommand[] {
  return asked.map((one, index) =>
    asks({ vaultKeyId: "pinned", purpose: `p${index}`, customerId: `cust_${index}`, ...one }),
  );
}

function told({ disposition, rule, cap, errorReason }: AuthorizeDecision): unknown {
  return { disposition, rule, cap: cap?.capId, errorReason };
}

async function eventsOf({ workspace }: Granting): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query(
    `select kind, actor_id, spend_key, generation, currency, amount_micros, disposition, reason, trace_id, attempt_id,
       vault_key_id, detail
     from holdfast.audit_events where workspace_id = $1 and kind like any (array['spend.%', 'cap.shadow%']) and purpose <> 'refused'
     order by xid, n`,
    [workspace],
  );
  return rows;
}

async function holdsOf({ workspace }: Granting): Promise<readonly unknown[]> {
  const { rows } = await database.pool.query(
    `select spend_key, generation, cap_id, subject, amount_micros, spend_count from holdfast.holds
     where workspace_id = $1 order by spend_key, cap_id`,
    [workspace],
  );
  return rows;
}

describe("a batch of new spends", () => {
  it.each<[string, readonly Asked[]]>([
    ["that fit", [{ amount: usd(10) }, { amount: usd(30) }, { amount: usd("0.000001") }]],
    ["of one customer", [{ customerId: "cust_0" }, { customerId: "cust_0" }, { customerId: "cust_0" }]],
    ["that fill a cap to its last micro", [{ amount: usd(30) }, { amount: usd(30) }, { amount: usd(30) }]],
    ["of which one is too much", [{ amount: usd(30) }, { amount: usd(30) }, { amount: usd("30.000001") }]],
    [
      "of which the last finds no room",
      [{ amount: usd(30) }, { amount: usd(30) }, { amount: usd(20) }, { amount: usd(21) }],
    ],
    [
      "of which a small one fits behind a large one",
      [{ amount: usd(30) }, { amount: usd(30) }, { amount: usd(30) }, { amount: usd(11) }, { amount: usd(10) }],
    ],
    ["more than a count allows", Array.from({ length: 8 }, () => ({ amount: usd(1) }))],
    [
      "above a cap that only reports",
      [
        { customerId: "watched", amount: usd(20) },
        { customerId: "watched", amount: usd(6) },
      ],
    ],
    ["in another currency", [{ amount: usd(1) }, { amount: { currency: "eur", micros: usd(1).micros } }]],
    ["of two vault keys", [{ amount: usd(5) }, { vaultKeyId: "other", amount: usd(5) }]],
    ["of a period that the key does not allow", [{ amount: usd(5) }, { billingPeriod: "2026-12" }]],
    ["of which one is a refund", [{ amount: usd(5) }, { direction: "REFUND", refundOf: "ch_1" }]],
    [
      "that can be sent again",
      [{ settlement: "RESEND_SAFE", resendSafeForMs: 3_600_000, bodyFingerprint: "a".repeat(64) }],
    ],
    [
      "of which one is named twice",
      [{ purpose: "same" }, { purpose: "same", customerId: "cust_0" }, { purpose: "p9" }],
    ],
    ["of which one names a generation", [{}, { retryAfterGeneration: 1 }]],
  ])("%s is judged and written as its requests would be one by one", async (_what, asked) => {
    const commands = spends(...asked);
    const together = await open();
    const apart = await open();
    const atOnce = await together.authorize(...commands);
    // What nobody may ask for keeps the others from being granted in sets, and takes nothing.
    const [, ...oneByOne] = await apart.authorize(asks({ vendor: "none", purpose: "refused" }), ...commands);
    expect(atOnce.map(told)).toEqual(oneByOne.map(told));
    expect(await together.counters()).toEqual(await apart.counters());
    expect(await holdsOf(together)).toEqual(await holdsOf(apart));
    expect(await eventsOf(together)).toEqual(await eventsOf(apart));
    await together.expectCountersToAddUp();
    for (const { authorization } of atOnce) {
      if (authorization === undefined) continue;
      expect(authorization).toEqual(await getAuthorization(database.pool, together.workspace, authorization));
    }
  });

  it("under a lease is granted with its fencing token, and denied with a stale one", async () => {
    const granting = await open();
    const lease = { lease: "billing", billingPeriod: "2026-11", holderId: "a".repeat(32) };
    const acquired = await acquireBillingLease(database.pool, granting.workspace, {
      ...lease,
      vaultKeyId: "pinned",
      ttlMs: 60_000,
      traceId: "",
    });
    const { fencingToken } = acquired.lease;
    const [first, second] = await granting.authorize(...spends({ fence: { ...lease, fencingToken } }, {}));
    expect([first?.disposition, second?.disposition]).toEqual(["GRANTED", "GRANTED"]);
    const stale = { ...lease, fencingToken: fencingToken - 1n };
    const [denied, granted] = await granting.authorize(
      ...spends({ purpose: "q0", fence: stale }, { purpose: "q1", fence: { ...lease, fencingToken } }),
    );
    expect([denied?.rule, granted?.disposition]).toEqual(["FENCING_TOKEN", "GRANTED"]);
    await granting.expectCountersToAddUp();
  });
});

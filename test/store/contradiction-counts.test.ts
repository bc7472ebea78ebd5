import type pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { Authorization, AuthorizationId } from "../../server/domain/spend.ts";
import type { Money } from "../../server/domain/money.ts";
import { bindVendorReference, commitBatch, voidSpend } from "../../server/store/spend.ts";
import { type Asked, attempt, commitCommand, type Granting, micros, openGranting, usd } from "../support/granting.ts";
import { openPaused } from "../support/paused.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";

let database: TestDatabase;
let granting: Granting;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1000));
});

const vendorReference = "ch_1";
const eur = (amount: number): Money => ({ currency: "eur", micros: micros(amount) });

async function voided(customerId: string): Promise<Authorization> {
  const attemptId = attempt();
  const one = await granting.grant({ customerId, attemptId });
  const { errorReason } = await voidSpend(database.pool, granting.workspace, {
    actor: { kind: "vault_key", id: "main" },
    authorization: one,
    attemptId,
    evidence: "NEVER_SENT",
    vendorStatus: 0,
    vendorReplayed: false,
    vendorReference: "",
    reason: "",
    traceId: "",
  });
  expect(errorReason).toBeUndefined();
  return one;
}

const tell = (one: Authorization, amount: Money, reference = vendorReference) =>
  granting.commit(one, { vendorReference: reference, amount });

async function committedOf(capId: string): Promise<bigint[]> {
  const all = await granting.counters();
  return all.filter((counter) => counter.capId === capId).map(({ committed }) => committed);
}

async function stored(): Promise<string[]> {
  const { rows } = await database.pool.query<{ text: string }>(
    `select kind || ' ' || amount_micros / 1000000 || ' ' || currency || ' ' || counted_micros / 1000000 as text
     from holdfast.contradictions where workspace_id = $1 order by create_time`,
    [granting.workspace],
  );
  return rows.map(({ text }) => text);
}

describe("a charge that is told of several authorizations", () => {
  test("counts once in a counter that they share, at the most that was told, and once in each that they do not", async () => {
    await granting.cap("each", usd(1000), { perCustomer: true });
    const [a, b, c] = [await voided("a"), await voided("b"), await voided("c")];
    await tell(a, usd(10));
    await tell(b, usd(12));
    await tell(c, usd(7));
    await tell(a, usd(10));
    expect(await committedOf("all")).toEqual([usd(12).micros]);
    expect(await committedOf("each")).toEqual([usd(10).micros, usd(12).micros, usd(7).micros]);
    await granting.expectCountersToAddUp();
  });

  test("counts once, also when it is told twice at the same time", async () => {
    const [a, b] = [await voided("a"), await voided("b")];
    const paused = await database.pool.connect();
    try {
      await paused.query("begin");
      const { rows } = await paused.query<{ pid: number }>("select pg_backend_pid() as pid");
      await commitBatch(paused, granting.workspace, [commitCommand(a, { vendorReference, amount: usd(10) })]);
      const late = tell(b, usd(10));
      await untilBlockedBy(database.pool, rows[0]?.pid ?? 0);
      await paused.query("commit");
      expect(await late).toMatchObject({ errorReason: "ALREADY_VOIDED" });
    } finally {
      paused.release();
    }
    expect(await committedOf("all")).toEqual([usd(10).micros]);
    await granting.expectCountersToAddUp();
  });

  test.each([
    ["alone", []],
    ["beside one that does not exist", [{ spendKey: "f".repeat(36), generation: 1 }]],
  ])("counts once, also when the spend that it settles waits for what it counted before: %s", async (_how, others) => {
    await granting.cap("spends", 50);
    const gone = await voided("a");
    const paid = await granting.grant({ customerId: "b" });
    const paused = await openPaused(database.pool);
    try {
      const told = (one: AuthorizationId) => commitCommand(one, { vendorReference, amount: usd(10) });
      await commitBatch(paused.client, granting.workspace, [told(gone)]);
      const settled = commitBatch(database.pool, granting.workspace, [told(paid), ...others.map(told)]);
      await paused.expectBlocking(settled);
      await paused.commit();
      expect((await settled)[0]).toMatchObject({ errorReason: undefined });
    } finally {
      paused.release();
    }
    expect(await committedOf("all")).toEqual([usd(10).micros]);
    expect(await committedOf("spends")).toEqual([1n]);
    await granting.expectCountersToAddUp();
  });

  test("is one spend for a cap that counts spends", async () => {
    await granting.cap("spends", 50);
    const [a, b] = [await voided("a"), await voided("b")];
    await tell(a, usd(10));
    await tell(b, usd(10));
    expect(await committedOf("spends")).toEqual([1n]);
    await granting.expectCountersToAddUp();
  });

  test.each([
    ["as much", 10, 10],
    ["less", 8, 10],
    ["more", 12, 12],
  ])("counts with the spend that it settles afterwards: %s", async (_how, settled, committed) => {
    await granting.cap("spends", 50);
    const one = await voided("a");
    await tell(one, usd(10));
    const other = await granting.grant({ customerId: "b" });
    expect(await tell(other, usd(settled))).toMatchObject({ errorReason: undefined });
    expect(await committedOf("all")).toEqual([usd(committed).micros]);
    expect(await committedOf("spends")).toEqual([1n]);
    await tell(one, usd(10));
    expect(await committedOf("all")).toEqual([usd(committed).micros]);
    await granting.expectCountersToAddUp();
  });

  test("counts what is told beyond the spend that it has settled", async () => {
    const other = await granting.grant({ customerId: "b" });
    await tell(other, usd(10));
    const one = await granting.grant({ customerId: "a" });
    expect(await tell(one, usd(15))).toMatchObject({ errorReason: "REFERENCE_ALREADY_COMMITTED" });
    expect(await committedOf("all")).toEqual([usd(15).micros]);
    await granting.expectCountersToAddUp();
  });
});

describe("a charge in two currencies", () => {
  test("counts in the counter's own, and is stored with the amount that counts", async () => {
    const one = await voided("a");
    await tell(one, eur(500));
    expect(await committedOf("all")).toEqual([0n]);
    expect(await stored()).toEqual(["COMMIT_AFTER_VOID 500 eur 0"]);
    await tell(one, usd(10));
    expect(await committedOf("all")).toEqual([usd(10).micros]);
    expect(await stored()).toEqual(["COMMIT_AFTER_VOID 10 usd 10"]);
    await granting.expectCountersToAddUp();
  });

  test("is compared with what the hold counts, where it was committed in another one", async () => {
    const one = await granting.grant({ customerId: "a" });
    await tell(one, eur(500));
    expect(await committedOf("all")).toEqual([usd(10).micros]);
    expect(await tell(one, usd(12))).toMatchObject({ errorReason: "COMMIT_CONTRADICTS" });
    expect(await committedOf("all")).toEqual([usd(12).micros]);
    expect(await stored()).toEqual(["OTHER_AMOUNT 12 usd 2"]);
    await granting.expectCountersToAddUp();
  });

  test("is not lost where it counts nothing more: the audit has both", async () => {
    const one = await voided("a");
    await tell(one, usd(10));
    await tell(one, eur(500));
    const { rows } = await database.pool.query<{ currency: string }>(
      `select detail->>'currency' as currency from holdfast.audit_events
       where workspace_id = $1 and kind = 'spend.contradiction' order by xid, n`,
      [granting.workspace],
    );
    expect(rows.map(({ currency }) => currency)).toEqual(["usd", "eur"]);
    expect(await committedOf("all")).toEqual([usd(10).micros]);
  });
});

test("an object that was charged for a voided spend is bound again by that spend, and by no other", async () => {
  const one = await voided("a");
  await tell(one, usd(10));
  const bind = async (asked: Asked) => {
    const attemptId = attempt();
    const authorization = await granting.grant({ ...asked, settlement: "TWO_STEP", attemptId });
    const own = { vaultKeyId: "main", attemptId, traceId: "", authorization };
    const object = { vendorReference, vendorState: "", followForMs: 1000 };
    return await bindVendorReference(database.pool, granting.workspace, { ...own, ...object });
  };
  expect(await bind({ customerId: "b" })).toMatchObject({ errorReason: "REFERENCE_BOUND_ELSEWHERE" });
  expect(await bind({ customerId: "a" })).toMatchObject({ errorReason: undefined, authorization: { generation: 2 } });
});

async function untilBlockedBy(pool: pg.Pool, pid: number): Promise<void> {
  for (;;) {
    const { rowCount } = await pool.query(
      "select from pg_stat_activity a where a.datname = current_database() and $1::integer = any (pg_blocking_pids(a.pid))",
      [pid],
    );
    if (rowCount !== 0) return;
  }
}

test("a commit does not look at its holds for what other charges count, before or in its batch", async () => {
  const many = 20;
  const scansOf = async (round: string, contradicted: boolean): Promise<number> => {
    const one = await voided(round);
    const told = contradicted ? [commitCommand(one, { vendorReference: "ch_told", amount: usd(1) })] : [];
    const good = [];
    for (let index = 0; index < many; index += 1) {
      const authorization = await granting.grant({ customerId: `${round}-${index}` });
      good.push(commitCommand(authorization, { vendorReference: `ch_${round}_${index}`, amount: usd(1) }));
    }
    const client = await database.pool.connect();
    try {
      await client.query("begin");
      // Also where the planner would ask the few contradictions first.
      await client.query("set local join_collapse_limit = 1");
      const scans = async () => {
        const { rows } = await client.query<{ n: string }>(
          `select seq_scan + coalesce(idx_scan, 0) as n from pg_stat_xact_user_tables
           where schemaname = 'holdfast' and relname = 'holds'`,
        );
        return Number(rows[0]?.n);
      };
      const before = await scans();
      const results = await commitBatch(client, granting.workspace, [...told, ...good]);
      expect(results.filter(({ errorReason }) => errorReason === undefined)).toHaveLength(many);
      const after = await scans();
      await client.query("commit");
      return after - before;
    } finally {
      client.release();
    }
  };
  const plain = await scansOf("plain", false);
  expect((await scansOf("contradicted", true)) - plain).toBeLessThan(many);
  // Nor when it was contradicted long ago.
  expect((await scansOf("later", false)) - plain).toBeLessThan(many);
});

import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { isBehind } from "../../server/domain/audit.ts";
import { listAuditEvents, readAuditDetachment, unfoldAudit } from "../../server/store/audit.ts";
import { type AuditKeeper, openAuditKeeper, type Patience } from "../../server/store/audit-detach.ts";
import { extendAudit, listAuditPartitions, measureAudit } from "../../server/store/audit-partitions.ts";
import { spendOfKey } from "../../server/store/spend-story.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { endAudit, everything, startAudit, whenOver } from "./audit-parts.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;
const keepers: AuditKeeper[] = [];

beforeEach(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
  await clock.set("2025-01-10T12:00:00Z");
  await startAudit(database.pool);
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1_000_000));
});
afterEach(async () => {
  await Promise.all(keepers.splice(0).map((one) => one.close()));
  await database.close();
});

function keeper(patience: Partial<Patience> = {}): AuditKeeper {
  const one = openAuditKeeper(database.connection, patience);
  keepers.push(one);
  return one;
}

/** January, February and March of 2025 with three spends each, a partition each, and now, two years later. */
async function threeMonths(isOver = true): Promise<void> {
  for (const month of ["01", "02", "03"]) {
    await clock.set(`2025-${month}-10T12:00:00Z`);
    for (const customerId of ["a", "b", "c"]) await granting.authorize(asks({ customerId: `${customerId}${month}` }));
    await endAudit(database.pool, 1);
    await database.pool.query("select pg_current_xact_id()");
    expect(await extendAudit(database.pool)).toBe("EXTENDED");
  }
  await clock.set("2027-03-10T12:00:00Z");
  await granting.authorize(asks({ customerId: "now" }));
  if (isOver) await whenOver(database.pool);
}

const year = { before: "2026-01-01T00:00:00Z", keepDays: 400, by: "anna" };

async function customers(): Promise<string[]> {
  const { rows } = await database.pool.query<{ customer_id: string }>(
    "select e.customer_id from holdfast.audit_events e where e.kind = 'spend.granted' order by e.xid, e.n",
  );
  return rows.map((row) => row.customer_id);
}

const months = async () =>
  (await listAuditPartitions(database.pool)).map((one) => ({ table: one.table, isAttached: one.isAttached }));

describe("what is wholly before a month", () => {
  test("is detached, the oldest first, and stays a table that nobody can change", async () => {
    await threeMonths();
    const { tables, keptBecause } = await keeper().detach({ ...year, before: "2025-03-01T00:00:00Z" });
    expect(tables).toHaveLength(2);
    expect(keptBecause).toBe("NOT_BEFORE");
    expect(await customers()).toEqual(["a03", "b03", "c03", "now"]);
    for (const table of tables) {
      const { rows } = await database.pool.query(`select customer_id from ${table} where kind = 'spend.granted'`);
      expect(rows).toHaveLength(3);
      for (const change of [`delete from ${table}`, `update ${table} set n = 7`, `truncate ${table}`])
        await expect(database.pool.query(change)).rejects.toMatchObject({ code: "HF003" });
    }
    const parts = await listAuditPartitions(database.pool);
    expect(parts.slice(0, 2)).toMatchObject([
      { detachedBy: "anna", isAttached: false, isDropped: false },
      { detachedBy: "anna", isAttached: false, isDropped: false },
    ]);
    await database.pool.query(`drop table ${tables[0] ?? ""}`);
    expect((await listAuditPartitions(database.pool))[0]).toMatchObject({ isDropped: true, bytes: 0n });
    // With what its check proves, it comes back without being read.
    const back = parts[1];
    await database.pool.query(
      `alter table holdfast.audit_events attach partition ${back?.table ?? ""}
       for values from ('${back?.fromXid ?? ""}') to ('${back?.toXid ?? ""}')`,
    );
    expect(await customers()).toHaveLength(7);
  });

  test("is told to every workspace, with who did it", async () => {
    const other = await openGranting(database.pool);
    await threeMonths();
    const { tables } = await keeper().detach({ ...year, before: "2025-02-01T00:00:00Z" });
    const { rows } = await database.pool.query<{ workspace_id: string }>(
      `select e.workspace_id, e.actor_kind, e.actor_id, e.detail from holdfast.audit_events e
       where e.kind = 'audit.detached' order by e.workspace_id`,
    );
    expect(rows.map((row) => row.workspace_id)).toEqual(
      expect.arrayContaining([granting.workspace, other.workspace].toSorted()),
    );
    expect(rows[0]).toMatchObject({
      actor_kind: "server",
      actor_id: "detach",
      detail: {
        detached_by: "anna",
        database_user: database.connection.user,
        table: tables[0],
        last_time: "2025-01-10T12:00:00+00:00",
      },
    });
  });

  test("is detached once by two who do it at once", async () => {
    await threeMonths();
    const both = await Promise.all([keeper(), keeper()].map((one) => one.detach(year)));
    expect(new Set(both.flatMap(({ tables }) => tables)).size).toBe(3);
    const { rows } = await database.pool.query("select from holdfast.audit_events e where e.kind = 'audit.detached'");
    const workspaces = await database.pool.query("select from holdfast.workspaces");
    expect(rows).toHaveLength(3 * workspaces.rows.length);
    expect(await customers()).toEqual(["now"]);
  });
});

describe("what stays", () => {
  test("is what an event can still be added to", async () => {
    await threeMonths();
    const { keptBecause } = await keeper().detach({ ...year, before: "2030-01-01T00:00:00Z" });
    expect(keptBecause).toBe("OPEN");
    expect(await customers()).toEqual(["now"]);
  });

  test("is what a running transaction may still add to", async () => {
    const running = await database.pool.connect();
    try {
      await running.query("begin; select pg_current_xact_id()");
      await threeMonths(false);
      expect(await keeper().detach(year)).toEqual({ tables: [], keptBecause: "OPEN" });
      await running.query("rollback");
    } finally {
      running.release();
    }
    await whenOver(database.pool);
    expect((await keeper().detach(year)).tables).toHaveLength(3);
  });

  test("is what is younger than it has to be", async () => {
    await threeMonths();
    await clock.set("2026-03-01T12:00:00Z");
    expect(await keeper().detach(year)).toMatchObject({ tables: [expect.anything()], keptBecause: "KEPT" });
    expect(await customers()).toHaveLength(7);
  });

  test("is what has not been read", async () => {
    await threeMonths();
    const { rows } = await database.pool.query(
      "select f.problem from holdfast.detach_audit('2026-01-01T00:00:00Z', interval '400 days', 'anna') f",
    );
    expect(rows).toEqual([{ problem: "UNMEASURED" }]);
    await expect(
      database.pool.query("update holdfast.audit_partitions set detach_time = now(), detached_by = 'x'"),
    ).rejects.toMatchObject({ constraint: "audit_partitions_detached_check" });
  });

  test("is what counted denials have their first in", async () => {
    await granting.authorize(asks({ customerId: "denied", amount: usd(2_000_000) }));
    await granting.authorize(asks({ customerId: "denied", amount: usd(2_000_000) }));
    await threeMonths();
    expect(await keeper().detach(year)).toEqual({ tables: [], keptBecause: "FOLDED" });
    await unfoldAudit(database.pool, granting.workspace, 100);
    expect((await keeper().detach(year)).tables).toHaveLength(3);
  });
});

describe("nobody waits for it", () => {
  test("batches go on while it is done, and lose no event", async () => {
    await threeMonths();
    let stopped = false;
    let asked = 0;
    const writers = [0, 1].map(async (writer) => {
      while (!stopped) {
        asked += 1;
        await granting.authorize(
          asks({ customerId: `w${writer}-${asked}` }),
          asks({ customerId: "denied", amount: usd(2_000_000) }),
        );
      }
    });
    try {
      expect((await keeper().detach(year)).tables).toHaveLength(3);
    } finally {
      stopped = true;
      await Promise.all(writers);
    }
    expect((await customers()).filter((id) => id.startsWith("w"))).toHaveLength(asked);
  });

  test("while a transaction still reads what is detached, grants go on, and a later call finishes it", async () => {
    await threeMonths();
    const reader = await database.pool.connect();
    const told: number[] = [];
    try {
      await reader.query("begin");
      await reader.query("select count(*) from holdfast.audit_events");
      const pause = async (ms: number) => {
        told.push(ms);
        await granting.authorize(asks({ customerId: `meanwhile${told.length}` }));
      };
      await expect(keeper({ lockTimeoutMs: 50, tries: 3, pause }).detach(year)).rejects.toMatchObject({
        code: "tryAgain",
      });
      expect(told).toHaveLength(2);
      // It is out of sight already, though Postgres is not done with it.
      expect((await listAuditPartitions(database.pool))[0]).toMatchObject({ isAttached: true, isPending: true });
      expect(await customers()).toEqual(["a02", "b02", "c02", "a03", "b03", "c03", "now", "meanwhile1", "meanwhile2"]);
      await reader.query("rollback");
    } finally {
      reader.release();
    }
    expect((await keeper().detach(year)).tables).toHaveLength(3);
    expect((await months()).filter(({ isAttached }) => isAttached)).toHaveLength(2);
    const { rows } = await database.pool.query(
      "select from holdfast.audit_events e where e.kind = 'audit.detached' and e.workspace_id = $1",
      [granting.workspace],
    );
    expect(rows).toHaveLength(3);
  });
});

describe("a reader afterwards", () => {
  test("learns until when events are gone, and what is still there in its order", async () => {
    await threeMonths();
    expect(await readAuditDetachment(database.pool)).toBeUndefined();
    await keeper().detach({ ...year, before: "2025-03-01T00:00:00Z" });
    const until = BigInt(Date.parse("2025-02-10T12:00:00Z")) * 1000n;
    expect(await readAuditDetachment(database.pool)).toMatchObject({ untilTime: until });
    const query = { filter: everything, newestFirst: false, after: undefined, limit: 200 };
    const { events, detachment } = await listAuditEvents(database.pool, granting.workspace, query);
    expect(detachment).toMatchObject({ untilTime: until });
    expect(events[0]?.customerId).toBe("a03");
    expect(events.every((one, at) => at === 0 || isBehind(one, events[at - 1] ?? one))).toBe(true);
    const [none] = await Promise.all([
      listAuditEvents(database.pool, "elsewhere", { ...query, newestFirst: true }),
      measureAudit(database.pool, 1),
    ]);
    expect(none).toMatchObject({ events: [], detachment: { untilTime: until } });
  });

  test("still finds the spend of an authorization whose events are gone", async () => {
    const { spendKey } = await granting.grant({ customerId: "old" });
    await threeMonths();
    await keeper().detach(year);
    expect(await spendOfKey(database.pool, granting.workspace, spendKey)).toMatchObject({ customerId: "old" });
  });
});

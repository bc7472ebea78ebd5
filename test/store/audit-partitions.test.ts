import { setTimeout as delay } from "node:timers/promises";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { type AuditEvent, type AuditPosition, isBehind } from "../../server/domain/audit.ts";
import { listAuditEvents } from "../../server/store/audit.ts";
import {
  createAuditUpkeep,
  extendAudit,
  listAuditPartitions,
  measureAudit,
} from "../../server/store/audit-partitions.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { asks, type Granting, openGranting, usd } from "../support/granting.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { endAudit, everything, startAudit, whenOver } from "./audit-parts.ts";

let database: TestDatabase;
let clock: TestClock;
let granting: Granting;

beforeEach(async () => {
  database = await createTestDatabase();
  clock = await replaceClock(database.pool);
  await clock.set("2026-11-15T12:00:00Z");
  await startAudit(database.pool);
  granting = await openGranting(database.pool);
  await granting.cap("all", usd(1_000_000));
});
afterEach(() => database.close());

async function ranges(): Promise<string[]> {
  const { rows } = await database.pool.query<{ range: string }>(
    `select pg_get_expr(c.relpartbound, c.oid) as range from pg_inherits i join pg_class c on c.oid = i.inhrelid
     where i.inhparent = 'holdfast.audit_events'::regclass order by c.oid`,
  );
  return rows.map(({ range }) => range);
}

async function partitionOfLast(): Promise<string> {
  const { rows } = await database.pool.query<{ at: string }>(
    "select e.tableoid::regclass::text as at from holdfast.audit_events e order by e.xid desc, e.n desc limit 1",
  );
  return rows[0]?.at ?? "";
}

describe("a new database", () => {
  test("has a partition for now and one without an end behind it, once a server has started", async () => {
    const copy = await createTestDatabase();
    try {
      // It may be older than what its template has had ahead.
      await extendAudit(copy.pool);
      const [first, ...others] = await listAuditPartitions(copy.pool);
      expect(first).toMatchObject({ fromXid: "0", isAhead: false, isAttached: true });
      expect(others.at(-1)).toMatchObject({ toXid: undefined, isAhead: true, isAttached: true, events: 0n });
    } finally {
      await copy.close();
    }
  });

  test("has no gap between them", async () => {
    const parts = await listAuditPartitions(database.pool);
    expect(parts.map(({ toXid }, at) => toXid === parts[at + 1]?.fromXid)).toEqual(parts.map(() => true));
    expect(await ranges()).toHaveLength(parts.length);
  });

  test("needs nothing yet", async () => {
    await endAudit(database.pool, 1_000_000);
    const before = await ranges();
    expect(await extendAudit(database.pool)).toBeUndefined();
    expect(await ranges()).toEqual(before);
  });

  test("numbers the events of one transaction in one row, whoever writes them", async () => {
    const client = await database.pool.connect();
    try {
      await client.query("begin");
      const append = "select holdfast.append_audit($1, holdfast.clock(), 'test.event', 'server', 'test', '', '{}')";
      await client.query(append, [granting.workspace]);
      await client.query("savepoint s");
      await client.query(append, [granting.workspace]);
      await client.query("rollback to savepoint s");
      await client.query("select holdfast.take_audit_numbers(3)");
      await client.query(append, [granting.workspace]);
      await client.query("commit");
      await client.query(append, [granting.workspace]);
    } finally {
      client.release();
    }
    const { rows } = await database.pool.query<{ n: number }>(
      "select n from holdfast.audit_events where kind = 'test.event' order by xid, n",
    );
    expect(rows.map(({ n }) => n)).toEqual([0, 4, 0]);
  });
});

describe("partitions ahead", () => {
  test("are made by one of several servers, and events go on into the next", async () => {
    await endAudit(database.pool, 1);
    const results = await Promise.all(Array.from({ length: 6 }, () => extendAudit(database.pool)));
    // One makes it. Who comes at the same time waits for that, or gives up until the next round.
    expect(results.filter((one) => one === "EXTENDED")).toHaveLength(1);
    expect(results.filter((one) => one === "LARGE")).toEqual([]);
    const parts = await listAuditPartitions(database.pool);
    expect(parts.map(({ fromXid }, at) => at === 0 || fromXid === parts[at - 1]?.toXid)).toEqual(parts.map(() => true));
    expect(parts.at(-1)?.toXid).toBeUndefined();
    expect(await ranges()).toHaveLength(parts.length);
    await granting.authorize(asks());
    expect(await partitionOfLast()).toBe(parts[1]?.table);
  });

  test("take over in the middle of what is written, and nothing is lost, doubled or out of order", async () => {
    await endAudit(database.pool, 40);
    const writers = ["a", "b", "c"].map(async (writer) => {
      for (let n = 0; n < 30; n += 1) {
        await granting.authorize(asks({ customerId: `${writer}${n}` }), asks({ customerId: `${writer}${n}x` }));
        if (n % 10 === 5) await extendAudit(database.pool);
      }
    });
    await Promise.all(writers);
    const { rows } = await database.pool.query<{ at: string }>(
      "select distinct e.tableoid::regclass::text as at from holdfast.audit_events e where e.kind = 'spend.granted'",
    );
    expect(rows.length).toBeGreaterThan(1);
    const seen: AuditEvent[] = [];
    for (let after: AuditPosition | undefined; seen.length < 180; after = seen.at(-1)) {
      const query = { filter: { ...everything, kind: "spend.granted" }, newestFirst: false, after, limit: 7 };
      const { events } = await listAuditEvents(database.pool, granting.workspace, query);
      seen.push(...events);
      // What a transaction of another test holds back comes when that has ended.
      if (events.length < 7) await delay(20);
    }
    expect(seen.every((one, at) => at === 0 || isBehind(one, seen[at - 1] ?? one))).toBe(true);
    expect(new Set(seen.map(({ customerId }) => customerId)).size).toBe(180);
    expect(seen).toHaveLength(180);
  });

  test("are never missed: where nobody makes them, events go into the one without an end", async () => {
    await endAudit(database.pool, 1);
    await granting.authorize(asks());
    await granting.authorize(asks({ customerId: "b" }));
    const open = (await listAuditPartitions(database.pool)).at(-1);
    expect(await partitionOfLast()).toBe(open?.table);
    expect(open).toMatchObject({ toXid: undefined });
    // Which gets an end later, with everything that is in it.
    expect(await extendAudit(database.pool)).toBe("EXTENDED");
    await granting.authorize(asks({ customerId: "c" }));
    expect(await partitionOfLast()).toBe(open?.table);
    const parts = await listAuditPartitions(database.pool);
    expect(parts.slice(-2).map(({ table, toXid }) => [table === open?.table, toXid === undefined])).toEqual([
      [true, false],
      [false, true],
    ]);
    // It is still append-only, and so is the new one.
    for (const { table } of parts)
      await expect(database.pool.query(`delete from ${table}`)).rejects.toMatchObject({ code: "HF003" });
  });

  test("are left to an operator where that would hold up writers for long", async () => {
    await endAudit(database.pool, 1);
    await granting.authorize(asks());
    const { rows } = await database.pool.query("select holdfast.extend_audit(0) as done");
    expect(rows).toEqual([{ done: "LARGE" }]);
    await granting.authorize(asks({ customerId: "b" }));
  });

  test("wait for nobody longer than a tenth of a second, and come with a later round", async () => {
    await endAudit(database.pool, 1000);
    const reader = await database.pool.connect();
    try {
      await reader.query("begin");
      await reader.query("select count(*) from holdfast.audit_events");
      expect(await extendAudit(database.pool)).toBe("BUSY");
      await granting.authorize(asks());
      await reader.query("rollback");
    } finally {
      reader.release();
    }
    expect(await extendAudit(database.pool)).toBe("EXTENDED");
  });

  test("are as wide as thirty days at the pace of now, but not much wider or narrower at once", async () => {
    const widths = async () => (await listAuditPartitions(database.pool)).map(({ fromXid }) => BigInt(fromXid));
    await endAudit(database.pool, 1000);
    // A thousand transactions in a second are too many for one step; a week later they are few.
    await clock.advance(1);
    const { rows: before } = await database.pool.query<{ width: bigint }>(
      "select width from holdfast.audit_partitions where to_xid is null",
    );
    const width = before[0]?.width ?? 0n;
    await extendAudit(database.pool);
    const wide = await widths();
    expect((wide.at(-1) ?? 0n) - (wide.at(-2) ?? 0n)).toBe(16n * width);
    await endAudit(database.pool, 1000);
    await clock.advance(365 * 86_400_000);
    await extendAudit(database.pool);
    const later = await widths();
    expect((later.at(-1) ?? 0n) - (later.at(-2) ?? 0n)).toBe(width);
    // A clock that went back says nothing.
    await endAudit(database.pool, 1000);
    await clock.set("2020-01-01T00:00:00Z");
    expect(await extendAudit(database.pool)).toBe("EXTENDED");
  });
});

describe("the figures of a partition", () => {
  test("are read once it is over, a part at a time, by several servers", async () => {
    for (let n = 0; n < 30; n += 1) await granting.authorize(asks({ customerId: `c${n}` }));
    await clock.set("2026-11-20T12:00:00Z");
    await granting.authorize(asks({ customerId: "last" }));
    const { rows } = await database.pool.query<{ count: bigint }>("select count(*) from holdfast.audit_events");
    const running = await database.pool.connect();
    try {
      // Its events could still come.
      await running.query("begin; select pg_current_xact_id()");
      await endAudit(database.pool, 1);
      await granting.authorize(asks({ customerId: "next" }));
      await extendAudit(database.pool);
      expect(await measureAudit(database.pool, 1)).toBe(false);
      await running.query("rollback");
    } finally {
      running.release();
    }
    await whenOver(database.pool);
    for (let rounds = 0; (await listAuditPartitions(database.pool))[0]?.isMeasured !== true; rounds += 1) {
      expect(rounds).toBeLessThan(1000);
      await Promise.all([measureAudit(database.pool, 1), measureAudit(database.pool, 1)]);
    }
    const [first] = await listAuditPartitions(database.pool);
    const at = (text: string) => BigInt(Date.parse(text)) * 1000n;
    expect(first).toMatchObject({
      events: rows[0]?.count,
      firstTime: at("2026-11-15T12:00:00Z"),
      lastTime: at("2026-11-20T12:00:00Z"),
    });
    expect(await measureAudit(database.pool, 1)).toBe(false);
  });
});

describe("the upkeep", () => {
  test("lets writers be for five minutes after the audit could not be had", async () => {
    await endAudit(database.pool, 1000);
    let nowMs = 0;
    const told: unknown[] = [];
    const keep = createAuditUpkeep(
      (result) => told.push(result),
      () => nowMs,
    );
    const reader = await database.pool.connect();
    try {
      await reader.query("begin");
      await reader.query("select count(*) from holdfast.audit_events");
      await keep(database.pool);
      await reader.query("rollback");
    } finally {
      reader.release();
    }
    nowMs = 299_999;
    await keep(database.pool);
    expect(told).toEqual(["BUSY"]);
    nowMs = 300_000;
    await keep(database.pool);
    expect(told).toEqual(["BUSY", "EXTENDED"]);
  });

  test("tells of what fails once, and of every new partition", async () => {
    const told: string[] = [];
    const keep = createAuditUpkeep((result, error) => told.push(result ?? (error as Error).message));
    const broken = { query: () => Promise.reject(new Error("gone")) };
    await keep(database.pool);
    await keep(broken);
    await keep(broken);
    await endAudit(database.pool, 1000);
    await keep(database.pool);
    await endAudit(database.pool, 1000);
    await keep(database.pool);
    await keep(database.pool);
    await keep(broken);
    expect(told).toEqual(["gone", "EXTENDED", "EXTENDED", "gone"]);
  });
});

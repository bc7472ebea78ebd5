import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { openAuditKeeper } from "../../server/store/audit-detach.ts";
import { extendAudit, listAuditPartitions } from "../../server/store/audit-partitions.ts";
import { recover } from "../../server/store/instance.ts";
import { migrate } from "../../server/store/migrate.ts";
import { createPool } from "../../server/store/postgres.ts";
import { readSnapshotFigures } from "../../server/store/snapshot-figures.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { endAudit } from "./audit-parts.ts";

const page = await readFile(new URL("../../docs/operations/database-role.md", import.meta.url), "utf8");
const [setUp = "", seeing = "", look = ""] = [...page.matchAll(/^```sql\n([\s\S]*?)^```$/gm)].map(([, body]) => body);
/** Roles belong to the cluster, which other tests share. */
const role = `holdfast_server_${randomBytes(6).toString("hex")}`;
const named = (sql: string): string => sql.replaceAll("holdfast_server", role);

let server: TestServer;
let connection: pg.ClientConfig;

beforeAll(async () => {
  server = await startTestServer();
  await server.database.pool.query(named(setUp));
  // The stopped clock is the tests' own.
  await server.database.pool.query(`grant select on public.test_clock to ${role}`);
  connection = { ...server.database.connection, user: role, password: "change me" };
});
afterAll(async () => {
  await server.database.pool.query(named("drop owned by holdfast_server; drop role holdfast_server"));
  await server.close();
});

async function as(config: pg.ClientConfig, statements: readonly string[]): Promise<unknown> {
  const client = new pg.Client(config);
  await client.connect();
  try {
    for (const text of statements) await client.query(text);
    return undefined;
  } catch (error) {
    return (error as { code?: string }).code;
  } finally {
    await client.end();
  }
}

const changes = [
  "update holdfast.audit_events set kind = 'spend.nothing'",
  "update holdfast.audit_events set kind = 'spend.nothing' where false",
  "delete from holdfast.audit_events",
  "truncate holdfast.audit_events",
  "truncate holdfast.workspaces, holdfast.audit_events cascade",
];

async function events(): Promise<string> {
  const { rows } = await server.database.pool.query<{ hash: string }>(
    "select md5(string_agg(e::text, ',' order by e.xid, e.n)) as hash from holdfast.audit_events e",
  );
  return rows[0]?.hash ?? "";
}

describe("the events of the audit", () => {
  test.each(changes)("stay as they are for the owner: %s", async (statement) => {
    await server.vaultKey(`k${randomBytes(4).toString("hex")}`);
    const before = await events();
    expect(await as(server.database.connection, [statement])).toBe("HF003");
    expect(await as(server.database.connection, ["set session_replication_role = replica", statement])).toBe("HF003");
    expect(await events()).toBe(before);
  });

  test.each(changes)("and for the server's role, which has no right to: %s", async (statement) => {
    expect(await as(connection, [statement])).toBe("42501");
  });

  test("stay as they are in a partition too, of which that role has no right", async () => {
    const { rows } = await server.database.pool.query<{ part: string }>(
      "select i.inhrelid::regclass::text as part from pg_inherits i where i.inhparent = 'holdfast.audit_events'::regclass",
    );
    expect(rows.length).toBeGreaterThan(1);
    for (const { part } of rows) {
      for (const change of [`update ${part} set n = 7`, `delete from ${part}`, `truncate ${part}`]) {
        expect(await as(server.database.connection, [change]), change).toBe("HF003");
        expect(await as(connection, [change]), change).toBe("42501");
      }
      expect(await as(connection, [`select from ${part}`])).toBe("42501");
      expect(await as(connection, [`alter table holdfast.audit_events detach partition ${part}`])).toBe("42501");
    }
  });

  test("go on in new partitions that a server of that role makes, and has no right of either", async () => {
    await endAudit(server.database.pool, 1);
    const pool = createPool({ connection, max: 1 });
    try {
      expect(await extendAudit(pool)).toBe("EXTENDED");
      const [last] = (await listAuditPartitions(pool)).slice(-1);
      await server.vaultKey(`k${randomBytes(4).toString("hex")}`);
      expect(await as(connection, [`delete from ${last?.table ?? ""}`])).toBe("42501");
      expect(await as(connection, ["update holdfast.audit_partitions set detached_by = 'x'"])).toBe("42501");
      const asked = { before: "2000-01-01T00:00:00Z", keepDays: 400, by: "nobody" };
      const keeper = openAuditKeeper(connection);
      await expect(keeper.detach(asked)).rejects.toMatchObject({ code: "42501" });
      await keeper.close();
    } finally {
      await pool.end();
    }
  });

  test.each([
    "alter table holdfast.audit_events disable trigger audit_events_append_only",
    "drop trigger audit_events_append_only on holdfast.audit_events",
    "create or replace function holdfast.refuse_audit_change() returns trigger language plpgsql as 'begin return null; end'",
    "drop table holdfast.audit_events cascade",
    "alter table holdfast.audit_events rename to gone",
    "delete from holdfast.migrations",
    "set session_replication_role = replica",
  ])("nor may that role take away what protects them: %s", async (statement) => {
    expect(await as(connection, [statement])).toBe("42501");
  });
});

test("that role sees what other sessions hold back once it may, and how many it does not see until then", async () => {
  const pool = createPool({ connection, max: 1 });
  const other = await server.database.pool.connect();
  try {
    await other.query("begin isolation level repeatable read; select 1");
    expect((await readSnapshotFigures(pool)).hidden).toBeGreaterThan(0);
    await server.database.pool.query(named(seeing));
    const after = await readSnapshotFigures(pool);
    expect(after.hidden).toBe(0);
    expect(after.oldestAge).toBeGreaterThan(0);
    await other.query("rollback");
  } finally {
    other.release();
    await pool.end();
  }
});

test("a server of that role starts, grants, settles and audits, and the page's look finds everything in order", async () => {
  // Where nothing is missing, the migrator needs no right to change anything.
  expect(await migrate(connection)).toEqual([]);
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", alteredClock: "allowed" } as const;
  const app: App = await startApp({ ...config, sweepIntervalMs: 100 }, { connection, fsyncOff: "allowed" });
  try {
    const token = await server.vaultKey("main");
    await server.cap("all", "15");
    const transport = (bearer: string) =>
      createConnectTransport({
        baseUrl: app.url,
        httpVersion: "2",
        interceptors: [
          (next) => (request) => {
            request.header.set("authorization", `Bearer ${bearer}`);
            return next(request);
          },
        ],
      });
    const spends = createClient(SpendControlService, transport(token));
    const admin = createClient(AdminService, transport(server.operatorToken));
    const ask = (purpose: string) =>
      spends.authorizeSpend({
        spend: { customerId: "c", billingPeriod: "2026-11", purpose, amount: { currency: "usd", amount: "10" } },
        vendor: "stripe",
        endpoint: "POST /v1/payment_intents",
        attemptId: randomBytes(16).toString("hex"),
      });
    const granted = await ask("first");
    expect(granted.disposition).toBe(Disposition.GRANTED);
    for (let n = 0; n < 3; n += 1) expect((await ask("second")).disposition).toBe(Disposition.DENIED);
    const authorization = granted.authorization?.name ?? "";
    const amount = { currency: "usd", amount: "10" };
    await spends.commitSpend({ authorization, amount, vendorReference: "pi_1" });
    const lease = { lease: "job", billingPeriod: "2026-11", holderId: "h" };
    await spends.acquireBillingLease({ ...lease, ttl: { seconds: 60n } });
    await admin.suspendVaultKey({ name: "vaultKeys/main", reason: "test" });
    const { auditEvents } = await admin.getSpendStory({ lookup: { case: "authorization", value: authorization } });
    expect(auditEvents.map(({ kind }) => kind)).toEqual(["spend.granted", "spend.committed"]);
  } finally {
    await app.close();
  }
  // All of it, though nothing is wrong.
  await recover(connection, { force: true });
  const results = (await server.database.pool.query(named(look))) as unknown as { rows: unknown[] }[];
  expect(results[0]?.rows).toEqual([{ audit_is_append_only: true }]);
  expect(results[1]?.rows).toEqual([
    { may: true, privilege: "insert" },
    { may: false, privilege: "update" },
    { may: false, privilege: "delete" },
    { may: false, privilege: "truncate" },
  ]);
}, 120_000);

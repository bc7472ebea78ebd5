import { Code } from "@connectrpc/connect";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { openPaused } from "../support/paused.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { dollar, type Refusal, refused, untilAnswered } from "./spend-call.ts";

let server: TestServer;
let spends: ReturnType<TestServer["spend"]>;

beforeAll(async () => {
  server = await startTestServer();
  spends = server.spend(await server.vaultKey("main"));
  await server.cap("all", "1000");
});
afterAll(() => server.close());

async function count(table: "authorizations" | "audit_events", customerId: string): Promise<number> {
  const { rows } = await server.database.pool.query<{ n: number }>(
    `select count(*)::int4 as n from holdfast.${table} where customer_id = $1`,
    [customerId],
  );
  return rows[0]?.n ?? -1;
}

/** Makes a call and ends the backend that carries it out, while it waits for a lock. Repeated if it comes too late. */
async function killDuring(statement: string, call: () => Promise<unknown>): Promise<Refusal> {
  for (;;) {
    let over = false;
    const refusal = refused(call()).finally(() => (over = true));
    while (!over) {
      const { rowCount } = await server.database.pool.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock' and query like $1`,
        [`%${statement}%`],
      );
      if (rowCount !== 0) return await refusal;
    }
    await refusal;
  }
}

test("idle connections that the database closes are replaced, and the next calls are answered", async () => {
  await Promise.all(Array.from({ length: 8 }, (_, n) => spends.authorizeSpend(dollar(`warm-${n}`))));
  const { rowCount } = await server.database.pool.query(
    `select pg_terminate_backend(pid, 60000) from pg_stat_activity
     where datname = current_database() and state = 'idle' and pid <> pg_backend_pid()`,
  );
  expect(rowCount).toBeGreaterThan(0);
  for (let n = 0; n < 8; n += 1) {
    const request = dollar(`after-${n}`);
    expect(await untilAnswered(() => spends.authorizeSpend(request))).toMatchObject({
      disposition: Disposition.GRANTED,
    });
  }
});

test("a backend killed under a grant: unavailable, no partial row, and the same attempt is granted once", async () => {
  const paused = await openPaused(server.database.pool);
  onTestFinished(() => paused.release());
  await paused.client.query("select from holdfast.counters for update");
  const request = dollar("killed");
  const refusal = await killDuring("/* authorize_batch */", () => spends.authorizeSpend(request));
  expect(refusal).toMatchObject({ code: Code.Unavailable, retryInfo: true });
  expect(["OUTCOME_UNKNOWN", "DATABASE_UNAVAILABLE"]).toContain(refusal.reason);
  expect([await count("authorizations", "killed"), await count("audit_events", "killed")]).toEqual([0, 0]);
  paused.release();
  const answer = await untilAnswered(() => spends.authorizeSpend(request));
  expect(answer).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: false });
  expect(await count("authorizations", "killed")).toBe(1);
});

test("a backend killed inside a transaction of several statements: nothing was done, and it says so", async () => {
  const paused = await openPaused(server.database.pool);
  onTestFinished(() => paused.release());
  await paused.client.query("select from holdfast.workspaces for update");
  const create = () =>
    server.admin.createCap({
      capId: "unborn",
      cap: { limit: { currency: "usd", amount: "1" }, window: CapWindow.LIFETIME },
    });
  expect(await killDuring("holdfast", create)).toEqual({
    code: Code.Unavailable,
    reason: "DATABASE_UNAVAILABLE",
    retryInfo: true,
  });
  paused.release();
  expect(await refused(server.admin.getCap({ name: "caps/unborn" }))).toMatchObject({ reason: "NOT_FOUND" });
  expect(await untilAnswered(create)).toMatchObject({ cap: { name: "caps/unborn" } });
});

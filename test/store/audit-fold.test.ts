import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { unfoldAudit } from "../../server/store/audit.ts";
import { startSweep } from "../../server/store/sweep.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
let token: string;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
  token = await server.vaultKey("loop");
  await server.cap("full", "5", { scope: { vaultKey: "vaultKeys/loop" } });
});
afterAll(() => server.close());
beforeEach(() => server.clock.set("2026-11-15T12:00:00Z"));

function asks(customerId: string) {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose: "sub", amount: { currency: "usd", amount: "10" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement: Settlement.SEND_ONCE,
  };
}

/** Asks until there is an answer, and expects a denial. */
async function denied(customerId: string, at = 0): Promise<void> {
  const request = asks(customerId);
  for (;;) {
    try {
      const { disposition } = await server.spend(token, at).authorizeSpend(request);
      expect(disposition).toBe(Disposition.DENIED);
      return;
    } catch (error) {
      if (ConnectError.from(error).code !== Code.Unavailable) throw error;
    }
  }
}

async function counts(customerId: string): Promise<bigint[]> {
  const { rows } = await server.database.pool.query<{ count: bigint }>(
    "select e.count from holdfast.audit_events e where e.customer_id = $1 order by e.xid, e.n",
    [customerId],
  );
  return rows.map(({ count }) => count);
}

const sum = (values: readonly bigint[]) => values.reduce((total, one) => total + one, 0n);

/** As a sweep does. */
async function unfold(): Promise<void> {
  await server.clock.advance(1500);
  while ((await unfoldAudit(server.database.pool, "default", 200)) > 0);
}

test("1,000 identical denials at two servers are a few events whose counts make 1,000", async () => {
  await Promise.all(Array.from({ length: 1000 }, (_, n) => denied("many", n % 2)));
  const before = await counts("many");
  expect(before.length).toBeGreaterThan(0);
  await unfold();
  const after = await counts("many");
  expect(sum(after)).toBe(1000n);
  // Of each server, what it decided before it could see the other's, and one for all the rest.
  expect(after.length).toBeLessThanOrEqual(12);
});

test("the first of them is an event at once, and the others are one that says from when to when", async () => {
  for (let n = 0; n < 5; n += 1) {
    await denied("few");
    await server.clock.advance(100);
  }
  expect(await counts("few")).toEqual([1n]);
  await unfold();
  const { auditEvents } = await server.admin.listAuditEvents({ customerId: "few", newestFirst: true });
  expect(auditEvents.map(({ count }) => count)).toEqual([4n, 1n]);
  expect(auditEvents[0]).toMatchObject({
    kind: "spend.answered",
    actor: "vaultKeys/loop",
    disposition: "DENIED",
    reason: "CAP_HEADROOM",
    purpose: "sub",
    detail: { cap: "full", first_time: "2026-11-15T12:00:00.100000Z", last_time: "2026-11-15T12:00:00.400000Z" },
  });
});

test("a second later it is an event again, and another customer's or amount is one of its own", async () => {
  await denied("later");
  await server.clock.advance(1000);
  await denied("later");
  await denied("other");
  await server.spend(token).authorizeSpend({
    ...asks("other"),
    spend: { ...asks("other").spend, amount: { currency: "usd", amount: "11" } },
  });
  expect(await counts("later")).toEqual([1n, 1n]);
  expect(await counts("other")).toEqual([1n, 1n]);
});

test("a transaction that is rolled back leaves no count", async () => {
  await denied("undone");
  const client = await server.database.pool.connect();
  try {
    await client.query("begin");
    await client.query(
      "select holdfast.fold_events('default', holdfast.clock(), array_agg(e.fold)) from holdfast.audit_events e where e.customer_id = 'undone'",
    );
    await client.query("rollback");
  } finally {
    client.release();
  }
  await unfold();
  expect(await counts("undone")).toEqual([1n]);
});

test("refused calls fold too, by caller and authorization", async () => {
  const key = await server.vaultKey("refused");
  const request = asks("refused");
  const { authorization } = await server.spend(key).authorizeSpend(request);
  const name = authorization?.name ?? "";
  const commit = { authorization: name, amount: { currency: "usd", amount: "10" }, vendorReference: "pi_1" };
  await server.spend(key).commitSpend(commit);
  for (let n = 0; n < 20; n += 1) {
    await expect(
      server.spend(key).reportUnknown({ authorization: name, attemptId: request.attemptId }),
    ).rejects.toThrow();
  }
  await unfold();
  const { auditEvents } = await server.admin.listAuditEvents({ kind: "spend.report_refused", newestFirst: true });
  expect(auditEvents.map(({ count }) => count)).toEqual([19n, 1n]);
});

test("of several sweeps at once each count becomes part of one event", async () => {
  for (let n = 0; n < 30; n += 1) await denied("swept", n % 2);
  await server.clock.advance(1500);
  await Promise.all(Array.from({ length: 4 }, () => unfoldAudit(server.database.pool, "default", 7)));
  await unfold();
  expect(sum(await counts("swept"))).toBe(30n);
});

test("what a server that has died had folded becomes an event by the sweep of any other", async () => {
  for (let n = 0; n < 3; n += 1) await denied("orphaned");
  await server.clock.advance(1500);
  await new Promise<void>((resolve, reject) => {
    const sweep = startSweep({
      database: server.database.pool,
      intervalMs: 1,
      proxyAnswerDays: 30,
      onResult: (error) => {
        void sweep.stop();
        if (error === undefined) resolve();
        else reject(error);
      },
    });
  });
  expect(await counts("orphaned")).toEqual([1n, 2n]);
});

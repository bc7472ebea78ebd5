import type { MessageInitShape } from "@bufbuild/protobuf";
import type { AuditEvent, ListAuditEventsRequestSchema } from "@holdfast/api/holdfast/v1/audit_pb";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { spendKeyOf } from "../../server/domain/spend.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

type Query = Exclude<MessageInitShape<typeof ListAuditEventsRequestSchema>, { $typeName: string }>;

const pick = <Value>(...values: Value[]) => fc.constantFrom(...values);
const actors = ["vault_key one", "vault_key two", "operator one", "server sweep"] as const;
const collections: Readonly<Record<string, string>> = {
  vault_key: "vaultKeys",
  operator: "operators",
  server: "server",
};

/** An event with few values in each place, so that filters meet. */
const anEvent = fc.record({
  kind: pick("check.made", "check.made_again", "checks.made", "check.done"),
  actor: pick(...actors),
  about: pick("one", "two", ""),
  customerId: pick("c1", "c2", ""),
  billingPeriod: pick("2026-11", "2026-12"),
  purpose: pick("sub", "sub:extra"),
  generation: pick(1, 2, 0),
  disposition: pick("DENIED", "GRANTED", ""),
  traceId: pick("a".repeat(32), "b".repeat(32), ""),
  second: fc.nat(9),
});
type Made = ReturnType<typeof anEvent.generate>["value"];

function keyOf({ customerId, billingPeriod, purpose }: Made): string | null {
  return customerId === "" ? null : spendKeyOf({ customerId, billingPeriod, purpose });
}

const instant = (second: number) => ({ seconds: 1_793_500_000n + BigInt(second), nanos: 0 });

async function insert(events: readonly Made[]): Promise<void> {
  await server.database.pool.query(
    `insert into holdfast.audit_events (workspace_id, xid, n, event_time, kind, actor_kind, actor_id, spend_key, generation,
       customer_id, billing_period, purpose, disposition, trace_id, vault_key_id)
     select 'default', pg_current_xact_id(), x.n, to_timestamp(x.seconds), x.kind, split_part(x.actor, ' ', 1),
       split_part(x.actor, ' ', 2), x.spend_key, x.generation, x.customer, x.period, x.purpose, x.disposition, x.trace,
       x.about
     from jsonb_to_recordset($1) as x (n integer, seconds bigint, kind text, actor text, spend_key text,
       generation integer, customer text, period text, purpose text, disposition text, trace text, about text)`,
    [
      JSON.stringify(
        events.map((one, n) => ({
          n,
          seconds: Number(instant(one.second).seconds),
          kind: one.kind,
          actor: one.actor,
          spend_key: one.generation === 0 ? null : keyOf(one),
          generation: one.generation === 0 || keyOf(one) === null ? null : one.generation,
          customer: one.customerId || null,
          period: one.customerId === "" ? null : one.billingPeriod,
          purpose: one.customerId === "" ? null : one.purpose,
          disposition: one.disposition || null,
          trace: one.traceId,
          about: one.about || null,
        })),
      ),
    ],
  );
}

const filters = {
  kind: pick("check", "check.made", "checks", "chec"),
  actor: pick(...actors.map((one) => one.replace(/^\S+ /, (kind) => `${collections[kind.trim()]}/`))),
  vaultKey: pick("vaultKeys/one", "vaultKeys/two", "vaultKeys/three"),
  customerId: pick("c1", "c2", "c3"),
  billingPeriod: pick("2026-11", "2026-12"),
  purpose: pick("sub", "sub:extra"),
  disposition: pick("DENIED", "GRANTED"),
  traceId: pick("a".repeat(32), "b".repeat(32)),
  startTime: fc.nat(9).map(instant),
  endTime: fc.nat(9).map(instant),
  authorization: pick(1, 2).map(
    (n) => `authorizations/${spendKeyOf({ customerId: "c1", billingPeriod: "2026-11", purpose: "sub" })}-${n}`,
  ),
};
const names = Object.keys(filters) as (keyof typeof filters)[];
/** Up to four filters: with more hardly anything would match. */
const aQuery = fc
  .tuple(fc.record(filters), fc.subarray(names, { maxLength: 4 }))
  .map(([all, some]): Query => Object.fromEntries(some.map((name) => [name, all[name]])));

/** What the filters mean, said once more and differently. */
function matches(event: AuditEvent, query: Query): boolean {
  const seconds = event.eventTime?.seconds ?? 0n;
  return Object.entries(query).every(([name, wanted]) => {
    switch (name) {
      case "kind":
        return event.kind === wanted || event.kind.split(".")[0] === wanted;
      case "vaultKey":
        return event.vaultKey === wanted || event.actor === wanted;
      case "startTime":
        return seconds >= (wanted as { seconds: bigint }).seconds;
      case "endTime":
        return seconds < (wanted as { seconds: bigint }).seconds;
      default:
        return (event as unknown as Record<string, unknown>)[name] === wanted;
    }
  });
}

async function listed(query: Query, pageSizes: readonly number[]): Promise<string[]> {
  const names: string[] = [];
  for (let pageToken = "", at = 0; ; at += 1) {
    const pageSize = pageSizes[at % pageSizes.length] ?? 50;
    const page = await server.admin.listAuditEvents({ ...query, pageSize, pageToken });
    expect(page.auditEvents.length).toBeLessThanOrEqual(pageSize);
    names.push(...page.auditEvents.map(({ name }) => name));
    pageToken = page.nextPageToken;
    if (pageToken === "") return names;
  }
}

/** Everything, once nobody in the cluster holds the oldest-first reader back. */
async function settled(count: number): Promise<readonly AuditEvent[]> {
  return await vi.waitFor(
    async () => {
      const events: AuditEvent[] = [];
      for (let pageToken = ""; ; ) {
        const page = await server.admin.listAuditEvents({ pageSize: 200, pageToken });
        events.push(...page.auditEvents);
        pageToken = page.nextPageToken;
        if (pageToken === "") break;
      }
      expect(events.length).toBeGreaterThanOrEqual(count);
      return events;
    },
    { timeout: 120_000, interval: 50 },
  );
}

test("any combination of filters shows, in pages of any size, what a look at every event shows", async () => {
  const made = fc.sample(fc.array(anEvent, { minLength: 1, maxLength: 20 }), { numRuns: 40, seed: 11 });
  for (const events of made) await insert(events);
  const all = await settled(made.flat().length);
  let found = 0;
  await fc.assert(
    fc.asyncProperty(
      aQuery,
      fc.array(fc.integer({ min: 1, max: 200 }), { minLength: 1, maxLength: 4 }),
      async (query, sizes) => {
        const expected = all.filter((event) => matches(event, query)).map(({ name }) => name);
        found += expected.length;
        expect(await listed(query, sizes)).toEqual(expected);
        expect(await listed({ ...query, newestFirst: true }, sizes)).toEqual(expected.toReversed());
      },
    ),
    { numRuns: 150, seed: 12 },
  );
  expect(found).toBeGreaterThan(500);
}, 300_000);

/** One step of one of several connections, or of the reader. */
const aStep = fc.record({ who: fc.nat(5), what: fc.nat(99), size: fc.integer({ min: 1, max: 7 }) });

test("a reader in pages of any size loses, repeats and reorders nothing beside late commits and rollbacks", async () => {
  const { pool } = server.database;
  const steps = fc.sample(fc.array(aStep, { minLength: 400, maxLength: 400 }), { numRuns: 1, seed: 13 }).flat();
  const writers = await Promise.all(Array.from({ length: 5 }, () => pool.connect()));
  const open = writers.map(() => false);
  const seen: string[] = [];
  let pageToken = "";
  let rolledBack = 0;
  const read = async (pageSize: number) => {
    const page = await server.admin.listAuditEvents({ kind: "late.event", pageSize, pageToken });
    seen.push(...page.auditEvents.map(({ name }) => name));
    pageToken = page.resumeToken;
    return page.nextPageToken !== "";
  };
  const end = async (at: number, how: "commit" | "rollback") => {
    await writers[at]?.query(how);
    open[at] = false;
  };
  try {
    for (const { who, what, size } of steps) {
      const writer = writers[who];
      if (writer === undefined) {
        await read(size);
        continue;
      }
      if (open[who] !== true) {
        await writer.query("begin");
        open[who] = true;
      }
      // Most stay open for long: the one that began first is often the last.
      if (what < 80) {
        await writer.query(
          "select holdfast.append_audit('default', holdfast.clock(), 'late.event', 'server', 'test', '', '{}')",
        );
      } else if (what < 95) await end(who, "commit");
      else {
        rolledBack += 1;
        await end(who, "rollback");
      }
    }
    for (const at of writers.keys()) if (open[at] === true) await end(at, "commit");
  } finally {
    for (const writer of writers) writer.release();
  }
  const { rows } = await pool.query<{ name: string }>(
    "select 'auditEvents/' || xid || '-' || n as name from holdfast.audit_events where kind = 'late.event' order by xid, n",
  );
  await vi.waitFor(
    async () => {
      while (await read(3));
      expect(seen.length).toBeGreaterThanOrEqual(rows.length);
    },
    { timeout: 120_000, interval: 50 },
  );
  expect(rolledBack).toBeGreaterThan(5);
  expect(seen).toEqual(rows.map(({ name }) => name));
}, 300_000);

test("a key's events are those by it and those about it, whoever did them", async () => {
  const token = await server.vaultKey("audited");
  const { authorization } = await server.spend(token).authorizeSpend({
    spend: { customerId: "c9", billingPeriod: "2026-11", purpose: "sub", amount: { currency: "usd", amount: "1" } },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: "0".repeat(32),
  });
  const name = authorization?.name ?? "";
  await server.spend(token).reportUnknown({ authorization: name, attemptId: "0".repeat(32) });
  await server.admin.resolveAuthorization({ name, resolution: { case: "voided", value: {} }, reason: "test" });
  await server.admin.suspendVaultKey({ name: "vaultKeys/audited" });
  const { auditEvents } = await server.admin.listAuditEvents({ vaultKey: "vaultKeys/audited", newestFirst: true });
  expect(auditEvents.map(({ kind, actor }) => `${kind} ${actor}`).toReversed()).toEqual([
    "vault_key.created operators/test",
    "spend.granted vaultKeys/audited",
    "spend.in_doubt vaultKeys/audited",
    "spend.voided operators/test",
    "vault_key.suspended operators/test",
  ]);
  expect(new Set(auditEvents.map(({ vaultKey }) => vaultKey))).toEqual(new Set(["vaultKeys/audited"]));
});

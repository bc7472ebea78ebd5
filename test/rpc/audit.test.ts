import { randomBytes } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { AuditEvent, ListAuditEventsRequestSchema } from "@holdfast/api/holdfast/v1/audit_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
const tokens = new Map<string, string>();

beforeAll(async () => {
  server = await startTestServer();
  for (const key of ["one", "two"]) tokens.set(key, await server.vaultKey(key));
  await server.cap("all", "45");
});
afterAll(() => server.close());

type Query = Exclude<MessageInitShape<typeof ListAuditEventsRequestSchema>, { $typeName: string }>;

async function authorize(key: string, customerId: string): Promise<void> {
  await server.spend(tokens.get(key)).authorizeSpend({
    spend: {
      customerId,
      billingPeriod: "2026-11",
      purpose: randomBytes(8).toString("hex"),
      amount: { currency: "usd", amount: "10" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/payment_intents",
    attemptId: randomBytes(16).toString("hex"),
    settlement: Settlement.SEND_ONCE,
  });
}

async function everything(query: Query = {}): Promise<AuditEvent[]> {
  const events: AuditEvent[] = [];
  for (let pageToken = ""; ; ) {
    const page = await server.admin.listAuditEvents({ pageSize: 7, ...query, pageToken });
    events.push(...page.auditEvents);
    pageToken = page.nextPageToken;
    if (pageToken === "") return events;
  }
}

const names = (events: readonly AuditEvent[]) => events.map(({ name }) => name);

test("every combination of filters shows what a look at every event shows", async () => {
  for (const [at, key] of ["one", "two", "one", "two", "one", "one", "two"].entries()) {
    await authorize(key, `cust_${at % 3}`);
  }
  // Any transaction in the cluster may hold the oldest-first reader back for a moment.
  const all = await vi.waitFor(
    async () => {
      const events = await everything();
      expect(events.filter(({ kind }) => kind.startsWith("spend."))).toHaveLength(7);
      return events;
    },
    { timeout: 60_000, interval: 20 },
  );
  const sample = all.find(({ disposition, actor }) => disposition === "DENIED" && actor === "vaultKeys/two");
  const granted = all.find(({ kind }) => kind === "spend.granted");
  if (sample?.eventTime === undefined || granted === undefined) throw new Error("nothing was denied or granted");
  const dimensions: readonly (readonly [Query, (event: AuditEvent) => boolean])[] = [
    [{ kind: "spend" }, ({ kind }) => kind.startsWith("spend.")],
    [{ kind: "spend.granted" }, ({ kind }) => kind === "spend.granted"],
    [{ actor: "vaultKeys/two" }, ({ actor }) => actor === "vaultKeys/two"],
    [{ customerId: "cust_1" }, ({ customerId }) => customerId === "cust_1"],
    [{ disposition: "DENIED" }, ({ disposition }) => disposition === "DENIED"],
    [{ authorization: granted.authorization }, ({ authorization }) => authorization === granted.authorization],
    [{ startTime: sample.eventTime }, (event) => microsOf(event) >= microsOf(sample)],
    [{ endTime: sample.eventTime }, (event) => microsOf(event) < microsOf(sample)],
  ];
  for (let chosen = 0; chosen < 2 ** dimensions.length; chosen += 1) {
    const some = dimensions.filter((_, bit) => (chosen & (2 ** bit)) !== 0);
    const query: Query = Object.assign({}, ...some.map(([part]) => part));
    // Both kinds at once are one field, of which the later one stands.
    const rules = some.filter(([part]) => part.kind === undefined || part.kind === query.kind).map(([, rule]) => rule);
    const expected = all.filter((event) => rules.every((rule) => rule(event)));
    expect(names(await everything(query))).toEqual(names(expected));
    expect(names(await everything({ ...query, newestFirst: true }))).toEqual(names(expected).toReversed());
  }
}, 120_000);

function microsOf({ eventTime }: AuditEvent): bigint {
  return (eventTime?.seconds ?? 0n) * 1_000_000n + BigInt(Math.trunc((eventTime?.nanos ?? 0) / 1000));
}

test("a reader that goes on from its token loses and repeats nothing while others write", async () => {
  const writers = await Promise.all(Array.from({ length: 3 }, () => server.database.pool.connect()));
  const written: string[] = [];
  const seen: string[] = [];
  let pageToken = "";
  const read = async () => {
    const page = await server.admin.listAuditEvents({ pageSize: 4, pageToken, kind: "test.event" });
    seen.push(...page.auditEvents.map(({ reason }) => reason));
    pageToken = page.resumeToken;
    return page.nextPageToken !== "";
  };
  try {
    // The transaction that begins first ends last: its events stand before all others.
    for (const [at, writer] of writers.entries()) {
      await writer.query("begin");
      await writer.query(
        "select holdfast.append_audit('default', holdfast.clock(), 'test.event', 'server', 'test', '', '{}', null, null, $1)",
        [`first of ${at}`],
      );
      written.push(`first of ${at}`);
    }
    await read();
    expect(seen).toEqual([]);
    for (const at of [2, 1]) {
      await writers[at]?.query("commit");
      while (await read());
    }
    expect(seen).toEqual([]);
    await writers[0]?.query("commit");
    await vi.waitFor(
      async () => {
        while (await read());
        expect(seen).toHaveLength(written.length);
      },
      { timeout: 60_000, interval: 20 },
    );
    expect(seen.toSorted()).toEqual(written.toSorted());
    await read();
    expect(seen).toHaveLength(written.length);
  } finally {
    for (const writer of writers) writer.release();
  }
});

test("figures that JavaScript cannot carry arrive as text", async () => {
  const detail = `{"large": 9007199254740993, "small": 5, "list": [1000000000000000000], "text": "x"}`;
  await server.database.pool.query(
    "select holdfast.append_audit('default', holdfast.clock(), 'test.large', 'server', 'test', '', $1::jsonb)",
    [detail],
  );
  const [event] = await everything({ kind: "test.large", newestFirst: true });
  expect(event?.detail).toEqual({ large: "9007199254740993", small: 5, list: ["1000000000000000000"], text: "x" });
});

test("a page token of somebody else is refused", async () => {
  await expect(server.admin.listAuditEvents({ pageToken: "WyJ4IiwiMSJd" })).rejects.toThrow(/page_token/);
});

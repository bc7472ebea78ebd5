import { setImmediate as turn } from "node:timers/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { WatchAuditEventsRequestSchema, WatchAuditEventsResponse } from "@holdfast/api/holdfast/v1/audit_pb";
import { OperatorRole } from "@holdfast/api/holdfast/v1/operator_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ servers: 2 });
});
afterAll(() => server.close());

type Request = Exclude<MessageInitShape<typeof WatchAuditEventsRequestSchema>, { $typeName: string }>;

/** A stream whose messages are asked for one by one. */
function watch(request: Request, { token = server.operatorToken, at = 0 } = {}) {
  const ending = new AbortController();
  const messages = server.adminAs(token, at).watchAuditEvents(request, { signal: ending.signal });
  const iterator = messages[Symbol.asyncIterator]();
  return {
    async next(): Promise<WatchAuditEventsResponse | undefined> {
      const { done, value } = await iterator.next();
      return done === true ? undefined : value;
    },
    async end(): Promise<void> {
      ending.abort();
      await iterator.next().catch(() => {});
    },
  };
}

async function append(kind: string, count: number): Promise<void> {
  const { pool } = server.database;
  const client = await pool.connect();
  try {
    await client.query("begin");
    for (let n = 0; n < count; n += 1) {
      await client.query("select holdfast.append_audit('default', holdfast.clock(), $1, 'server', 'test', '', '{}')", [
        kind,
      ]);
      await turn();
    }
    await client.query(Math.random() < 0.2 ? "rollback" : "commit");
  } finally {
    client.release();
  }
}

async function namesOf(kind: string): Promise<string[]> {
  const { rows } = await server.database.pool.query<{ name: string }>(
    "select 'auditEvents/' || xid || '-' || n as name from holdfast.audit_events where kind = $1 order by xid, n",
    [kind],
  );
  return rows.map(({ name }) => name);
}

test("a watcher that reconnects at random, at either server, gets what a full listing has", async () => {
  const seen: string[] = [];
  let resumeToken = "";
  let writing = true;
  const writers = Promise.all(
    Array.from({ length: 4 }, async () => {
      for (let round = 0; round < 40; round += 1) await append("watched.event", 1 + Math.floor(Math.random() * 5));
    }),
  ).finally(() => {
    writing = false;
  });
  const watching = (async () => {
    for (let connection = 0; ; connection += 1) {
      const stream = watch(
        { kind: "watched", resumeToken, heartbeatInterval: { seconds: 1n } },
        { at: connection % 2 },
      );
      const messages = 1 + Math.floor(Math.random() * 4);
      for (let n = 0; n < messages; n += 1) {
        const message = await stream.next();
        if (message === undefined) break;
        seen.push(...message.auditEvents.map(({ name }) => name));
        ({ resumeToken } = message);
      }
      await stream.end();
      if (!writing && seen.length >= (await namesOf("watched.event")).length) return;
    }
  })();
  await Promise.all([writers, watching]);
  expect(seen).toEqual(await namesOf("watched.event"));
  const listed = await server.admin.listAuditEvents({ kind: "watched", pageSize: 200 });
  expect(seen.slice(0, listed.auditEvents.length)).toEqual(listed.auditEvents.map(({ name }) => name));
}, 300_000);

test("a heartbeat says how far everything is while nothing happens, and List goes on from there", async () => {
  const stream = watch({ kind: "quiet", heartbeatInterval: { seconds: 1n } });
  const first = await stream.next();
  expect(first?.auditEvents).toEqual([]);
  const second = await stream.next();
  expect(second?.auditEvents).toEqual([]);
  await stream.end();
  await append("quiet.other", 0);
  for (;;) {
    await append("quiet.event", 1);
    if ((await namesOf("quiet.event")).length > 0) break;
  }
  const again = watch({ kind: "quiet", resumeToken: second?.resumeToken ?? "" });
  for (;;) {
    const message = await again.next();
    if (message === undefined) throw new Error("the stream ended");
    if (message.auditEvents.length === 0) continue;
    expect(message.auditEvents.map(({ name }) => name)).toEqual(await namesOf("quiet.event"));
    break;
  }
  await again.end();
  const listed = await server.admin.listAuditEvents({ kind: "quiet", pageToken: second?.resumeToken ?? "" });
  expect(listed.auditEvents.map(({ name }) => name)).toEqual(await namesOf("quiet.event"));
});

test("events of others do not keep a heartbeat back", async () => {
  const stream = watch({ kind: "none", heartbeatInterval: { seconds: 1n } });
  let busy = true;
  const writing = (async () => {
    while (busy) await append("busy.event", 1);
  })();
  const [first, second] = [await stream.next(), await stream.next()];
  busy = false;
  await writing;
  await stream.end();
  expect([first?.auditEvents, second?.auditEvents]).toEqual([[], []]);
  expect(second?.resumeToken).not.toBe(first?.resumeToken);
});

test("an auditor may watch, until they are revoked", async () => {
  const { token } = await server.admin.createOperator({ operatorId: "eve", role: OperatorRole.AUDITOR });
  const stream = watch({ kind: "operator", heartbeatInterval: { seconds: 1n } }, { token });
  expect((await stream.next())?.resumeToken).not.toBe("");
  await server.admin.revokeOperator({ name: "operators/eve", reason: "has left" });
  const ended = (async () => {
    for (;;) await stream.next();
  })();
  await expect(ended).rejects.toMatchObject({ code: Code.Unauthenticated });
});

test("as many as are admitted may watch, and one that goes leaves its place to another", async () => {
  const streams = Array.from({ length: 16 }, () => watch({ kind: "none" }));
  await Promise.all(streams.map((stream) => stream.next()));
  const refused = await watch({ kind: "none" })
    .next()
    .then(
      () => undefined,
      (error: unknown) => ConnectError.from(error),
    );
  expect(refused?.code).toBe(Code.ResourceExhausted);
  expect(refused?.findDetails(RetryInfoSchema)).toHaveLength(1);
  for (const stream of streams) await stream.end();
  for (;;) {
    const stream = watch({ kind: "none" });
    // The server learns a moment later that they have gone.
    const message = await stream.next().catch(() => undefined);
    await stream.end();
    if (message !== undefined) break;
  }
});

test("a server that stops ends its streams at once with UNAVAILABLE and when to come again", async () => {
  const stopping = await startTestServer({ config: { shutdownGraceMs: 600_000 } });
  try {
    const messages = stopping.admin.watchAuditEvents({ kind: "none" })[Symbol.asyncIterator]();
    await messages.next();
    const ended = messages.next().then(
      () => undefined,
      (error: unknown) => ConnectError.from(error),
    );
    await stopping.apps[0]?.close();
    const error = await ended;
    expect(error?.code).toBe(Code.Unavailable);
    expect(error?.findDetails(RetryInfoSchema)).toHaveLength(1);
  } finally {
    await stopping.close();
  }
}, 120_000);

import { type Client, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";

// A heap of 64 MB, a lock that stops every batch, and callers who go on asking.

let postgres: DurablePostgres;
let policy: Policy;
let server: ServerProcess | undefined;

beforeAll(async () => {
  postgres = await startDurablePostgres();
  server = await startServerProcess({ connection: postgres.connection });
  policy = await createPolicy(server.url, operatorToken, "1000000");
  await spendsOf(server).authorizeSpend(dollar("counter"));
  await server.end("SIGTERM");
});
afterAll(async () => {
  server?.child.kill("SIGKILL");
  await postgres?.close();
});

async function startSmall(queueMax: number): Promise<ServerProcess> {
  const env = { HOLDFAST_QUEUE_MAX: `${queueMax}`, HOLDFAST_BATCH_MAX: "1", HOLDFAST_LOG_LEVEL: "info" };
  server = await startServerProcess({ connection: postgres.connection, env, nodeFlags: ["--max-old-space-size=64"] });
  return server;
}

function spendsOf({ url }: ServerProcess): Client<typeof SpendControlService> {
  return createClient(SpendControlService, transportOf(url, policy.vaultKey));
}

async function withLock<Value>(work: () => Promise<Value>): Promise<Value> {
  const locker = new pg.Client(postgres.connection);
  await locker.connect();
  try {
    await locker.query("begin");
    await locker.query("select from holdfast.counters for update");
    return await work();
  } finally {
    await locker.end();
  }
}

const batch = (name: string) => Array.from({ length: 500 }, (_, n) => dollar(`${name}-${n}-${"x".repeat(80)}`));

test("a queue with a bound: the surplus is refused at once, and the process lives", async () => {
  const small = await startSmall(1_000);
  const spends = spendsOf(small);
  await withLock(async () => {
    const gone = new AbortController();
    const waiting = [0, 1, 2].map((n) =>
      spends.batchAuthorizeSpend({ requests: batch(`gone-${n}`) }, { signal: gone.signal }).catch(() => undefined),
    );
    const surplus = async () => (await refused(spends.authorizeSpend(dollar("surplus")))).reason;
    await expect.poll(surplus).toBe("QUEUE_FULL");
    gone.abort();
    await Promise.all(waiting);
  });
  expect(small.child.exitCode).toBe(null);
  expect(await small.end("SIGTERM")).toBe(0);
});

test("a queue without one: the process dies of it, leaves nothing half done, and every caller is granted once later", async () => {
  const small = await startSmall(1_000_000);
  const asked: ReturnType<typeof dollar>[][] = [];
  const how = await withLock(async () => {
    const spends = spendsOf(small);
    const waiting: Promise<unknown>[] = [];
    let dead = false;
    void small.ended.then(() => (dead = true));
    for (let n = 0; n < 400 && !dead; n += 1) {
      const requests = batch(`flood-${n}`);
      asked.push(requests);
      waiting.push(spends.batchAuthorizeSpend({ requests }).catch(() => undefined));
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all(waiting);
    return await small.ended;
  });
  expect(["SIGABRT", "SIGTRAP"]).toContain(how);
  expect(small.errors()).toContain("heap");
  const flood = "select count(*)::int4 as n from holdfast.authorizations where customer_id like 'flood-0-%'";
  // What waited for the lock when the process died may get it and commit; nobody was told.
  const [{ n: late } = {}] = await ask(postgres.connection, flood);
  expect(late).toBeLessThan(10);
  server = await startServerProcess({ connection: postgres.connection });
  const [requests = []] = asked;
  const { results } = await spendsOf(server).batchAuthorizeSpend({ requests });
  const dispositions = results.map(({ result }) => (result.case === "response" ? result.value.disposition : undefined));
  expect(new Set(dispositions)).toEqual(new Set([Disposition.GRANTED]));
  expect(await ask(postgres.connection, flood)).toEqual([{ n: 500 }]);
  expect(await server.end("SIGTERM")).toBe(0);
});

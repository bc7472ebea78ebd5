import { type Client, createClient } from "@connectrpc/connect";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { capName, createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";

// A heap of 128 MB, a lock that stops every batch, and callers.

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

// On SIGUSR2 it allocates until there is nothing left, in the middle of whatever is going on.
const hungry = "process.on('SIGUSR2', () => { for (const all = []; ; ) all.push(new Array(1e5).fill(all.length)) })";

async function startSmall(env: Readonly<Record<string, string>>): Promise<ServerProcess> {
  const nodeFlags = ["--max-old-space-size=128", "--import", `data:text/javascript,${encodeURIComponent(hungry)}`];
  server = await startServerProcess({ connection: postgres.connection, env, nodeFlags });
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
  const small = await startSmall({ HOLDFAST_QUEUE_MAX: "1000", HOLDFAST_BATCH_MAX: "1" });
  const spends = spendsOf(small);
  await withLock(async () => {
    const gone = new AbortController();
    const waiting: Promise<unknown>[] = [];
    // What waits is dropped at its deadline, so each try brings more of it.
    const surplus = async () => {
      const n = waiting.length;
      waiting.push(
        spends.batchAuthorizeSpend({ requests: batch(`gone-${n}`) }, { signal: gone.signal }).catch(() => undefined),
      );
      return (await refused(spends.authorizeSpend(dollar(`surplus-${n}`), { timeoutMs: 1_000 }))).reason;
    };
    await expect.poll(surplus).toBe("QUEUE_FULL");
    gone.abort();
    await Promise.all(waiting);
  });
  expect(small.child.exitCode).toBe(null);
  expect(await small.end("SIGTERM")).toBe(0);
});

test("no memory left under load: the process aborts, leaves nothing half done, and every caller is granted once later", async () => {
  const small = await startSmall({});
  const requests = Array.from({ length: 4 }, (_, n) => batch(`flood-${n}`));
  const how = await withLock(async () => {
    const spends = spendsOf(small);
    const waiting = requests.map((some) => spends.batchAuthorizeSpend({ requests: some }).catch(() => undefined));
    const locked = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%authorize_batch%'";
    await expect.poll(() => ask(postgres.connection, locked)).not.toEqual([]);
    small.child.kill("SIGUSR2");
    await Promise.all(waiting);
    return await small.ended;
  });
  expect(["SIGABRT", "SIGTRAP"]).toContain(how);
  expect(small.errors()).toContain("heap");
  server = await startServerProcess({ connection: postgres.connection });
  // What was in the database when the process died may have been committed all the same; its attempt is told.
  for (const some of requests) {
    const { results } = await spendsOf(server).batchAuthorizeSpend({ requests: some });
    const dispositions = results.map(({ result }) =>
      result.case === "response" ? result.value.disposition : undefined,
    );
    expect(new Set(dispositions)).toEqual(new Set([Disposition.GRANTED]));
  }
  const flood = "select count(*)::int4 as n from holdfast.authorizations where customer_id like 'flood-%'";
  expect(await ask(postgres.connection, flood)).toEqual([{ n: 2_000 }]);
  const admin = createClient(AdminService, transportOf(server.url, operatorToken));
  const { usage } = await admin.getCap({ name: capName });
  const [{ n } = {}] = await ask(postgres.connection, "select count(*)::int4 as n from holdfast.authorizations");
  expect(usage?.held?.amount).toBe(String(n));
  expect(await server.end("SIGTERM")).toBe(0);
});

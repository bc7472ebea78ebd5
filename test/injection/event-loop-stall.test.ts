import { setTimeout as delay } from "node:timers/promises";
import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";

let postgres: DurablePostgres;
let server: ServerProcess;
let policy: Policy;

beforeAll(async () => {
  postgres = await startDurablePostgres();
  server = await startServerProcess({ connection: postgres.connection });
  policy = await createPolicy(server.url, operatorToken);
});
afterAll(async () => {
  server?.child.kill("SIGCONT");
  await server?.end("SIGTERM");
  await postgres?.close();
});

const deadlineMs = 2_000;

/** A caller that has told its deadline and keeps no clock of its own. */
async function post(request: object): Promise<unknown> {
  const response = await fetch(`${server.url}/holdfast.v1.SpendControlService/AuthorizeSpend`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      authorization: `Bearer ${policy.vaultKey}`,
      "connect-timeout-ms": `${deadlineMs}`,
    },
    body: JSON.stringify({ ...request, settlement: "SETTLEMENT_SEND_ONCE" }),
  });
  return await response.json();
}

test("a process that stood still past the deadline of a waiting call: told so, and the database never hears of it", async () => {
  const spends = createClient(SpendControlService, transportOf(server.url, policy.vaultKey));
  const { authorization } = await spends.authorizeSpend(dollar("first"));
  const locker = new pg.Client(postgres.connection);
  await locker.connect();
  await locker.query("begin");
  await locker.query("select from holdfast.counters for update");
  // One call is in the database, so that the next one waits in the server.
  const inDatabase = refused(spends.authorizeSpend(dollar("in-database")));
  await expect
    .poll(() => ask(postgres.connection, "select pid from pg_stat_activity where wait_event_type = 'Lock'"))
    .toHaveLength(1);
  const waiting = post(dollar("waiting"));
  // Answered after the waiting call has arrived.
  await spends.getAuthorization({ lookup: { case: "name", value: authorization?.name ?? "" } });
  server.child.kill("SIGSTOP");
  // Nothing but the time passes: the deadline, and the wait of the first call for its lock.
  await delay(deadlineMs + 500);
  await locker.query("rollback");
  await locker.end();
  server.child.kill("SIGCONT");
  expect(await waiting).toMatchObject({ code: "deadline_exceeded" });
  await inDatabase;
  // What came after it in the same lane has been through the database.
  expect(await spends.authorizeSpend(dollar("last"))).toMatchObject({ disposition: Disposition.GRANTED });
  const rows = await ask(postgres.connection, "select customer_id from holdfast.authorizations order by 1");
  expect(rows).toEqual([{ customer_id: "first" }, { customer_id: "last" }]);
});

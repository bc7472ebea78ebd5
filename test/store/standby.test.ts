import { createClient } from "@connectrpc/connect";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createToken } from "../../server/rpc/auth.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask, type Replication, startReplication } from "../support/standby.ts";

let replication: Replication;
let app: App;
let policy: Policy;
const operatorToken = createToken("op", "default", "root");

beforeAll(async () => {
  replication = await startReplication();
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  app = await startApp(config, { connection: replication.address });
  policy = await createPolicy(app.url, operatorToken);
  await replication.caughtUp();
});
afterAll(async () => {
  await app?.close();
  await replication?.close();
});

const spend = () => createClient(SpendControlService, transportOf(app.url, policy.vaultKey));

function request(customerId: string, attemptId: string) {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose: "subscription", amount: { currency: "usd", amount: "10" } },
    vendor: "stripe",
    endpoint: "POST /v1/charges",
    settlement: Settlement.SEND_ONCE,
    attemptId: attemptId.repeat(32),
  };
}

const waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep' and query like '%authorize_batch%'";

/** Commits wait for the standby from now on, and it takes nothing. */
async function standbyHangs(): Promise<void> {
  await replication.cut();
  await ask(replication.primary, "alter system set synchronous_standby_names = 'standby'");
  await ask(replication.primary, "select pg_reload_conf()");
}

/** Repeats a call with other customers until one waits: a commit waits only once the checkpointer knows the setting. */
async function waitingCall(name: string): Promise<{ customerId: string; answer: Promise<unknown> }> {
  for (let n = 0; ; n += 1) {
    const customerId = `${name}-${n}`;
    let ended = false;
    const answer = spend()
      .authorizeSpend(request(customerId, "a"))
      .catch((error: unknown) => error)
      .finally(() => {
        ended = true;
      });
    await expect
      .poll(async () => ended || (await ask(replication.primary, waiting)).length === 1, { interval: 10 })
      .toBe(true);
    if (!ended) return { customerId, answer };
  }
}

test("a grant that the synchronous standby did not confirm is an unknown outcome, however its wait ends", async () => {
  await standbyHangs();
  for (const [name, how] of [
    ["cancelled", "pg_cancel_backend"],
    ["terminated", "pg_terminate_backend"],
  ] as const) {
    const { customerId, answer } = await waitingCall(name);
    await ask(replication.primary, `select ${how}(pid) from (${waiting}) w`);
    expect(await answer, name).toMatchObject({ rawMessage: expect.stringContaining("may have been carried out") });
    // It was, here: the same attempt learns it once a commit can be confirmed again. Nobody was told that it is durable.
    expect(
      await ask(replication.primary, `select state from holdfast.authorizations where customer_id = '${customerId}'`),
    ).toEqual([{ state: "HELD" }]);
  }
  // The server itself gives up waiting, and says the same.
  const { customerId, answer } = await waitingCall("timed-out");
  expect(await answer).toMatchObject({ rawMessage: expect.stringContaining("may have been carried out") });

  await ask(replication.primary, "alter system reset synchronous_standby_names");
  await ask(replication.primary, "select pg_reload_conf()");
  await expect.poll(async () => (await ask(replication.primary, waiting)).length).toBe(0);
  for (const again of ["cancelled", "terminated"]) {
    const [row] = await ask(
      replication.primary,
      `select customer_id from holdfast.authorizations where customer_id like '${again}-%' order by grant_time desc limit 1`,
    );
    const repeated = await spend().authorizeSpend(request(String(row?.["customer_id"]), "a"));
    expect(repeated).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: true });
  }
  expect((await spend().authorizeSpend(request(customerId, "a"))).mayHaveBeenSent).toBe(true);
  expect(
    await ask(
      replication.primary,
      "select customer_id from holdfast.authorizations group by customer_id having count(*) > 1",
    ),
  ).toEqual([]);
});

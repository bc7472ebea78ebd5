import { Code, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken } from "./server-process.ts";
import { dollar, refused, untilAnswered } from "./spend-call.ts";

let postgres: DurablePostgres;
let app: App;
let policy: Policy;

beforeAll(async () => {
  postgres = await startDurablePostgres();
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  app = await startApp(config, { connection: postgres.connection });
  policy = await createPolicy(app.url, operatorToken);
});
afterEach(() => waitFor("''"));
afterAll(async () => {
  await app?.close();
  await postgres?.close();
});

const waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep'";

/** Names the standbys that a commit waits for, and resolves when commits do. */
async function waitFor(names: "nobody" | "''"): Promise<void> {
  await ask(postgres.connection, `alter system set synchronous_standby_names = ${names}`);
  await ask(postgres.connection, "select pg_reload_conf()");
  if (names === "''") {
    await expect.poll(() => ask(postgres.connection, waiting)).toEqual([]);
    return;
  }
  // A commit waits once the checkpointer has read the setting too. A table that nobody uses shows when it has.
  for (let waits = false; !waits; ) {
    let over = false;
    const probe = ask(postgres.connection, "create table if not exists public.probe (n int4); drop table public.probe")
      .catch(() => {})
      .finally(() => (over = true));
    while (!over && !waits) {
      const [row] = await ask(postgres.connection, waiting);
      waits = row !== undefined;
      if (waits) await ask(postgres.connection, `select pg_cancel_backend(${String(row?.["pid"])})`);
    }
    await probe;
  }
}

const spends = () => createClient(SpendControlService, transportOf(app.url, policy.vaultKey));

const unknown = { code: Code.Unavailable, reason: "OUTCOME_UNKNOWN", retryInfo: true };

test("no standby confirms: the call ends by the server's own time as unknown, and its attempt learns its truth", async () => {
  await waitFor("nobody");
  const request = dollar("standby-down");
  // statement_timeout does not end this wait.
  expect(await refused(spends().authorizeSpend(request))).toEqual(unknown);
  await waitFor("''");
  expect(await untilAnswered(() => spends().authorizeSpend(request))).toMatchObject({
    disposition: Disposition.GRANTED,
    mayHaveBeenSent: true,
  });
  expect(await policy.usage()).toMatchObject({ held: "1" });
});

test("an operator who cancels the wait: unknown and never granted, although the database called it a success", async () => {
  await waitFor("nobody");
  const request = dollar("wait-cancelled");
  let over = false;
  const refusal = refused(spends().authorizeSpend(request)).finally(() => (over = true));
  while (!over) {
    await ask(postgres.connection, `select pg_cancel_backend(pid) from (${waiting}) waiting`);
  }
  expect(await refusal).toEqual(unknown);
  await waitFor("''");
  expect(await untilAnswered(() => spends().authorizeSpend(request))).toMatchObject({
    disposition: Disposition.GRANTED,
    mayHaveBeenSent: true,
  });
});

import { type Client, createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createPolicy, type Policy, transportOf } from "../crash/policy.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken } from "./server-process.ts";
import { dollar, type Refusal, untilAnswered } from "./spend-call.ts";

let postgres: DurablePostgres;
let app: App;
let policy: Policy;
let spends: Client<typeof SpendControlService>;

beforeAll(async () => {
  postgres = await startDurablePostgres();
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  app = await startApp(config, { connection: postgres.connection });
  policy = await createPolicy(app.url, operatorToken);
  spends = createClient(SpendControlService, transportOf(app.url, policy.vaultKey));
});
afterAll(async () => {
  await app?.close();
  await postgres?.close();
});

// SIGQUIT is what "pg_ctl stop -m immediate" sends.
test.each(["SIGQUIT", "SIGKILL"] as const)(
  "Postgres ended by %s under load: refusals say when to come back, no grant is lost, and it goes on by itself",
  async (signal) => {
    const refusals: Refusal[] = [];
    const granted: string[] = [];
    let down = false;
    const caller = async (who: number): Promise<void> => {
      for (let n = 0, after = 0; after < 3; n += 1) {
        const request = dollar(`${signal}-${who}-${n}`);
        // Also the call that was under way when Postgres ended is asked again until the truth is known.
        const { disposition } = await untilAnswered(() => spends.authorizeSpend(request), refusals);
        expect(disposition).toBe(Disposition.GRANTED);
        granted.push(request.spend.customerId);
        if (down && refusals.length > 0) after += 1;
      }
    };
    const callers = Promise.all(Array.from({ length: 8 }, (_, who) => caller(who)));
    await expect.poll(() => granted.length).toBeGreaterThan(20);
    const pid = postgres.pid;
    process.kill(pid, signal);
    down = true;
    await callers;
    expect(postgres.pid).not.toBe(pid);
    expect(refusals.length).toBeGreaterThan(0);
    const rows = await ask(
      postgres.connection,
      `select customer_id from holdfast.authorizations where customer_id like '${signal}-%' and state = 'HELD'`,
    );
    expect(new Set(rows.map((row) => row["customer_id"]))).toEqual(new Set(granted));
    expect(rows).toHaveLength(granted.length);
    // Once Postgres accepts a connection, the server answers without being started again.
    await ask(postgres.connection, "select 1");
    expect(await policy.usage()).toMatchObject({ committed: "0" });
  },
);

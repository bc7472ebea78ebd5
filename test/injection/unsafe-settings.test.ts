import { spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { createClient } from "@connectrpc/connect";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createPolicy, transportOf } from "../crash/policy.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { ask } from "../support/standby.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, type ServerProcessOptions, serveCommand, startServerProcess } from "./server-process.ts";
import { dollar, refused } from "./spend-call.ts";

// What the command does, not only its check: the exit code is what an orchestrator and an operator see.

let postgres: DurablePostgres;
beforeAll(async () => {
  postgres = await startDurablePostgres();
});
afterAll(() => postgres?.close());

async function startAndEnd(options: ServerProcessOptions): Promise<{ code: number; errors: string }> {
  const { program, args, env } = serveCommand(options);
  const child = spawn(program, args, { env, stdio: ["ignore", "ignore", "pipe"] });
  const [errors, [code]] = await Promise.all([text(child.stderr), once(child, "exit")]);
  return { code: code as number, errors };
}

async function alterDatabase(change: string): Promise<void> {
  await ask(postgres.connection, `alter database holdfast ${change}`);
}

test("a database with synchronous_commit off: the server does not start, and names the setting", async () => {
  await alterDatabase("set synchronous_commit = off");
  const { code, errors } = await startAndEnd({ connection: postgres.connection });
  await alterDatabase("reset synchronous_commit");
  expect([code, errors.includes("synchronous_commit")]).toEqual([78, true]);
});

test("the zones of the database and of the process change no window, and an unsafe session is not granted from", async () => {
  await alterDatabase("set timezone = 'Pacific/Kiritimati'");
  const server = await startServerProcess({ connection: postgres.connection, env: { TZ: "America/Adak" } });
  try {
    const policy = await createPolicy(server.url, operatorToken);
    const limit = { currency: "usd", amount: "5" };
    await policy.admin.createCap({ capId: "day", cap: { limit, window: CapWindow.DAY, timeZone: "UTC" } });
    const { usage } = await policy.admin.getCap({ name: "caps/day" });
    expect((usage?.windowEndTime?.seconds ?? 1n) % 86_400n).toBe(0n);

    const spends = createClient(SpendControlService, transportOf(server.url, policy.vaultKey));
    expect(await spends.authorizeSpend(dollar("safe"))).toMatchObject({ disposition: Disposition.GRANTED });
    await alterDatabase("set synchronous_commit = off");
    await ask(
      postgres.connection,
      `select pg_terminate_backend(pid, 60000) from pg_stat_activity
       where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'`,
    );
    // The first may still meet a connection that has just died.
    const reason = async () => (await refused(spends.authorizeSpend(dollar("unsafe")))).reason;
    await expect.poll(reason).toBe("DATABASE_UNAVAILABLE");
    const rows = await ask(postgres.connection, "select from holdfast.authorizations where customer_id = 'unsafe'");
    expect(rows).toEqual([]);
    await alterDatabase("reset synchronous_commit");
    expect(await spends.authorizeSpend(dollar("unsafe"))).toMatchObject({ disposition: Disposition.GRANTED });
  } finally {
    await server.end("SIGTERM");
  }
});

test("a cluster with fsync off: the server does not start, and names the setting", async () => {
  // The one that all tests share.
  const database = await createTestDatabase();
  const { code, errors } = await startAndEnd({ connection: database.connection });
  await database.close();
  expect([code, errors.includes("fsync")]).toEqual([78, true]);
});

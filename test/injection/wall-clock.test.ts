import { join } from "node:path";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { createClient } from "@connectrpc/connect";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createPolicy, transportOf } from "../crash/policy.ts";
import { startLineProcess } from "../crash/line-process.ts";
import { type StripeSimulator, startStripeSimulator } from "../support/stripe-simulator/index.ts";
import { type DurablePostgres, startDurablePostgres } from "./durable-postgres.ts";
import { operatorToken, startServerProcess } from "./server-process.ts";
import { dollar } from "./spend-call.ts";

const MINUTE_MS = 60_000;
const YEAR_MS = 365 * 24 * 60 * MINUTE_MS;
const SERVER_SHIFTS_MS = [-10 * MINUTE_MS, 110 * YEAR_MS];
const BILLING_SHIFTS_MS = [10 * MINUTE_MS, 110 * YEAR_MS];
const preload = join(import.meta.dirname, "shifted-clock.ts");

let postgres: DurablePostgres;
let client: pg.Client;
let simulator: StripeSimulator;
beforeAll(async () => {
  postgres = await startDurablePostgres();
  client = new pg.Client(postgres.connection);
  await client.connect();
  simulator = await startStripeSimulator();
});
afterAll(async () => {
  await simulator.close();
  await client.end();
  await postgres.close();
});

describe("no decision uses a wall clock but the database's", () => {
  test("servers and billing processes with wrong clocks grant, charge once, expire and lease as all others do", async () => {
    const servers = await Promise.all(
      SERVER_SHIFTS_MS.map((shiftMs) =>
        startServerProcess({
          connection: postgres.connection,
          nodeFlags: ["--import", preload],
          env: { SHIFTED_CLOCK_MS: String(shiftMs) },
        }),
      ),
    );
    try {
      const [first] = servers;
      const policy = await createPolicy(first?.url ?? "", operatorToken, "100");
      const clients = servers.map(({ url }) => createClient(SpendControlService, transportOf(url, policy.vaultKey)));
      // One spend at every server: one grant, and its hold ends by the database's clock.
      const asked = await Promise.all(clients.map((client) => client.authorizeSpend(dollar("clock"))));
      expect(asked.filter(({ disposition }) => disposition === Disposition.GRANTED)).toHaveLength(1);
      expect(asked.filter(({ disposition }) => disposition === Disposition.IN_PROGRESS)).toHaveLength(1);
      const { rows } = await client.query<{ seconds: number }>(
        "select extract(epoch from hold_expire_time - holdfast.clock())::int as seconds from holdfast.authorizations",
      );
      for (const { seconds } of rows) expect(seconds).toBeLessThanOrEqual(600);
      // A lease is held by one, for as long as the database says.
      const leases = await Promise.all(
        clients.map((client, n) =>
          client.acquireBillingLease({
            lease: "run",
            billingPeriod: "2026-11",
            holderId: `holder-${n}`,
            ttl: { seconds: 60n },
          }),
        ),
      );
      expect(new Set(leases.map(({ billingLease }) => billingLease?.holderId)).size).toBe(1);
      for (const { remaining } of leases) expect(Number(remaining?.seconds)).toBeLessThanOrEqual(60);
      // Billing processes whose own clocks are wrong, each at another server, all for the same customers.
      await billWrongly(
        servers.map(({ url }) => url),
        policy.vaultKey,
      );
      expect(await policy.usage()).toMatchObject({ committed: "14.70", held: "1" });
    } finally {
      await Promise.all(servers.map((server) => server.end("SIGTERM")));
    }
  });
});

async function billWrongly(urls: readonly string[], vaultKey: string): Promise<void> {
  const customers = ["clock-a", "clock-b", "clock-c"];
  const processes = BILLING_SHIFTS_MS.map((shiftMs) =>
    startLineProcess(join(import.meta.dirname, "../crash/billing-process.ts"), {
      nodeFlags: ["--import", preload],
      env: { SHIFTED_CLOCK_MS: String(shiftMs) },
    }),
  );
  try {
    for (const [index, process] of processes.entries()) {
      for (const customerId of customers) {
        process.tell({
          call: {
            id: customerId,
            kind: customerId === "clock-a" ? "one_call" : "two_step",
            baseUrl: urls[(index + 1) % urls.length],
            vaultKey,
            stripePort: simulator.port,
            customerId,
            amount: 490,
            timeoutMs: 60_000,
            vendorDeadlineMs: 20_000,
            holdMs: 60_000,
          },
        });
      }
    }
    for (const process of processes) {
      for (const customerId of customers) {
        const { outcome } = await process.said((line) => line["id"] === customerId && "outcome" in line);
        expect(outcome).toMatchObject({ status: "succeeded" });
        await process.said((line) => line["id"] === customerId && "closed" in line);
      }
    }
    const charged = simulator.movements().map(({ customer }) => String(customer));
    expect(charged.toSorted((a, b) => a.localeCompare(b))).toEqual(customers);
  } finally {
    await Promise.all(processes.map((process) => process.kill()));
  }
}

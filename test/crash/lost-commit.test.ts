import { mkdtemp, rm } from "node:fs/promises";
import { connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { Disposition, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { stableKey } from "@holdfast/sdk";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createToken } from "../../server/rpc/auth.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { type BillingKind, billingPeriod, purpose } from "./billing-call.ts";
import { type BillingClient, createBillingClient } from "./billing-client.ts";
import { createPolicy, type Policy, transportOf } from "./policy.ts";

const operatorToken = createToken("op", "default", "root");
let database: TestDatabase;
let folder: string;
let wire: Server;
let app: App;
let policy: Policy;
let simulator: StripeSimulator;
const sockets = new Set<Socket>();
const clients: BillingClient[] = [];
/** The statement whose next answer gets lost between the database, which has committed it, and the server. */
let losing: string | undefined;

beforeAll(async () => {
  database = await createTestDatabase();
  simulator = await startStripeSimulator();
  folder = await mkdtemp(join(tmpdir(), "holdfast-wire-"));
  wire = createServer((inner) => {
    const outer = connect(join(database.connection.host, ".s.PGSQL.5432"));
    let lost = false;
    inner.on("data", (data) => {
      if (losing !== undefined && data.includes(losing)) {
        losing = undefined;
        lost = true;
      }
      outer.write(data);
    });
    // The answer of an autocommitted statement comes after its commit.
    outer.on("data", (data) => (lost ? inner.destroy() : inner.write(data)));
    for (const socket of [inner, outer]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => (socket === inner ? outer : inner).destroy());
    }
  });
  await new Promise<void>((resolve) => wire.listen(join(folder, ".s.PGSQL.5432"), resolve));
  const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken } as const;
  app = await startApp(config, { connection: { ...database.connection, host: folder }, fsyncOff: "allowed" });
  policy = await createPolicy(app.url, operatorToken);
});
afterAll(async () => {
  await Promise.all(clients.map(({ holdfast }) => holdfast.close()));
  await app?.close();
  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => wire.close(resolve));
  await rm(folder, { recursive: true, force: true });
  await simulator.close();
  await database.close();
});

function client(customerId: string, kind: BillingKind): BillingClient {
  const made = createBillingClient({
    id: customerId,
    kind,
    baseUrl: app.url,
    vaultKey: policy.vaultKey,
    stripePort: simulator.port,
    customerId,
    amount: 490,
    timeoutMs: 60_000,
    vendorDeadlineMs: 20_000,
    holdMs: 60_000,
  });
  clients.push(made);
  return made;
}

async function kinds(customerId: string): Promise<Record<string, number>> {
  const { rows } = await database.pool.query<{ kind: string; n: number }>(
    "select kind, count(*)::int4 as n from holdfast.audit_events where customer_id = $1 group by kind",
    [customerId],
  );
  return Object.fromEntries(rows.map(({ kind, n }) => [kind, n]));
}

describe("a commit whose acknowledgement the server does not get", () => {
  test.each<[string, BillingKind]>([
    ["authorize_batch", "two_step"],
    ["bind_vendor_reference", "two_step"],
    ["commit_batch", "two_step"],
    ["authorize_batch", "one_call"],
    ["commit_batch", "one_call"],
  ])("%s, %s: answered from the row, one hold, one charge", async (lost, kind) => {
    const customerId = `${lost}-${kind}`;
    const before = Number((await policy.usage()).committed);
    losing = lost;
    const outcome = await client(customerId, kind).charge();
    expect(losing).toBe(undefined);
    expect(outcome).toMatchObject({ status: "succeeded" });
    expect(simulator.movements().filter(({ customer }) => customer === customerId)).toHaveLength(1);
    await expect
      .poll(() => kinds(customerId))
      .toMatchObject({
        "spend.granted": 1,
        "spend.committed": 1,
        ...(kind === "two_step" ? { "spend.bound": 1 } : {}),
      });
    const usage = await policy.usage();
    expect(Number(usage.committed)).toBeCloseTo(before + 4.9);
    expect(Number(usage.held)).toBe(0);
  });

  test.each([
    ["void_spend", "declined_402", "SpendAlreadyFailedError", "spend.voided"],
    ["report_unknown", "error_500_before", "SpendInDoubtError", "spend.in_doubt"],
  ] as const)("%s: done once, and nobody charges", async (lost, mode, error, event) => {
    simulator.fault({ mode, match: { key: stableKey(lost, billingPeriod, purpose) } });
    losing = lost;
    const { charge } = client(lost, "one_call");
    await charge();
    expect(losing).toBe(undefined);
    expect(await kinds(lost)).toMatchObject({ "spend.granted": 1, [event]: 1 });
    expect(await charge()).toMatchObject({ error });
    expect(simulator.movements().filter(({ customer }) => customer === lost)).toEqual([]);
  });

  test("the caller is told that the outcome is unknown, and the same attempt learns that it was granted", async () => {
    const spend = createClient(SpendControlService, transportOf(app.url, policy.vaultKey));
    const ask = (attempt: string) =>
      spend.authorizeSpend({
        spend: { customerId: "told", billingPeriod, purpose, amount: { currency: "usd", amount: "1" } },
        vendor: "stripe",
        endpoint: "POST /v1/charges",
        settlement: Settlement.SEND_ONCE,
        attemptId: attempt.repeat(32),
      });
    losing = "authorize_batch";
    await expect(ask("a")).rejects.toMatchObject({ rawMessage: expect.stringContaining("may have been carried out") });
    expect(await ask("b")).toMatchObject({ disposition: Disposition.IN_PROGRESS });
    expect(await ask("a")).toMatchObject({ disposition: Disposition.GRANTED, mayHaveBeenSent: true });
    expect(await kinds("told")).toMatchObject({ "spend.granted": 1 });
  });
});

import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type App, startApp } from "../../server/app.ts";
import { readConfig } from "../../server/config.ts";
import { createToken } from "../../server/rpc/auth.ts";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";
import { ask, type Replication, startReplication } from "../support/standby.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { type BillingClient, createBillingClient } from "./billing-client.ts";
import type { BillingKind, BillingOutcome } from "./billing-call.ts";
import { createPolicy, type Policy } from "./policy.ts";

const operatorToken = createToken("op", "default", "root");
const config = { ...readConfig({}, []), port: 0, logLevel: "silent", operatorToken, sweepIntervalMs: 500 } as const;
let replication: Replication;
let app: App;
let policy: Policy;
let simulator: StripeSimulator;
const clients: BillingClient[] = [];

beforeAll(async () => {
  [replication, simulator] = await Promise.all([startReplication(), startStripeSimulator()]);
  app = await startApp(config, { connection: replication.address });
  policy = await createPolicy(app.url, operatorToken);
});
afterAll(async () => {
  await Promise.all(clients.map(({ holdfast }) => holdfast.close()));
  await app?.close();
  await simulator?.close();
  await replication?.close();
});

interface Charge {
  readonly outcome: Promise<BillingOutcome>;
  /** Resolves when the call stands still. */
  readonly reached: Promise<void>;
  readonly goOn: () => void;
}

/** One call of a billing service of its own, which stands still at a point. */
function charge(customerId: string, kind: BillingKind, pauseAt = "", timeoutMs = 300_000): Charge {
  const reached = Promise.withResolvers<void>();
  const going = Promise.withResolvers<void>();
  const client = createBillingClient(
    {
      id: customerId,
      kind,
      baseUrl: app.url,
      vaultKey: policy.vaultKey,
      stripePort: simulator.port,
      customerId,
      amount: 490,
      timeoutMs,
      // Longer than this test can stand still.
      vendorDeadlineMs: 1_000_000,
      holdMs: 3_600_000,
    },
    async (point) => {
      if (point !== pauseAt) return;
      reached.resolve();
      await going.promise;
    },
  );
  clients.push(client);
  return { outcome: client.charge(), reached: reached.promise, goOn: () => going.resolve() };
}

function movementsOf(customerId: string): number {
  return simulator.movements().filter(({ customer }) => customer === customerId).length;
}

async function recover(connection: EmbeddedConnection): Promise<{ code: number; output: string; errors: string }> {
  const main = join(import.meta.dirname, "../../server/main.ts");
  const child = spawn(process.execPath, ["--conditions=holdfast-source", main, "recover"], {
    env: { DATABASE_URL: `postgres://holdfast@localhost/holdfast?host=${encodeURIComponent(connection.host)}` },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [output, errors, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  return { code: code as number, output, errors };
}

// What each customer's first call has come to when the primary is lost, and how it is told when it is made again.
const kinds: Readonly<Record<string, BillingKind>> = {
  settled: "two_step",
  late: "one_call",
  unbound: "two_step",
  bound: "two_step",
  "unbound-one-call": "one_call",
  creating: "two_step",
  "lost-two-step": "two_step",
  "lost-one-call": "one_call",
  new: "two_step",
};
const customers = Object.keys(kinds);
const again = (customerId: string) => charge(customerId, kinds[customerId] ?? "two_step").outcome;

test("after the promotion of a standby that lacks grants: no grant until the recovery, and nobody is charged twice", async () => {
  // What the standby has seen.
  const paused = {
    late: charge("late", "one_call", "after POST /v1/charges"),
    unbound: charge("unbound", "two_step", "before POST /v1/payment_intents"),
    bound: charge("bound", "two_step", "before POST /v1/payment_intents/:id/confirm"),
    "unbound-one-call": charge("unbound-one-call", "one_call", "before POST /v1/charges"),
    creating: charge("creating", "two_step", "after POST /v1/payment_intents"),
  };
  expect(await charge("settled", "two_step").outcome).toMatchObject({ status: "succeeded" });
  await Promise.all(Object.values(paused).map(({ reached }) => reached));
  await replication.caughtUp();
  await replication.cut();

  // What it has not, though callers were told.
  for (const name of ["unbound", "bound", "unbound-one-call"] as const) {
    paused[name].goOn();
    expect(await paused[name].outcome, name).toMatchObject({ status: "succeeded" });
  }
  for (const name of ["lost-two-step", "lost-one-call"]) {
    expect(await again(name), name).toMatchObject({ status: "succeeded" });
  }
  const charged = simulator.movements().length;
  expect(charged).toBe(7);

  await replication.stopPrimary();
  await replication.leadTo(replication.standby);
  // A replica is neither granted from nor recovered.
  expect(await charge("new", "two_step", "", 5000).outcome).toMatchObject({ error: "HoldfastUnavailableError" });
  expect(await recover(replication.standby)).toMatchObject({ code: 80 });
  await replication.promote();
  const lost = "select customer_id from holdfast.authorizations where customer_id like 'lost-%'";
  expect(await ask(replication.standby, lost)).toEqual([]);

  // The server that runs finds it out by itself: it settles and reads, and grants nothing to anybody.
  for (const name of customers.filter((customer) => customer !== "late" && customer !== "creating")) {
    expect(await again(name), name).toMatchObject({
      error: "HoldfastRefusedError",
      message: expect.stringContaining("holdfast recover"),
    });
  }
  paused.late.goOn();
  expect(await paused.late.outcome).toMatchObject({ status: "succeeded" });
  paused.creating.goOn();
  expect(await paused.creating.outcome).toMatchObject({ message: expect.stringContaining("holdfast recover") });
  expect(Number((await policy.usage()).committed)).toBeCloseTo(2 * 4.9);
  expect(simulator.movements()).toHaveLength(charged);

  // So does one that is started on it.
  const second = await startApp(config, { connection: replication.address });
  await second.close();

  const report = await recover(replication.standby);
  expect(report).toMatchObject({ code: 0, errors: "" });
  expect(report.output).toContain("a replica was promoted");
  expect(await recover(replication.standby)).toMatchObject({
    code: 0,
    output: expect.stringContaining("nothing to do"),
  });

  // Everybody is billed again.
  const outcomes = new Map<string, BillingOutcome>();
  for (const name of customers) outcomes.set(name, await again(name));
  for (const name of ["settled", "late", "bound", "lost-two-step", "lost-one-call", "new"]) {
    expect(outcomes.get(name), name).toMatchObject({ status: "succeeded" });
  }
  for (const name of ["unbound", "unbound-one-call", "creating"]) {
    expect(outcomes.get(name), name).toMatchObject({ error: "SpendInDoubtError" });
  }
  const once = Object.fromEntries(customers.map((name) => [name, name === "creating" ? 0 : 1]));
  expect(Object.fromEntries(customers.map((name) => [name, movementsOf(name)]))).toEqual(once);

  // Asking the vendor settles what was charged; what is unfinished there goes on counting.
  const { port } = simulator;
  const stripe = new Stripe("sk_test_1", { host: "127.0.0.1", port, protocol: "http", telemetry: false });
  const { counts } = await (clients[0] as BillingClient).holdfast.reconcile(stripe, { includeNotDue: true });
  expect(counts).toMatchObject({ committed: 2, open: 1 });
  for (const name of ["unbound", "unbound-one-call"]) {
    expect(await again(name), name).toMatchObject({ status: "succeeded" });
  }
  expect(Object.fromEntries(customers.map((name) => [name, movementsOf(name)]))).toEqual(once);
  const usage = await policy.usage();
  expect(Number(usage.committed)).toBeCloseTo(8 * 4.9);
  expect(Number(usage.held)).toBeCloseTo(4.9);
});

import { randomBytes } from "node:crypto";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import { ReconciliationRunState } from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { AuthorizationState, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import pg from "pg";
import Stripe from "stripe";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type DurablePostgres, startDurablePostgres } from "../injection/durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "../injection/server-process.ts";
import { startWire, type Wire } from "../injection/wire.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { secret } from "../vendor/world.ts";

let postgres: DurablePostgres;
let simulator: StripeSimulator;
let pool: pg.Pool;
let clock: TestClock;
/** Serves, and reconciles nothing. */
let office: ServerProcess;
let token: string;
const env = () => ({
  HOLDFAST_CREDENTIAL_KEY: Buffer.alloc(32, 7).toString("base64"),
  HOLDFAST_STRIPE_ORIGIN: simulator.url,
  HOLDFAST_ALTERED_CLOCK: "allowed",
  HOLDFAST_RECONCILE_READS_PER_SECOND: "1000",
});

function transport(bearer: string) {
  return createConnectTransport({
    baseUrl: office.url,
    httpVersion: "2",
    interceptors: [
      (next) => (request) => {
        request.header.set("authorization", `Bearer ${bearer}`);
        return next(request);
      },
    ],
  });
}
const admin = () => createClient(AdminService, transport(operatorToken));
const spends = () => createClient(SpendControlService, transport(token));

beforeAll(async () => {
  postgres = await startDurablePostgres();
  simulator = await startStripeSimulator();
  office = await startServerProcess({
    connection: postgres.connection,
    env: { ...env(), HOLDFAST_RECONCILE_INTERVAL_MS: "3600000" },
  });
  pool = new pg.Pool(postgres.connection);
  clock = await replaceClock(pool);
  const vaultKey = { vendor: "stripe", allowedEndpoints: ["POST /v1/charges"] };
  ({ token } = await admin().createVaultKey({ vaultKeyId: "billing", vaultKey }));
  const cap = { limit: { currency: "usd", amount: "1000" }, window: CapWindow.LIFETIME };
  await admin().createCap({ capId: "all", cap });
  await admin().createVendorCredential({ vendorCredentialId: "stripe", vendor: "stripe", secret });
});
afterAll(async () => {
  await office.end("SIGTERM");
  await pool.end();
  await simulator.close();
  await postgres.close();
});

/** A charge whose answer was lost. */
async function lostCharge(): Promise<string> {
  const attemptId = randomBytes(16).toString("hex");
  const { authorization } = await spends().authorizeSpend({
    spend: {
      customerId: `c${randomBytes(6).toString("hex")}`,
      billingPeriod: "2026-11",
      purpose: "subscription",
      amount: { currency: "usd", amount: "49" },
    },
    vendor: "stripe",
    endpoint: "POST /v1/charges",
    attemptId,
    settlement: Settlement.SEND_ONCE,
  });
  const name = authorization?.name ?? "";
  const { host, port } = simulator;
  await new Stripe(secret, { host, port, protocol: "http", telemetry: false }).charges.create(
    {
      amount: 4900,
      currency: "usd",
      source: "tok_visa",
      metadata: { holdfast_authorization: name.slice("authorizations/".length) },
    },
    { idempotencyKey: authorization?.idempotencyKey ?? "" },
  );
  await spends().reportUnknown({ authorization: name, attemptId });
  return name;
}

const replica = (connection: DurablePostgres["connection"]) =>
  startServerProcess({ connection, env: { ...env(), HOLDFAST_RECONCILE_INTERVAL_MS: "20" } });

interface Point {
  readonly name: string;
  readonly on: "way there" | "way back" | "vendor";
  readonly statement: string;
}

const points: readonly Point[] = [
  { name: "it has claimed", on: "way back", statement: "claim_vendor" },
  { name: "it reads", on: "vendor", statement: "" },
  { name: "it is about to commit", on: "way there", statement: "commit_batch" },
  { name: "it has committed", on: "way back", statement: "commit_batch" },
  { name: "a step of a run is about to be written", on: "way there", statement: "advance_reconciliation_run" },
  { name: "a step of a run was written", on: "way back", statement: "advance_reconciliation_run" },
];

test.each(points)("a server that is killed when $name leaves the rest to the next one", async ({ on, statement }) => {
  const name = await lostCharge();
  const startTime = { seconds: BigInt(Math.floor(simulator.now() / 1000) - 60), nanos: 0 };
  const { reconciliationRun } = await admin().startReconciliationRun({ vendor: "stripe", startTime });
  const wire: Wire = await startWire(postgres.connection);
  const hold =
    on === "vendor" ? simulator.fault({ mode: "hold", match: { method: "GET", path: "/v1/events" } }) : undefined;
  const there = on === "vendor" ? hold?.arrivals(1) : wire.stop(on, statement);
  const killed = await replica(wire.connection);
  await there;
  await killed.end("SIGKILL");
  simulator.clearFaults();
  await wire.close();
  // The killed one still has the claim.
  await clock.advance(61_000);
  const next = await replica(postgres.connection);
  const run = async () => {
    const { reconciliationRun: now } = await admin().getReconciliationRun({ name: reconciliationRun?.name ?? "" });
    return now;
  };
  await expect.poll(async () => (await run())?.state).toBe(ReconciliationRunState.DONE);
  await next.end("SIGTERM");
  const { authorization } = await spends().getAuthorization({ lookup: { case: "name", value: name } });
  expect(authorization?.state).toBe(AuthorizationState.COMMITTED);
  const { rows } = await pool.query<{ kind: string; count: string }>(
    "select e.kind, count(*) from holdfast.audit_events e where e.spend_key = $1 group by 1",
    [name.slice("authorizations/".length).split("-")[0]],
  );
  expect(rows.find(({ kind }) => kind === "spend.committed")?.count).toBe("1");
  expect((await admin().listContradictions({})).contradictions).toEqual([]);
  const { movementCount = 0n, differenceCount = 0n } = (await run()) ?? {};
  const movements = simulator.movements().filter(({ at }) => at >= Number(startTime.seconds) * 1000);
  expect([movementCount, differenceCount]).toEqual([BigInt(movements.length), 0n]);
});

import { randomBytes } from "node:crypto";
import type * as config from "../../server/config.ts";
import type * as figures from "../../server/figures.ts";
import type * as queues from "../../server/queues.ts";
import type * as instance from "../../server/store/instance.ts";
import type * as migrate from "../../server/store/migrate.ts";
import type * as postgres from "../../server/store/postgres.ts";
import type * as vaultKeyUse from "../../server/store/vault-key-use.ts";
import type * as telemetry from "../../server/telemetry.ts";
import { moduleOf } from "./checkout.ts";
import { type Contender, type Load, nextAttempt, someCustomer, type Surroundings, amountMicros } from "./contender.ts";
import { countedIn, endpoint, vaultKeyId, writePolicy } from "./policy.ts";

type Command = Parameters<ReturnType<typeof queues.authorizeQueue>["submit"]>[1];

/** The parts of a checkout's server that grant. */
async function partsOf(root: string) {
  return {
    ...(await moduleOf<typeof config>(root, "server/config.ts")),
    ...(await moduleOf<typeof queues>(root, "server/queues.ts")),
    ...(await moduleOf<typeof figures>(root, "server/figures.ts")),
    ...(await moduleOf<typeof telemetry>(root, "server/telemetry.ts")),
    ...(await moduleOf<typeof instance>(root, "server/store/instance.ts")),
    ...(await moduleOf<typeof migrate>(root, "server/store/migrate.ts")),
    ...(await moduleOf<typeof postgres>(root, "server/store/postgres.ts")),
    ...(await moduleOf<typeof vaultKeyUse>(root, "server/store/vault-key-use.ts")),
  };
}

/**
 * The engine as a server wires it, without the RPC in front: its pool, its group commit, its statement, its audit, its
 * spans and metrics.
 */
export async function openHoldfast({ connection, folder, root, isFirst }: Surroundings): Promise<Contender> {
  const parts = await partsOf(root);
  const config = parts.readConfig({ HOLDFAST_DATA_FOLDER: folder }, ["--embedded"]);
  const telemetry = parts.startTelemetry({ serviceName: "holdfast", metricIntervalMs: config.metricIntervalMs });
  const instance = parts.createInstanceWatch(() => {});
  const openPool = () =>
    parts.createPool({ connection, max: config.poolSize, onSession: (client) => instance.look(client) });
  const open = () => {
    const pool = openPool();
    const queue = parts.authorizeQueue(pool, config, parts.createVaultKeyUses(), parts.createFigures("hot"));
    return { pool, queue };
  };
  if (isFirst) await parts.migrate(connection);
  let now = open();
  await instance.start(now.pool);
  if (isFirst) await writePolicy(now.pool);
  const never = new AbortController().signal;
  return {
    async attempt(load) {
      const { disposition } = await now.queue.submit(load, newCommand(), never);
      return disposition === "GRANTED";
    },
    counted: (load: Load) => countedIn(now.pool, load),
    async reopen() {
      await now.pool.end();
      now = open();
    },
    async close() {
      await now.pool.end();
      await telemetry.shutdown();
    },
  };
}

/** A new spend, as a PaymentIntent of the SDK asks for one. */
export function newCommand(): Command {
  return {
    vaultKeyId,
    spend: { customerId: someCustomer(), billingPeriod: "2026-11", purpose: `bench-${process.pid}-${nextAttempt()}` },
    amount: { currency: "usd", micros: BigInt(amountMicros) as Command["amount"]["micros"] },
    vendor: "stripe",
    vendorAccount: "",
    endpoint,
    direction: "SPEND",
    refundOf: "",
    settlement: "TWO_STEP",
    resendSafeForMs: undefined,
    // Longer than a bench takes: what is counted afterwards must still be held.
    holdForMs: 24 * 3_600_000,
    attemptId: randomBytes(16).toString("hex"),
    bodyFingerprint: "0".repeat(64),
    retryAfterGeneration: 0,
    continueVendorReference: "",
    fence: undefined,
    traceId: "",
  };
}

import { randomBytes } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { AuthorizeSpendRequestSchema } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import pg from "pg";
import type * as config from "../../server/config.ts";
import type * as figures from "../../server/figures.ts";
import type * as queues from "../../server/queues.ts";
import type * as authorize from "../../server/rpc/authorize.ts";
import type * as instance from "../../server/store/instance.ts";
import type * as migrate from "../../server/store/migrate.ts";
import type * as postgres from "../../server/store/postgres.ts";
import type * as vaultKeyUse from "../../server/store/vault-key-use.ts";
import type * as telemetry from "../../server/telemetry.ts";
import { moduleOf } from "./checkout.ts";
import { type Contender, type Load, nextAttempt, someCustomer, type Surroundings } from "./contender.ts";
import { countedIn, vaultKeyId, writePolicy } from "./policy.ts";
import { newRequest } from "./rpc-calls.ts";

type Command = Parameters<ReturnType<typeof queues.authorizeQueue>["submit"]>[1];

/** The parts of a checkout's server that grant. */
async function partsOf(root: string) {
  return {
    ...(await moduleOf<typeof config>(root, "server/config.ts")),
    ...(await moduleOf<typeof authorize>(root, "server/rpc/authorize.ts")),
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
  const telemetry = parts.startTelemetry({
    serviceName: "holdfast",
    instanceId: "bench",
    metricIntervalMs: config.metricIntervalMs,
  });
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
  const patient = { signal: new AbortController().signal, deadlineAt: Infinity };
  // What a handler makes of a request. Of the next ones it is the same, but for what names the spend.
  const first = parts.authorizeCommand(create(AuthorizeSpendRequestSchema, newRequest()), vaultKeyId, "");
  // Random bytes for each would cost more than to refuse a call, which a flood measures.
  const ours = randomBytes(8).toString("hex");
  const newCommand = (): Command => {
    const number = nextAttempt();
    return {
      ...first,
      spend: { ...first.spend, customerId: someCustomer(), purpose: `bench-${process.pid}-${number}` },
      attemptId: `${ours}${number.toString(16).padStart(16, "0")}`,
    };
  };
  return {
    async attempt(load, { signal, deadlineAt } = patient) {
      const { disposition } = await now.queue.submit(load, newCommand(), signal, deadlineAt);
      return disposition === "GRANTED";
    },
    async counted(load: Load) {
      // A connection of its own: millions of rows take longer to count than a statement of a server may.
      const client = new pg.Client(connection);
      await client.connect();
      try {
        return await countedIn(client, load);
      } finally {
        await client.end();
      }
    },
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

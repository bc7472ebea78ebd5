import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createConnectTransport } from "@connectrpc/connect-node";
import type { Transport } from "@connectrpc/connect";
import type pg from "pg";
import { type App, startApp } from "../../server/app.ts";
import type { Config } from "../../server/config.ts";
import { createToken, tokenHash } from "../../server/rpc/auth.ts";
import { startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { createPool } from "../../server/store/postgres.ts";
import { insertOperator } from "../../server/store/operator.ts";
import { ensureWorkspace } from "../../server/store/workspace.ts";
import type { System } from "./command.ts";
import { createRpcSystem } from "./rpc-system.ts";

/** Servers on one database of their own whose clock stands still until it is set. */
export interface HistoryServer {
  /** A workspace that nothing has used yet. */
  open(): Promise<Workspace>;
  close(): Promise<void>;
}

export interface Workspace {
  /** The same workspace, seen through each replica. */
  readonly systems: readonly [System, ...System[]];
  readonly transport: Transport;
  readonly operatorToken: string;
  /** Its rows, for a recount that trusts no answer. */
  readonly pool: pg.Pool;
  readonly workspace: string;
}

const hour = 3_600_000;

export async function startHistoryServer(replicas = 1): Promise<HistoryServer> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-history-"));
  const closers: (() => Promise<unknown>)[] = [() => rm(folder, { recursive: true, force: true })];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).toReversed()) await closer();
  };
  try {
    const postgres = await startEmbeddedPostgres({ dataFolder: join(folder, "data"), fsync: false });
    closers.push(() => postgres.close());
    const transports: Transport[] = [];
    for (let replica = 0; replica < replicas; replica += 1) {
      const app = await startReplica(postgres.connection, folder);
      closers.push(() => app.close());
      transports.push(createConnectTransport({ baseUrl: app.url, httpVersion: "2" }));
    }
    const pool = createPool({ connection: postgres.connection, max: 2 });
    closers.push(() => pool.end());
    await replaceClock(pool);
    let opened = 0;
    return {
      open: async () => {
        opened += 1;
        return await openWorkspace(pool, transports, `h${opened}`);
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

async function startReplica(connection: pg.ClientConfig, dataFolder: string): Promise<App> {
  const config: Config = {
    database: { kind: "embedded", dataFolder },
    host: "127.0.0.1",
    port: 0,
    workspace: "main",
    logLevel: "error",
    poolSize: 10,
    batchMax: 500,
    queueMax: 10_000,
    // Never by itself: a history says when holds expire.
    sweepIntervalMs: hour,
    proxyAnswerDays: 30,
    auditRetentionDays: 400,
    preparedStatements: true,
    alteredClock: "allowed",
    metricIntervalMs: hour,
    shutdownGraceMs: 1_000,
    stripeOrigin: "https://api.stripe.com",
    reconcileIntervalMs: hour,
    reconcileReadsPerSecond: 5,
    reconcileReadsPerAuthorization: 100,
  };
  return await startApp(config, { connection, fsyncOff: "allowed" });
}

/** The clock becomes one row, so that every session sees an instant as soon as it was set. */
async function replaceClock(pool: pg.Pool): Promise<void> {
  await pool.query("create table public.history_clock (now timestamptz not null)");
  await pool.query("insert into public.history_clock values (clock_timestamp())");
  await pool.query(
    `create or replace function holdfast.clock() returns timestamptz language sql volatile parallel safe
     as $$ select now from public.history_clock $$`,
  );
}

async function openWorkspace(pool: pg.Pool, transports: readonly Transport[], workspace: string): Promise<Workspace> {
  const operatorToken = createToken("op", workspace, "history");
  await ensureWorkspace(pool, workspace);
  await insertOperator(pool, workspace, {
    operatorId: "history",
    role: "OPERATOR",
    secretSha256: tokenHash(operatorToken),
  });
  const shared = {
    operatorToken,
    tokens: new Map<string, string>(),
    currencies: new Map<string, string | null>(),
    setClock: async (now: number) => {
      await pool.query("update public.history_clock set now = $1::timestamptz", [new Date(now).toISOString()]);
    },
    sweep: async () => {
      await pool.query("select holdfast.sweep_expired($1::text, 1000)", [workspace]);
    },
  };
  const [first, ...others] = transports;
  if (first === undefined) throw new Error("a workspace needs a server");
  const systemOf = (transport: Transport): System => createRpcSystem({ transport, ...shared });
  return { systems: [systemOf(first), ...others.map(systemOf)], transport: first, operatorToken, pool, workspace };
}

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { createToken } from "../../server/rpc/auth.ts";
import { readPostmasterPid } from "../../server/store/embedded-postmaster.ts";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";
import { replaceClock, type TestClock } from "../support/clock.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { createPolicy, type Policy } from "./policy.ts";

/** A server in a process of its own with its embedded Postgres, and a vendor; all can be killed. */
export interface Stage {
  readonly url: string;
  readonly policy: Policy;
  readonly simulator: StripeSimulator;
  readonly pool: pg.Pool;
  /** Where another server finds the same database, and the operator that it has to know. */
  readonly connection: EmbeddedConnection;
  readonly operatorToken: string;
  /** Moves the database's clock and the vendor's together. */
  advance(ms: number): Promise<void>;
  /** SIGKILL to the server; its Postgres lives on without it. */
  killServer(): Promise<void>;
  /** SIGTERM to the server, which stops its Postgres too. */
  stopServer(): Promise<void>;
  /** Resolves when it serves, at the same address as before. */
  startServer(): Promise<void>;
  /** SIGKILL to the postmaster; the server starts it again. */
  killPostgres(): void;
  /** Resolves when the server answers from its database again. */
  answers(): Promise<void>;
  close(): Promise<void>;
}

const main = join(import.meta.dirname, "../../server/main.ts");

export async function startStage(): Promise<Stage> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-crash-"));
  const dataFolder = join(folder, "data");
  const operatorToken = createToken("op", "default", "root");
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const env = {
    PATH: process.env["PATH"],
    HOLDFAST_PORT: String(port),
    HOLDFAST_DATA_FOLDER: dataFolder,
    HOLDFAST_OPERATOR_TOKEN: operatorToken,
    HOLDFAST_LOG_LEVEL: "error",
    HOLDFAST_ALTERED_CLOCK: "allowed",
    HOLDFAST_SWEEP_INTERVAL_MS: "500",
  };
  let server = await serve(env);
  const simulator = await startStripeSimulator();
  const connection = {
    host: join(dataFolder, "socket"),
    port: 5432,
    user: "holdfast",
    database: "holdfast",
    ssl: false,
  } as const;
  const pool = new pg.Pool(connection);
  // Its idle connections end with the Postgres that is killed.
  pool.on("error", () => {});
  const clock: TestClock = await replaceClock(pool);
  const policy = await createPolicy(url, operatorToken);
  const postmaster = () => readPostmasterPid(join(dataFolder, "postgres"))?.pid;

  async function endServer(signal: NodeJS.Signals): Promise<void> {
    if (server.exitCode !== null || server.signalCode !== null) return;
    const exited = once(server, "exit");
    server.kill(signal);
    await exited;
  }
  return {
    url,
    policy,
    simulator,
    pool,
    connection,
    operatorToken,
    async advance(ms) {
      await clock.advance(ms);
      simulator.advance(ms);
    },
    killServer: () => endServer("SIGKILL"),
    stopServer: () => endServer("SIGTERM"),
    async startServer() {
      server = await serve(env);
    },
    killPostgres() {
      const pid = postmaster();
      if (pid === undefined) throw new Error("Postgres does not run");
      process.kill(pid, "SIGKILL");
    },
    async answers() {
      const deadline = performance.now() + 240_000;
      for (;;) {
        try {
          await policy.usage();
          return;
        } catch (error) {
          if (performance.now() > deadline) throw error;
          await delay(100);
        }
      }
    },
    async close() {
      await pool.end();
      await simulator.close();
      // A Postgres without its server is stopped by the next server.
      if (server.exitCode !== null || server.signalCode !== null) server = await serve(env);
      await endServer("SIGTERM");
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

async function serve(env: NodeJS.ProcessEnv): Promise<ChildProcess> {
  const child = spawn(process.execPath, ["--conditions=holdfast-source", main, "serve", "--embedded"], {
    env,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const output = createInterface(child.stdout);
  const running = new Promise<void>((resolve, reject) => {
    output.on("line", (line) => {
      if (line.startsWith("Holdfast is running")) resolve();
    });
    child.once("exit", (code, signal) => reject(new Error(`the server ended (${signal ?? code})`)));
  });
  await running;
  return child;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  if (address === null || typeof address === "string") throw new Error("no port");
  return address.port;
}

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import pg from "pg";
import { createToken } from "../../server/rpc/auth.ts";
import { type EmbeddedConnection, startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { replaceClock } from "../support/clock.ts";
import { type ChildProcesses, createChildProcesses } from "./child-processes.ts";
import { startMockVendor } from "./mock-vendor.ts";
import { simulatorVendor, type Vendor } from "./vendor.ts";

/** Everything that runs during the demo, all of it on this machine and in a temporary folder. */
export interface World {
  readonly serverUrl: string;
  readonly admin: Client<typeof AdminService>;
  readonly simulator: Vendor;
  readonly mock: Vendor;
  readonly processes: ChildProcesses;
  /** Moves the clock of the database and the vendors' clocks together. */
  advance(ms: number): Promise<void>;
  /** Ends every process and removes the folder. May be called at any time, and more than once. */
  close(): Promise<void>;
}

/** Starts the world. It can be closed at once, also while it is still starting. */
export async function startWorld(): Promise<{ readonly ready: Promise<World>; close(this: void): Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-demo-"));
  const closers: (() => Promise<unknown>)[] = [() => rm(folder, { recursive: true, force: true })];
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    closing ??= (async () => {
      // What is just starting adds its own end first.
      await ready.catch(() => {});
      for (const closer of closers.toReversed()) await closer().catch(() => {});
    })();
    return closing;
  };
  const ready = start(folder, closers, close);
  return { ready, close };
}

async function start(folder: string, closers: (() => Promise<unknown>)[], close: () => Promise<void>): Promise<World> {
  const postgres = await startEmbeddedPostgres({ dataFolder: join(folder, "data") });
  closers.push(() => postgres.close());
  const processes = createChildProcesses(join(folder, "compiled"));
  closers.push(() => processes.stopAll());
  const movementsFile = join(folder, "movements.jsonl");
  const [{ serverUrl, operatorToken }, simulatorPort, mockPort] = await Promise.all([
    startServer(processes, postgres.connection),
    startOnPort(processes, "../support/stripe-simulator/main.ts", ["--file", movementsFile, "--execution-ms", "2"]),
    startOnPort(processes, "mock-stripe-process.ts", []),
  ]);
  const simulator = simulatorVendor(simulatorPort, movementsFile);
  const mock = await startMockVendor(mockPort);
  closers.push(() => mock.close());
  const pool = new pg.Pool({ ...postgres.connection, max: 1 });
  closers.push(() => pool.end());
  const clock = await replaceClock(pool);
  return {
    serverUrl,
    admin: adminOf(serverUrl, operatorToken),
    simulator,
    mock,
    processes,
    async advance(ms) {
      await Promise.all([clock.advance(ms), simulator.advance(ms), mock.advance(ms)]);
    },
    close,
  };
}

async function startServer(processes: ChildProcesses, { host, user, database }: EmbeddedConnection) {
  const operatorToken = createToken("op", "default", "demo");
  const [, serverUrl = ""] = await processes.start("../../server/main.ts", {
    args: ["serve"],
    line: /"url":"(http:[^"]+)"/,
    env: {
      DATABASE_URL: `postgres://${user}@localhost/${database}?host=${encodeURIComponent(host)}`,
      HOLDFAST_PORT: "0",
      HOLDFAST_OPERATOR_TOKEN: operatorToken,
      HOLDFAST_ALTERED_CLOCK: "allowed",
    },
  });
  return { serverUrl, operatorToken };
}

async function startOnPort(processes: ChildProcesses, file: string, args: readonly string[]): Promise<number> {
  const [, port] = await processes.start(file, { args, line: /^(\d+)$/ });
  return Number(port);
}

function adminOf(baseUrl: string, operatorToken: string): Client<typeof AdminService> {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${operatorToken}`);
    return next(request);
  };
  return createClient(AdminService, createConnectTransport({ baseUrl, httpVersion: "2", interceptors: [authorize] }));
}

import { mkdtempSync, rmSync } from "node:fs";
import { type IncomingMessage, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type Acts, actsOn } from "./acts.ts";
import { serveControl } from "./control.ts";
import type { FaultSpec } from "./fault-spec.ts";
import type { Fault } from "./faults.ts";
import { type Movement, readMovements } from "./movements.ts";
import type { ReceivedRequest } from "./request-log.ts";
import { serveStripe } from "./server.ts";
import { World, type WorldOptions } from "./world.ts";

export interface SimulatorOptions extends Omit<WorldOptions, "movementsFile"> {
  /** Where the movements are written; a temporary file, removed by close(), unless told. */
  readonly movementsFile?: string;
  /** 0, a free one, unless told. */
  readonly port?: number;
}

/** A Stripe account on loopback that behaves like the real one where it hurts, and that can be told to fail. */
export interface StripeSimulator extends Acts {
  readonly host: string;
  readonly port: number;
  readonly url: string;
  readonly movementsFile: string;
  /** Every movement of money so far, from the file: the ground truth. */
  movements(): Movement[];
  /** Every API request received so far, refused ones included. */
  requests(): ReceivedRequest[];
  /** Lets the next matching requests run into a failure. */
  fault(spec: FaultSpec): Fault;
  /** Removes all faults and releases what they hold. */
  clearFaults(): void;
  /** Lets time pass, and Stripe do meanwhile what it does by itself: charge invoices, renew, expire. */
  advance(ms: number): void;
  setTime(epochMs: number): void;
  /** Milliseconds since the epoch on the simulator's clock. */
  now(): number;
  close(): Promise<void>;
}

/** Starts a simulator on a port of loopback. Its objects live in memory, its movements in a file. */
export async function startStripeSimulator(options: SimulatorOptions = {}): Promise<StripeSimulator> {
  const { movementsFile = temporaryFile(), port = 0, ...rest } = options;
  const world = new World({ ...rest, movementsFile });
  const server = createServer((message, response) => {
    serve(world, message, response).catch((error: unknown) => fail(world, error, response));
  });
  // Longer than any client keeps an idle connection, so that we never close one just as a request arrives.
  server.keepAliveTimeout = 120_000;
  const host = "127.0.0.1";
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject).listen(port, host, resolve);
  });
  const address = server.address() as AddressInfo;
  return {
    host,
    port: address.port,
    url: `http://${host}:${address.port}`,
    ...controls(world),
    close: async () => {
      world.close();
      server.closeAllConnections();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
      });
      if (options.movementsFile === undefined) rmSync(dirname(movementsFile), { recursive: true, force: true });
    },
  };
}

function controls(world: World): Omit<StripeSimulator, "host" | "port" | "url" | "close"> {
  const { file } = world.ledger;
  return {
    movementsFile: file,
    movements: () => readMovements(file),
    requests: () => world.log.all(),
    fault: (spec) => world.faults.set(spec),
    clearFaults: () => world.faults.clear(),
    advance: (ms) => world.moveClockTo(world.clock.now() + ms),
    setTime: (epochMs) => world.moveClockTo(epochMs),
    now: () => world.clock.now(),
    ...actsOn(world),
  };
}

function serve(world: World, message: IncomingMessage, response: ServerResponse): Promise<void> {
  const isControl = message.url?.startsWith("/_simulator/") ?? false;
  return isControl ? serveControl(world, message, response) : serveStripe(world, message, response);
}

/** A mistake in the simulator must not look like one of Stripe's failures: it is told aloud and the connection cut. */
function fail(world: World, error: unknown, response: ServerResponse): void {
  if (!world.closing.aborted && !response.req.destroyed) console.error("stripe simulator:", error);
  response.destroy();
}

function temporaryFile(): string {
  return join(mkdtempSync(join(tmpdir(), "stripe-simulator-")), "movements.jsonl");
}

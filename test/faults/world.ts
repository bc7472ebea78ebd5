import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { createToken } from "../../server/rpc/auth.ts";
import { type EmbeddedConnection, startEmbeddedPostgres } from "../../server/store/embedded-postgres.ts";
import { replaceClock } from "../support/clock.ts";
import { type Front, startFront } from "../support/front.ts";
import { type Child, startChild } from "./child.ts";
import type { FaultedRequest } from "./evidence.ts";
import { type PlainVendor, startPlainVendor } from "./plain-vendor.ts";
import { createPolicy, type Policy } from "./policy.ts";
import type { Random } from "./random.ts";

/** Everything but the billing processes, on this machine and in a folder of its own. */
export interface World {
  /** Where billing processes reach the server; the same after a restart. */
  readonly front: Front;
  readonly policy: Policy;
  readonly vendor: Vendor;
  readonly plainVendor: PlainVendor;
  readonly pool: pg.Pool;
  readonly movementsFile: string;
  readonly cacheFolder: string;
  /** SIGKILL, and a new server on the same database. */
  crashServer(): Promise<void>;
  /** Moves the clocks of the database and of both vendors together. */
  advance(ms: number): Promise<void>;
  close(): Promise<void>;
}

/** The simulator's process. */
export interface Vendor {
  readonly port: number;
  /** The control API. Throws an Error with the refusal. */
  control(method: string, path: string, body?: object): Promise<unknown>;
  /** The keys of requests that are under way. */
  open(): Promise<readonly string[]>;
  faulted(): Promise<readonly FaultedRequest[]>;
}

export async function startWorld(random: Random): Promise<World> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-faults-"));
  const closers: (() => Promise<unknown>)[] = [() => rm(folder, { recursive: true, force: true })];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).toReversed()) await closer().catch(() => undefined);
  };
  try {
    const cacheFolder = join(folder, "compiled");
    const postgres = await startEmbeddedPostgres({ dataFolder: join(folder, "data") });
    closers.push(() => postgres.close());
    const operatorToken = createToken("op", "default", "root");
    const serve = () => startServer(postgres.connection, operatorToken, cacheFolder);
    let server = await serve();
    closers.push(() => server.child.kill("SIGTERM"));
    const movementsFile = join(folder, "movements.jsonl");
    const vendor = await startVendor(movementsFile, cacheFolder);
    closers.push(() => vendor.child.kill("SIGTERM"));
    const front = await startFront(() => server.port);
    closers.push(() => front.close());
    let movedMs = 0;
    const plainVendor = await startPlainVendor(random, () => Date.now() + movedMs);
    closers.push(() => plainVendor.close());
    const pool = new pg.Pool({ ...postgres.connection, max: 2 });
    pool.on("error", () => undefined);
    closers.push(() => pool.end());
    const clock = await replaceClock(pool);
    const policy = await createPolicy(`http://127.0.0.1:${server.port}`, operatorToken);
    return {
      front,
      policy,
      vendor,
      plainVendor,
      pool,
      movementsFile,
      cacheFolder,
      async crashServer() {
        await server.child.kill("SIGKILL");
        server = await serve();
      },
      async advance(ms) {
        await Promise.all([clock.advance(ms), vendor.control("POST", "clock", { advanceMs: ms })]);
        movedMs += ms;
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

async function startServer(
  { host, user, database }: EmbeddedConnection,
  operatorToken: string,
  cacheFolder: string,
): Promise<{ readonly child: Child; readonly port: number }> {
  const port = Promise.withResolvers<number>();
  const child = startChild("../../server/main.ts", {
    args: ["serve"],
    env: {
      NODE_COMPILE_CACHE: cacheFolder,
      DATABASE_URL: `postgres://${user}@localhost/${database}?host=${encodeURIComponent(host)}`,
      HOLDFAST_PORT: "0",
      HOLDFAST_OPERATOR_TOKEN: operatorToken,
      HOLDFAST_ALTERED_CLOCK: "allowed",
      HOLDFAST_SWEEP_INTERVAL_MS: "500",
    },
    onLine: () => undefined,
    onErrorLine(line) {
      const found = /"url":"http:[^"]+:(\d+)"/.exec(line);
      if (found !== null) port.resolve(Number(found[1]));
    },
  });
  const ended = child.gone.then((): never => {
    throw new Error(`The server ended: ${child.errors()}`);
  });
  ended.catch(() => undefined);
  return { child, port: await Promise.race([port.promise, ended]) };
}

const controlMs = 120_000;

async function startVendor(movementsFile: string, cacheFolder: string): Promise<Vendor & { readonly child: Child }> {
  const started = Promise.withResolvers<number>();
  const questions = new Map<number, (said: Said) => void>();
  type Said = { readonly open?: readonly string[]; readonly faulted?: readonly FaultedRequest[] };
  const child = startChild("vendor-process.ts", {
    args: ["--file", movementsFile],
    env: { NODE_COMPILE_CACHE: cacheFolder },
    onLine(line) {
      const said = JSON.parse(line) as Said & { readonly port?: number; readonly answered?: number };
      if (said.port !== undefined) started.resolve(said.port);
      if (said.answered !== undefined) questions.get(said.answered)?.(said);
    },
  });
  let asked = 0;
  const ask = async (what: "open" | "faulted"): Promise<Said> => {
    asked += 1;
    const { promise, resolve } = Promise.withResolvers<Said>();
    questions.set(asked, resolve);
    child.tell({ [what]: asked });
    return await promise;
  };
  const port = await started.promise;
  return {
    child,
    port,
    async control(method, path, body) {
      const response = await fetch(`http://127.0.0.1:${port}/_simulator/${path}`, {
        method,
        signal: AbortSignal.timeout(controlMs),
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const answer: unknown = await response.json();
      if (!response.ok) throw new Error(`The simulator refused ${method} ${path}: ${JSON.stringify(answer)}`);
      return answer;
    },
    open: async () => (await ask("open")).open ?? [],
    faulted: async () => (await ask("faulted")).faulted ?? [],
  };
}

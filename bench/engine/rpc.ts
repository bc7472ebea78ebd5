import { resolve } from "node:path";
import type pg from "pg";
import type { Bench, BenchOptions, BenchResult } from "../bench.ts";
import { type Child, startChild } from "../child.ts";
import { together } from "../load.ts";
import { describeMachine } from "../machine.ts";
import { median } from "../statistics.ts";
import { ownRoot } from "./checkout.ts";
import { type Cluster, startCluster } from "./cluster.ts";
import { amountMicros } from "./contender.ts";
import { type GrpcClient, openGrpc } from "./grpc-client.ts";
import { noopPath } from "./noop-service.ts";
import { driveAt, type Place, startPlace, verify } from "./rounds.ts";
import { authorizeBatch, authorizeOne, batchSize, openSdk } from "./rpc-calls.ts";

const full = { rounds: 5, warmUp: 10_000, calls: 2_500, batches: 12 };
const quick = { rounds: 1, warmUp: 64, calls: 64, batches: 2 };
type Counts = typeof full;

const callers = 256;
/** Batches under way at a time: one is carried out while the next ones are read. */
const batchesAtOnce = 4;
const insertersTried = [1, 2, 4];

/** Something that is called in rounds. */
interface Runner {
  readonly name: string;
  /** Operations per second. */
  run(counts: Counts): Promise<number>;
  warmUp(counts: Counts): Promise<unknown>;
  readonly rates: number[];
}

/** A server in a process of its own, and how many grants it has been asked for. */
interface Server {
  readonly name: "holdfast" | "other";
  readonly connection: pg.ClientConfig;
  readonly url: string;
  readonly token: string;
  granted: number;
}

/** A whole server, asked over HTTP/2, against an RPC that does nothing and against plain inserts. */
export const rpcBench: Bench = {
  about:
    "AuthorizeSpend over HTTP/2 (alone, by the SDK, in batches) against an RPC that does nothing and plain inserts",
  gives: ["batch_rpc_vs_raw_insert", "sdk_vs_noop_rpc_256", "unary_vs_noop_rpc_256", "unary_vs_connect_noop_256"],
  async run(options) {
    const cluster = await startCluster();
    const closers: (() => Promise<void>)[] = [];
    try {
      const { servers, runners, inserts } = await startAll(cluster, closers, options);
      const counts = options.quick ? quick : full;
      for (const runner of runners) {
        options.progress(`warming up ${runner.name}`);
        await runner.warmUp(counts);
      }
      const machine = describeMachine(cluster.folder);
      for (let round = 0; round < counts.rounds; round += 1) {
        options.progress(`round ${round + 1} of ${counts.rounds}`);
        const at = round % runners.length;
        for (const runner of [...runners.slice(at), ...runners.slice(0, at)]) {
          runner.rates.push(await runner.run(counts));
        }
      }
      for (const server of servers) await verifyServer(cluster, server);
      await verify([inserts], ["hot"]);
      return { table: [machine, ...tableOf(runners)], ratios: ratiosOf(runners), against: againstOf(runners, options) };
    } finally {
      for (const close of closers.toReversed()) await close();
      await cluster.close();
    }
  },
};

async function startAll(cluster: Cluster, closers: (() => Promise<void>)[], options: BenchOptions) {
  const started = { cluster, folder: cluster.folder, root: ownRoot };
  const child = async (file: string, given: Record<string, string>, profileFolder?: string): Promise<Child> => {
    const begun = await startChild(new URL(`./${file}`, import.meta.url), given, profileFolder);
    closers.push(() => begun.close());
    return begun;
  };
  const client = (url: string, token: string): GrpcClient => {
    const opened = openGrpc(url, token);
    closers.push(async () => opened.close());
    return opened;
  };
  const runners: Runner[] = [];
  const servers: Server[] = [];
  const roots = [["holdfast", ownRoot] as const];
  const all = options.against === undefined ? roots : [...roots, ["other", resolve(options.against)] as const];
  for (const [name, root] of all) {
    const connection = await cluster.createDatabase(`rpc_${name}`);
    const given = { connection: JSON.stringify(connection), folder: cluster.folder, root };
    const { ready } = await child("server-process.ts", given, name === "holdfast" ? options.profileFolder : undefined);
    const server: Server = { name, connection, url: ready.url ?? "", token: ready.token ?? "", granted: 0 };
    servers.push(server);
    const sdk = await openSdk(root, server.url, server.token);
    closers.push(async () => sdk.close());
    runners.push(...runnersOf(server, client(server.url, server.token), () => sdk.authorize()));
  }
  const [{ connection, token }] = servers as [Server];
  const noops = await child("noop-process.ts", { connection: JSON.stringify(connection), folder: cluster.folder });
  for (const name of ["stack", "stock"] as const) {
    const opened = client(noops.ready[name] ?? "", token);
    const nothing = new Uint8Array();
    const run = (count: number) => together(count, callers, () => opened.call(noopPath, nothing));
    runners.push(
      runnerOf(
        `noop ${name}`,
        ({ calls }) => run(calls),
        ({ warmUp }) => run(warmUp),
      ),
    );
  }
  const inserts = await startPlace("insert500", "insert500", started);
  closers.push(() => inserts.child.close());
  runners.push(insertRunner(inserts));
  return { servers, runners, inserts };
}

function runnerOf(name: string, run: Runner["run"], warmUp: Runner["warmUp"]): Runner {
  return { name, run, warmUp, rates: [] };
}

function runnersOf(server: Server, client: GrpcClient, sdk: () => Promise<void>): Runner[] {
  const granted = (count: number, call: () => Promise<void>) => async () => {
    await call();
    server.granted += count;
  };
  const one = granted(1, () => authorizeOne(client));
  const coalesced = granted(1, sdk);
  const batch = granted(batchSize, () => authorizeBatch(client));
  const batches = async (count: number) => batchSize * (await together(count, batchesAtOnce, batch));
  const { name } = server;
  return [
    runnerOf(
      `unary ${name}`,
      ({ calls }) => together(calls, callers, one),
      ({ warmUp }) => together(warmUp, callers, one),
    ),
    runnerOf(
      `sdk ${name}`,
      ({ calls }) => together(2 * calls, callers, coalesced),
      ({ warmUp }) => together(warmUp, callers, coalesced),
    ),
    runnerOf(
      `batch ${name}`,
      ({ batches: count }) => batches(count),
      ({ warmUp, batches: count }) => batches(Math.min(warmUp / batchSize, count)),
    ),
  ];
}

/** The best of several numbers of connections, found while it warms up. */
function insertRunner(place: Place): Runner {
  const drive = async (inserters: number, calls: number): Promise<number> =>
    batchSize * (await driveAt(place, { load: "hot", callers: inserters, calls })).rate;
  let best = 1;
  return runnerOf(
    "insert500",
    ({ batches }) => drive(best, batches),
    async ({ batches }) => {
      const rates: (readonly [number, number])[] = [];
      for (const inserters of insertersTried) rates.push([await drive(inserters, 2 * batches), inserters]);
      best = rates.toSorted(([a], [b]) => b - a)[0]?.[1] ?? 1;
    },
  );
}

/** Rejects if the cap's figures are not the grants. */
async function verifyServer(cluster: Cluster, { name, connection, granted }: Server): Promise<void> {
  const [row] = await cluster.query<{ taken: number; held: number }>(
    connection,
    `select (select sum(held_micros) / $1 from holdfast.counters)::float8 as taken,
       (select count(*) from holdfast.authorizations where state = 'HELD')::float8 as held`,
    [amountMicros],
  );
  if (row?.taken === granted && row.held === granted) return;
  throw new Error(`${name} has granted ${granted}, and its rows say ${JSON.stringify(row)}`);
}

function tableOf(runners: readonly Runner[]): string[] {
  return [
    "what              operations/s (median of the rounds)",
    ...runners.map(({ name, rates }) => `${name.padEnd(18)}${Math.round(median(rates)).toString().padStart(8)}`),
  ];
}

function rate(runners: readonly Runner[], name: string): number {
  const found = runners.find((one) => one.name === name);
  if (found === undefined) throw new Error(`${name} has not run`);
  return median(found.rates);
}

function ratiosOf(runners: readonly Runner[]): BenchResult["ratios"] {
  const versus = (one: string, other: string): number => rate(runners, one) / rate(runners, other);
  return {
    batch_rpc_vs_raw_insert: versus("batch holdfast", "insert500"),
    sdk_vs_noop_rpc_256: versus("sdk holdfast", "noop stack"),
    unary_vs_noop_rpc_256: versus("unary holdfast", "noop stack"),
    unary_vs_connect_noop_256: versus("unary holdfast", "noop stock"),
  };
}

function againstOf(runners: readonly Runner[], { against }: BenchOptions): Readonly<Record<string, number>> {
  if (against === undefined) return {};
  return Object.fromEntries(
    ["unary", "sdk", "batch"].map((what) => [
      what === "batch" ? "batch_rpc" : `${what}_256`,
      rate(runners, `${what} holdfast`) / rate(runners, `${what} other`),
    ]),
  );
}

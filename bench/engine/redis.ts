import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  amountMicros,
  type Contender,
  type Load,
  limitMicros,
  manyCaps,
  nextAttempt,
  smallRoom,
  someCustomer,
  type Surroundings,
} from "./contender.ts";
import { drive } from "./drive.ts";
import { processCpuMs } from "./processor-time.ts";
import { openResp, type Resp } from "./resp.ts";

/** The version of the Redis on PATH; undefined where there is none. */
export function redisVersion(): string | undefined {
  const { stdout } = spawnSync("redis-server", ["--version"], { encoding: "utf8" });
  return /v=(\S+)/.exec(stdout ?? "")?.[1];
}

// The claim, the cap and the event, in one step that nothing can come between.
const script = `
  if redis.call('exists', KEYS[1]) == 1 then return 0 end
  local cap = redis.call('hmget', KEYS[2], 'limit', 'held')
  if tonumber(cap[2]) + tonumber(ARGV[1]) > tonumber(cap[1]) then return 0 end
  redis.call('hincrby', KEYS[2], 'held', ARGV[1])
  redis.call('hset', KEYS[1], 'customer', ARGV[2], 'cap', KEYS[2], 'amount', ARGV[1], 'state', 'HELD')
  redis.call('rpush', 'events:' .. ARGV[3], ARGV[4])
  return 1`;

const connectionCounts = [1, 8, 32];

/** Redis with a Lua script, on disk before the answer: one process, so one hot cap costs it no more than a thousand. */
export async function openRedis({ folder }: Surroundings): Promise<Contender> {
  const home = await mkdtemp(join(folder, "redis-"));
  const socket = join(home, "redis.sock");
  const settings = { port: "0", unixsocket: socket, dir: home, appendonly: "yes", appendfsync: "always", save: "" };
  const server = spawn(
    "redis-server",
    Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]),
    { stdio: "ignore", detached: true },
  );
  const close = () => stop(server, home);
  try {
    while (!(await answers(socket))) {
      if (server.exitCode !== null) throw new Error(`redis-server ended with exit code ${server.exitCode}`);
      await delay(10);
    }
    return await openConnections(socket, server, close);
  } catch (error) {
    await close();
    throw error;
  }
}

/** Its socket is there a moment before it listens. */
async function answers(socket: string): Promise<boolean> {
  const connection = await openResp(socket).catch(() => undefined);
  connection?.close();
  return connection !== undefined;
}

async function stop(server: ChildProcess, home: string): Promise<void> {
  const ended = new Promise((resolve) => server.once("exit", resolve));
  if (server.exitCode === null && server.signalCode === null && server.kill("SIGKILL")) await ended;
  await rm(home, { recursive: true, force: true, maxRetries: 5 });
}

async function openConnections(socket: string, server: ChildProcess, close: () => Promise<void>): Promise<Contender> {
  const all = Math.max(...connectionCounts);
  let connections = await Promise.all(Array.from({ length: all }, () => openResp(socket)));
  const counts = new Map<Load, number>();
  const first = (): Resp => connections[0] as Resp;
  const sha = await first().command(["script", "load", script]);
  const capsOf = (load: Load) =>
    load === "many" ? Array.from({ length: manyCaps }, (_, n) => `cap:many-${n}`) : [`cap:${load}`];
  for (const load of ["hot", "many", "small"] as const) {
    const limit = load === "small" ? smallRoom * amountMicros : limitMicros;
    for (const cap of capsOf(load)) await first().command(["hset", cap, "limit", limit, "held", 0]);
  }
  let commands = 0;
  const contender: Contender = {
    async attempt(load) {
      const n = nextAttempt();
      commands += 1;
      const customer = someCustomer();
      const cap = load === "many" ? customer.replace("cust", "cap:many-") : `cap:${load}`;
      const event = JSON.stringify({
        kind: "granted",
        spend: n,
        cap,
        customer,
        amount_micros: amountMicros,
        at: Date.now(),
      });
      const connection = connections[n % (counts.get(load) ?? 1)] as Resp;
      const keys = [`spend:${customer}:2026-11:${n}`, cap];
      return (
        (await connection.command(["evalsha", sha as string, 2, ...keys, amountMicros, customer, load, event])) === 1
      );
    },
    async counted(load) {
      const held = await Promise.all(capsOf(load).map((cap) => first().command(["hget", cap, "held"])));
      const counted = held.reduce<number>((sum, micros) => sum + Number(micros), 0) / amountMicros;
      const events = await first().command(["llen", `events:${load}`]);
      if (counted !== events) throw new Error(`${counted} are counted, and ${events} events say so`);
      return counted;
    },
    async tune(load, callers, calls) {
      const rates: [count: number, rate: number][] = [];
      let granted = 0;
      for (const count of connectionCounts) {
        counts.set(load, count);
        const driven = await drive(contender, { load, callers, calls }, () => 0);
        granted += driven.granted;
        rates.push([count, driven.rate]);
      }
      const [best = 1] = rates.toSorted(([, a], [, b]) => b - a)[0] ?? [];
      counts.set(load, best);
      const text = `connections ${best} of ${rates.map(([count, rate]) => `${count}: ${Math.round(rate)}/s`).join(", ")}`;
      return { text, granted };
    },
    async reopen() {
      for (const connection of connections) connection.close();
      connections = await Promise.all(Array.from({ length: all }, () => openResp(socket)));
    },
    roundTrips: () => commands,
    serverCpuMs: () => (server.pid === undefined ? undefined : processCpuMs(server.pid)),
    close,
  };
  return contender;
}

import { join } from "node:path";
import { migrate } from "../../server/store/migrate.ts";
import { createPolicy, type Policy } from "../crash/policy.ts";
import { startDurablePostgres } from "../injection/durable-postgres.ts";
import { operatorToken, type ServerProcess, startServerProcess } from "../injection/server-process.ts";
import { freePort } from "../support/free-port.ts";
import { type Front, startFront } from "../support/front.ts";
import { startPgBouncer } from "../support/pgbouncer.ts";
import type { Version } from "./versions.ts";

/** Three servers as processes on one Postgres, each at a port that it keeps. */
export interface Cluster {
  readonly policy: Policy;
  readonly ports: readonly number[];
  /** A load balancer without health checks: connections in turn to the servers that are not being replaced. */
  readonly front: Front;
  migrate(version: Version): Promise<readonly string[]>;
  /** Ends one server by SIGTERM and starts the given version in its place, with settings beside those of the cluster. */
  replace(index: number, version: Version | undefined, env?: Settings): Promise<Replaced>;
  /** The exit code of a server of the first version that is started now and does not serve; undefined if it serves. */
  refusal(env?: Settings): Promise<string | undefined>;
  close(): Promise<void>;
}

export interface Replaced {
  /** The exit code, or the signal that ended it. */
  readonly how: number | NodeJS.Signals;
  /** From SIGTERM until the process was gone, in milliseconds. */
  readonly drainMs: number;
}

export type Way = "direct" | "PgBouncer";

type Settings = Readonly<Record<string, string>>;

/** `envOf` gives the settings that each server starts with besides. */
export async function startCluster(way: Way, envOf: (index: number) => Settings = () => ({})): Promise<Cluster> {
  const closers: (() => Promise<unknown>)[] = [];
  const close = async (): Promise<void> => {
    for (const closer of closers.splice(0).toReversed()) await closer();
  };
  try {
    const postgres = await startDurablePostgres();
    closers.push(() => postgres.close());
    const bouncer = way === "PgBouncer" ? await startPgBouncer(postgres.connection) : undefined;
    if (bouncer !== undefined) closers.push(() => bouncer.close());
    const connection = { ...postgres.connection, ...bouncer?.connection };
    await migrate(connection);
    const start = (port: number, env: Settings, version?: Version): Promise<ServerProcess> =>
      startServerProcess({
        connection,
        env: {
          HOLDFAST_PORT: `${port}`,
          HOLDFAST_PREPARED_STATEMENTS: `${bouncer === undefined}`,
          ...env,
          ...(version === undefined ? {} : { NEXT_MIGRATIONS: version.folder }),
        },
        ...(version === undefined ? {} : { program: join(import.meta.dirname, "next-process.ts") }),
      });
    const ports = [await freePort(), await freePort(), await freePort()];
    const servers: ServerProcess[] = [];
    closers.push(async () => {
      for (const { child, ended } of servers) {
        child.kill("SIGKILL");
        await ended;
      }
    });
    for (const [index, port] of ports.entries()) servers.push(await start(port, envOf(index)));
    let turn = 0;
    const front = await startFront(() => {
      turn += 1;
      return ports[turn % ports.length] as number;
    });
    closers.push(() => front.close());
    const policy = await createPolicy((servers[0] as ServerProcess).url, operatorToken, "100000000");
    return {
      policy,
      ports,
      front,
      migrate: ({ folder }) => migrate(connection, { folder }),
      async replace(index, version, env) {
        const since = performance.now();
        const how = await (servers[index] as ServerProcess).end("SIGTERM");
        const drainMs = performance.now() - since;
        servers[index] = await start(ports[index] as number, { ...envOf(index), ...env }, version);
        return { how, drainMs };
      },
      async refusal(env = {}) {
        try {
          const server = await start(0, env);
          await server.end("SIGKILL");
          return undefined;
        } catch (error) {
          return /the server ended \((\w+)\)/.exec(error instanceof Error ? error.message : "")?.[1] ?? String(error);
        }
      },
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";
import { makeFolder, openPort } from "../injection/wire.ts";
import { freePort } from "./free-port.ts";

/** Why there is none here; undefined where there is. */
export const missingPgBouncer =
  spawnSync("pgbouncer", ["--version"]).status === 0
    ? undefined
    : "pgbouncer is not installed; apt-get install pgbouncer";

/** PgBouncer in transaction mode with two connections to the database. */
export interface PgBouncer {
  readonly connection: Pick<EmbeddedConnection, "host" | "port" | "user" | "database">;
  close(): Promise<void>;
}

async function accepts(port: number): Promise<boolean> {
  const socket = connect({ host: "127.0.0.1", port });
  const open = await once(socket, "connect").then(
    () => true,
    () => false,
  );
  socket.destroy();
  return open;
}

export async function startPgBouncer({ user, database, ...to }: EmbeddedConnection): Promise<PgBouncer> {
  const folder = await makeFolder("pgbouncer");
  const way = await openPort({ ...to, user, database });
  const port = await freePort();
  const file = join(folder, "pgbouncer.ini");
  await writeFile(
    file,
    `[databases]
* = host=127.0.0.1 port=${way.port} user=${user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
server_reset_query_always = 0
`,
  );
  await chmod(file, 0o644);
  const asNobody = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : {};
  const child = spawn("pgbouncer", [file], { ...asNobody, stdio: "ignore" });
  while (!(await accepts(port))) {
    if (child.exitCode !== null) throw new Error(`pgbouncer ended with exit code ${child.exitCode}`);
    await delay(50);
  }
  return {
    connection: { host: "127.0.0.1", port, user, database },
    async close() {
      child.kill("SIGKILL");
      await way.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

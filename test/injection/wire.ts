import { once } from "node:events";
import { chmod, mkdtemp, rm } from "node:fs/promises";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";

/** Stands between a server and its database. */
export interface Wire {
  /** Of the wire instead of the database. */
  readonly connection: EmbeddedConnection;
  /**
   * The next statement with this text is stopped: on its way to the database, or, executed and committed, on the way
   * back. Resolves when it has come that far; its connection stays open and silent.
   */
  stop(on: "way there" | "way back", text: string): Promise<void>;
  /** From now on nothing is forwarded on the connections there are, and nobody is told. */
  blackHole(): void;
  /** Connections accepted so far. */
  accepted(): number;
  close(): Promise<void>;
}

interface Trap {
  readonly on: "way there" | "way back";
  readonly text: string;
  readonly sprung: () => void;
}

// The end of every answer: ReadyForQuery, outside of a transaction. An autocommitted statement is durable by then.
const readyForQuery = Buffer.from("Z\0\0\0\u0005I", "latin1");

export async function startWire(connection: EmbeddedConnection): Promise<Wire> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-wire-"));
  const sockets = new Set<Socket>();
  const holes: (() => void)[] = [];
  let trap: Trap | undefined;
  let accepted = 0;
  const server = createServer((inner) => {
    accepted += 1;
    const outer = connect(join(connection.host, `.s.PGSQL.${connection.port}`));
    let silent = false;
    let caught: Trap | undefined;
    holes.push(() => {
      silent = true;
    });
    inner.on("data", (data) => {
      if (silent) return;
      if (trap !== undefined && data.includes(trap.text)) {
        caught = trap;
        trap = undefined;
        silent = caught.on === "way there";
        if (silent) return caught.sprung();
      }
      outer.write(data);
    });
    outer.on("data", (data) => {
      if (silent) return;
      if (caught === undefined) inner.write(data);
      else if (data.subarray(-readyForQuery.length).equals(readyForQuery)) caught.sprung();
    });
    for (const socket of [inner, outer]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => {
        sockets.delete(socket);
        (socket === inner ? outer : inner).destroy();
      });
    }
  });
  server.listen(join(folder, ".s.PGSQL.5432"));
  await once(server, "listening");
  return {
    connection: { ...connection, host: folder, port: 5432 },
    stop(on, text) {
      const { promise, resolve } = Promise.withResolvers<void>();
      trap = { on, text, sprung: resolve };
      return promise;
    },
    blackHole() {
      for (const hole of holes.splice(0)) hole();
    },
    accepted: () => accepted,
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, "close");
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** A port of the loopback that leads to the database, for programs that may not enter its folder. */
export async function openPort(connection: EmbeddedConnection): Promise<{ port: number; close(): Promise<void> }> {
  const sockets = new Set<Socket>();
  const server: Server = createServer((inner) => {
    const outer = connect(join(connection.host, `.s.PGSQL.${connection.port}`));
    inner.pipe(outer).pipe(inner);
    for (const socket of [inner, outer]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.once("close", () => (socket === inner ? outer : inner).destroy());
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, "close");
    },
  };
}

/** A folder of its own that Postgres, which does not run as root, may pass through. */
export async function makeFolder(name: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), `holdfast-${name}-`));
  await chmod(folder, 0o711);
  return folder;
}

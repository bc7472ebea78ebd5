import { once } from "node:events";
import { createServer } from "node:net";
import { createToken } from "../../server/rpc/auth.ts";

export { startDurablePostgres as durablePostgres } from "../injection/durable-postgres.ts";

/** The first operator of everything that is started here. */
export const operatorToken = createToken("op", "default", "root");

/** A port that was free a moment ago: for servers that come back at the address that they had. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}

import { once } from "node:events";
import { createServer } from "node:net";

/** A port that was free a moment ago: for what takes a fixed one, or comes back at the address that it had. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** Stands between a client and a server and takes answers away. */
export interface LossyFront {
  readonly url: string;
  /** How many answers were lost. */
  lost(): number;
  close(): Promise<void>;
}

/**
 * Forwards bytes to where `url` leads. Whenever an answer begins to arrive, `loses` is asked: if it says so, nothing of
 * the answer is handed on and the client's connection ends, as politely as a load balancer ends it.
 */
export async function startLossyFront(url: string, loses: () => boolean): Promise<LossyFront> {
  const target = new URL(url);
  const sockets = new Set<Socket>();
  let lost = 0;
  const server = createServer({ noDelay: true }, (client) => {
    const upstream = connect({ host: target.hostname, port: Number(target.port), noDelay: true });
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(one);
      one.on("error", () => other.destroy());
      one.once("close", () => {
        sockets.delete(one);
        other.destroy();
      });
    }
    client.pipe(upstream);
    upstream.on("data", (bytes: Buffer) => {
      if (bytes.subarray(0, 5).toString() === "HTTP/" && loses()) {
        lost += 1;
        upstream.removeAllListeners("data");
        client.end();
        return;
      }
      client.write(bytes);
    });
    upstream.once("end", () => client.end());
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    lost: () => lost,
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, "close");
    },
  };
}

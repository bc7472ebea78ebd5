import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { createServer as createTlsServer, type TlsOptions } from "node:tls";

/** Something that stands between a client and a server, on a free port of the loopback. */
export interface Front {
  readonly port: number;
  /** From now on nothing is forwarded on the connections there are, and none of them is closed: half-open. */
  freeze(): void;
  /** Resets every connection there is. */
  reset(): void;
  /** Writes these bytes to every client there is. */
  inject(bytes: Uint8Array): void;
  /** How many connections were accepted, and how many bytes came from clients, so far. */
  accepted(): number;
  forwarded(): number;
  /** Told of everything that clients send from now on, when it was forwarded. */
  watch(look: (bytes: Buffer, client: Socket) => void): void;
  close(): Promise<void>;
}

/** Forwards bytes to a port. With `tls` it takes the encryption off first, as a load balancer does. */
export async function startFront(targetPort: () => number, tls?: TlsOptions): Promise<Front> {
  const pairs = new Set<readonly [Socket, Socket]>();
  let accepted = 0;
  let forwarded = 0;
  const watchers: ((bytes: Buffer, client: Socket) => void)[] = [];
  const onConnection = (client: Socket): void => {
    accepted += 1;
    const server = connect({ host: "127.0.0.1", port: targetPort() });
    client.on("data", (chunk: Buffer) => {
      forwarded += chunk.length;
      for (const look of watchers) look(chunk, client);
    });
    const pair = [client, server] as const;
    pairs.add(pair);
    for (const [one, other] of [pair, [server, client] as const]) {
      one.on("error", () => other.destroy());
      one.once("close", () => {
        pairs.delete(pair);
        other.destroy();
      });
      one.pipe(other);
    }
  };
  const server: Server =
    tls === undefined
      ? createServer(onConnection)
      : createTlsServer({ ALPNProtocols: ["h2"], ...tls }, onConnection).on("tlsClientError", () => undefined);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    freeze() {
      for (const [client, upstream] of pairs) {
        client.unpipe(upstream).pause();
        upstream.unpipe(client).pause();
      }
    },
    reset() {
      for (const [client] of pairs) client.resetAndDestroy();
    },
    inject(bytes) {
      for (const [client] of pairs) client.write(bytes);
    },
    accepted: () => accepted,
    forwarded: () => forwarded,
    watch: (look) => void watchers.push(look),
    async close() {
      server.close();
      for (const [client] of pairs) client.destroy();
      await once(server, "close");
    },
  };
}

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";

/** Stands between clients and a server, and loses one direction of everything, until it resets the connections. */
export interface CuttingFront {
  readonly port: number;
  /** From now on what clients send is taken and goes nowhere. Resolves when something was taken. */
  swallowRequests(): Promise<void>;
  /** From now on what the server answers is taken and goes nowhere. */
  swallowAnswers(): void;
  /** Resets every connection there is; the next ones are whole again. */
  reset(): void;
  close(): Promise<void>;
}

type Direction = "request" | "answer";

export async function startCuttingFront(targetPort: number): Promise<CuttingFront> {
  const pairs = new Set<readonly [Socket, Socket]>();
  let lost: Direction | undefined;
  let taken: () => void = () => undefined;
  const server = createServer((client) => {
    const upstream = connect({ host: "127.0.0.1", port: targetPort });
    const pair = [client, upstream] as const;
    pairs.add(pair);
    const forward = (from: Socket, to: Socket, direction: Direction): void => {
      from.on("data", (chunk) => {
        if (lost === direction) taken();
        else to.write(chunk);
      });
      from.on("error", () => undefined);
      from.once("close", () => {
        pairs.delete(pair);
        to.destroy();
      });
    };
    forward(client, upstream, "request");
    forward(upstream, client, "answer");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    swallowRequests() {
      const { promise, resolve } = Promise.withResolvers<void>();
      lost = "request";
      taken = resolve;
      return promise;
    },
    swallowAnswers() {
      lost = "answer";
      taken = () => undefined;
    },
    reset() {
      lost = undefined;
      for (const [client] of pairs) client.resetAndDestroy();
    },
    async close() {
      server.close();
      for (const [client] of pairs) client.destroy();
      await once(server, "close");
    },
  };
}

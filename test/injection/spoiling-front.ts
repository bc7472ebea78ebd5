import { once } from "node:events";
import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { buffer } from "node:stream/consumers";

/** A complete answer of the vendor, on its way back. */
export interface Answer {
  readonly method: string;
  readonly path: string;
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
}

/** Does with an answer what it likes. Undefined lets it through as it is. */
export type Spoil = (answer: Answer, response: ServerResponse) => Answer | undefined | "taken";

/** Stands between billing processes and the vendor: what was asked is carried out, and the answer is spoilt. */
export interface SpoilingFront {
  readonly port: number;
  /** Every path that was asked for here, in order. */
  readonly paths: readonly string[];
  /** From now on; undefined for none. */
  spoil(how: Spoil | undefined): void;
  close(): Promise<void>;
}

export async function startSpoilingFront(vendorPort: number): Promise<SpoilingFront> {
  const paths: string[] = [];
  let spoil: Spoil | undefined;
  const server = createServer((asked, response) => {
    paths.push(asked.url ?? "");
    forward(vendorPort, asked).then(
      (answer) => give(spoil, answer, response),
      () => response.destroy(),
    );
  });
  server.keepAliveTimeout = 120_000;
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    paths,
    spoil(how) {
      spoil = how;
    },
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

async function forward(port: number, asked: IncomingMessage): Promise<Answer> {
  const { method = "GET", url: path = "/", headers } = asked;
  const outgoing = request({ host: "127.0.0.1", port, method, path, headers, agent: false });
  outgoing.end(await buffer(asked));
  const [incoming] = (await once(outgoing, "response")) as [IncomingMessage];
  const kept = Object.entries(incoming.headers).flatMap(([name, value]) =>
    typeof value === "string" && !["connection", "content-length", "transfer-encoding"].includes(name)
      ? [[name, value] as const]
      : [],
  );
  return {
    method,
    path,
    status: incoming.statusCode ?? 0,
    headers: Object.fromEntries(kept),
    body: await buffer(incoming),
  };
}

function give(spoil: Spoil | undefined, answer: Answer, response: ServerResponse): void {
  const spoilt = spoil?.(answer, response);
  if (spoilt === "taken") return;
  const { status, headers, body } = spoilt ?? answer;
  response.writeHead(status, { ...headers, "content-length": body.length }).end(body);
}

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { VaultKeySchema } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { type Answer, Wire, type World as ListenerWorld } from "../listener-world.ts";
import { type ProxyWorld, startProxyWorld } from "../world.ts";

/** The one host name that the proxy under attack is meant by. */
export const hostName = "proxy.test";
/** The Authorization of a shot holds this where the row's vault key stands. */
export const TOKEN = "$TOKEN";

/** The way to the vendor, on which every connection and every byte is counted. */
export interface CountedWay {
  readonly origin: string;
  connections(): number;
  /** All that was sent to the vendor. */
  sent(): string;
  /** Answers the next request with these bytes, in place of the vendor; then the connection ends. */
  answerWith(bytes: string | Buffer): void;
  close(): Promise<void>;
}

export interface AttackWorld extends ProxyWorld {
  readonly way: CountedWay;
  /** Sends bytes on a connection of their own. Throws where no answer comes. */
  exchange(token: string, bytes: string): Promise<Answer>;
  /** The same: "400 invalid_target", or "closed" where nothing comes back. */
  shoot(token: string, bytes: string): Promise<string>;
  /** Makes a vault key of that id; the same as `key`, with every endpoint that the rows name allowed. */
  attacker(id: string, policy?: MessageInitShape<typeof VaultKeySchema>): Promise<string>;
  eventsOf(id: string): Promise<number>;
}

export async function startAttackWorld(): Promise<AttackWorld> {
  let way: CountedWay | undefined;
  const world = await startProxyWorld({
    cap: "100000",
    config: { stripeProxy: { host: "127.0.0.1", port: 0, names: [hostName] } },
    origin: async ({ port }) => {
      way = await startCountedWay(port);
      return way.origin;
    },
  });
  const counted = way as CountedWay;
  const listener = { listener: { port: Number(new URL(world.url).port) } } as ListenerWorld;
  const send = async (token: string, bytes: string) => {
    const wire = await Wire.open(listener);
    const answer = await wire.send(bytes.replaceAll(TOKEN, token)).answer();
    wire.socket.destroy();
    return answer;
  };
  return {
    ...world,
    way: counted,
    attacker: (id, policy) => world.key(id, policy),
    async exchange(token, bytes) {
      const answer = await send(token, bytes);
      if (answer === undefined) throw new Error("The connection ended without an answer.");
      return answer;
    },
    async shoot(token, bytes) {
      const answer = await send(token, bytes);
      if (answer === undefined) return "closed";
      const { error } = JSON.parse(answer.body === "" ? "{}" : answer.body) as { error?: { code?: string } };
      return error === undefined ? String(answer.status) : `${answer.status} ${error.code}`;
    },
    eventsOf: async (id) => (await world.events()).filter(({ actor_id: of }) => of === id).length,
    async close() {
      await world.close();
      await counted.close();
    },
  };
}

async function startCountedWay(vendorPort: number): Promise<CountedWay> {
  const sockets = new Set<Socket>();
  let connections = 0;
  let sent = "";
  let canned: string | Buffer | undefined;
  const server = createServer((client) => {
    connections += 1;
    const vendor = connect({ host: "127.0.0.1", port: vendorPort });
    for (const [one, other] of [
      [client, vendor],
      [vendor, client],
    ] as const) {
      sockets.add(one);
      one.on("error", () => other.destroy());
      one.once("close", () => {
        sockets.delete(one);
        other.destroy();
      });
    }
    client.on("data", (bytes: Buffer) => {
      sent += bytes.toString("latin1");
      if (canned === undefined) return void vendor.write(bytes);
      const answer = canned;
      canned = undefined;
      vendor.removeAllListeners("data");
      client.end(answer);
    });
    vendor.on("data", (bytes: Buffer) => client.write(bytes));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    connections: () => connections,
    sent: () => sent,
    answerWith: (bytes) => (canned = bytes),
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
      await once(server, "close");
    },
  };
}

export interface Raw {
  readonly method?: string;
  readonly target?: string;
  /** Header lines besides Host, Authorization, Content-Type, Idempotency-Key and Content-Length. */
  readonly lines?: readonly string[];
  readonly host?: readonly string[];
  readonly authorization?: readonly string[];
  readonly type?: readonly string[];
  readonly key?: readonly string[];
  readonly body?: string;
  /** Instead of the Content-Length. */
  readonly framing?: readonly string[];
}

export const form = "amount=4900&currency=usd&source=tok_visa";
const formType = "application/x-www-form-urlencoded";

/** A charge as a client sends it, but for what the attack changes. */
export function raw(attack: Raw = {}): string {
  const { method = "POST", target = "/v1/charges", lines = [], body = method === "POST" ? form : "" } = attack;
  const { host = [hostName], authorization = [`Bearer ${TOKEN}`], type = [formType], key = ["key-1"] } = attack;
  const { framing = body === "" ? [] : [`Content-Length: ${Buffer.byteLength(body, "latin1")}`] } = attack;
  return [
    `${method} ${target} HTTP/1.1`,
    ...host.map((value) => `Host: ${value}`),
    ...authorization.map((value) => `Authorization: ${value}`),
    ...(method === "POST" ? type.map((value) => `Content-Type: ${value}`) : []),
    ...key.map((value) => `Idempotency-Key: ${value}`),
    ...lines,
    ...framing,
    "",
    body,
  ].join("\r\n");
}

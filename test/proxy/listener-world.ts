import { once } from "node:events";
import { connect as connectNet, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { type ProxyListener, type ProxyListenerOptions, startProxyListener } from "../../server/proxy/listener.ts";
import type { ProxyRefusal } from "../../server/proxy/refusal.ts";
import type { ProxyAnswer, ProxyHandler, RawHead } from "../../server/proxy/vendor.ts";

/** A handler that records what reaches it. */
export interface FakeHandler extends ProxyHandler {
  readonly heads: RawHead[];
  readonly bodies: string[];
  readonly refusals: ProxyRefusal[];
  readonly unread: ProxyRefusal[];
  readonly signals: AbortSignal[];
}

export interface FakeBehaviour {
  readonly bytesMax?: number;
  /** An answer ends the request at its head. */
  readonly begin?: (head: RawHead) => Promise<ProxyAnswer | undefined> | ProxyAnswer | undefined;
  readonly answer?: (body: string, signal: AbortSignal, head: RawHead) => Promise<ProxyAnswer> | ProxyAnswer;
}

export function answerOf(refusal: ProxyRefusal): ProxyAnswer {
  return {
    status: refusal.status,
    headers: {
      "content-type": "application/json",
      "request-id": "hf_test",
      "stripe-should-retry": String(refusal.retry === true),
    },
    body: JSON.stringify({ error: { code: refusal.code } }),
  };
}

export const done: ProxyAnswer = { status: 200, headers: { "content-type": "application/json" }, body: "{}" };
export const denied: ProxyAnswer = answerOf({ status: 403, code: "denied", message: "No." });

export function fakeHandler(behaviour: FakeBehaviour = {}): FakeHandler {
  const records = {
    heads: [] as RawHead[],
    bodies: [] as string[],
    refusals: [] as ProxyRefusal[],
    unread: [] as ProxyRefusal[],
    signals: [] as AbortSignal[],
  };
  return {
    ...records,
    async begin(head) {
      records.heads.push(head);
      const early = await behaviour.begin?.(head);
      if (early !== undefined) return early;
      return {
        bytesMax: head.method === "POST" ? (behaviour.bytesMax ?? 65_536) : 0,
        async answer(body, signal) {
          const text = Buffer.from(body).toString("latin1");
          records.bodies.push(text);
          records.signals.push(signal);
          return (await behaviour.answer?.(text, signal, head)) ?? done;
        },
        async refused(refusal) {
          records.refusals.push(refusal);
          return answerOf(refusal);
        },
      };
    },
    refuse(_, refusal) {
      records.unread.push(refusal);
      return Promise.resolve(answerOf(refusal));
    },
    unreadable(refusal) {
      records.unread.push(refusal);
      return answerOf(refusal);
    },
    close: () => Promise.resolve(),
  };
}

export interface World {
  readonly listener: ProxyListener;
  readonly handler: FakeHandler;
  readonly errors: object[];
}

export type WorldOptions = Partial<Pick<ProxyListenerOptions, "limits" | "names" | "tls">> & FakeBehaviour;

const open: ProxyListener[] = [];

export async function startWorld(options: WorldOptions = {}): Promise<World> {
  const { limits, names, tls, ...behaviour } = options;
  const handler = fakeHandler(behaviour);
  const errors: object[] = [];
  const listener = await startProxyListener({
    host: "127.0.0.1",
    port: 0,
    handler,
    log: { error: (details) => errors.push(details) },
    limits: { sweepMs: 20, ...limits },
    ...(names === undefined ? {} : { names }),
    ...(tls === undefined ? {} : { tls }),
  });
  open.push(listener);
  return { listener, handler, errors };
}

/** Resolves when the port takes no more connections. */
export async function refusesConnections(world: World): Promise<void> {
  for (;;) {
    const wire = await Wire.open(world).catch(() => undefined);
    if (wire === undefined) return;
    wire.socket.destroy();
    // The port closes when nobody comes for a moment.
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export async function closeWorlds(): Promise<void> {
  await Promise.all(open.splice(0).map((listener) => listener.close(0)));
}

/** One answer as it came. */
export interface Answer {
  readonly status: number;
  /** Name and value, lower-case names, in their order; without the date. */
  readonly headers: readonly (readonly [string, string])[];
  readonly body: string;
}

/** A connection on which bytes are sent as they are. */
export class Wire {
  readonly socket: Socket;
  #received = "";
  /** How much has to be there before it is worth a look: a large answer comes in many pieces. */
  #needed = 0;
  #ended = false;
  #wake = Promise.withResolvers<void>();

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on("error", () => {});
    socket.on("data", (chunk: Buffer) => {
      this.#received += chunk.toString("latin1");
      this.#stir();
    });
    for (const event of ["end", "close"]) {
      socket.on(event, () => {
        this.#ended = true;
        this.#stir();
      });
    }
  }

  static async open({ listener }: World, tls?: { readonly ca: string }): Promise<Wire> {
    const socket =
      tls === undefined
        ? connectNet({ port: listener.port, host: "127.0.0.1", noDelay: true })
        : connectTls({ port: listener.port, host: "127.0.0.1", servername: "localhost", ...tls });
    await once(socket, tls === undefined ? "connect" : "secureConnect");
    return new Wire(socket);
  }

  get ended(): boolean {
    return this.#ended;
  }

  send(bytes: string): this {
    this.socket.write(bytes, "latin1");
    return this;
  }

  /** The next answer, an interim one included; undefined where the connection ends without one. */
  async answer(): Promise<Answer | undefined> {
    for (;;) {
      const found = this.#take();
      if (found !== undefined) return found;
      if (this.#ended) return undefined;
      await this.#wake.promise;
    }
  }

  /** Resolves when the server has ended the connection, with what came and was not taken. */
  async end(): Promise<string> {
    while (!this.#ended) await this.#wake.promise;
    return this.#received;
  }

  #stir(): void {
    this.#wake.resolve();
    this.#wake = Promise.withResolvers();
  }

  #take(): Answer | undefined {
    if (this.#received.length < this.#needed) return undefined;
    const headEnd = this.#received.indexOf("\r\n\r\n");
    if (headEnd < 0) return undefined;
    const [first = "", ...lines] = this.#received.slice(0, headEnd).split("\r\n");
    const headers = lines.map((line): [string, string] => {
      const at = line.indexOf(": ");
      return [line.slice(0, at).toLowerCase(), line.slice(at + 2)];
    });
    const length = Number(new Map(headers).get("content-length") ?? "0");
    const end = headEnd + 4 + length;
    this.#needed = end;
    if (this.#received.length < end) return undefined;
    this.#needed = 0;
    const body = this.#received.slice(headEnd + 4, end);
    this.#received = this.#received.slice(end);
    return { status: Number(first.split(" ")[1]), headers: headers.filter(([name]) => name !== "date"), body };
  }
}

/** Sends bytes on a connection of their own, and returns the first answer and whether the connection was ended then. */
export async function exchange(world: World, bytes: string): Promise<Answer | undefined> {
  const wire = await Wire.open(world);
  const answer = await wire.send(bytes).answer();
  wire.socket.destroy();
  return answer;
}

export function post(body: string, ...headers: readonly string[]): string {
  return ["POST /v1/charges HTTP/1.1", "Host: x", ...headers, `Content-Length: ${body.length}`, "", body].join("\r\n");
}

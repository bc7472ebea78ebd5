import { createServer as createHttpServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { type AddressInfo, createServer as createNetServer, type Server as NetServer, type Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { createSecureServer, type TlsSettings } from "../rpc/listener-tls.ts";
import { StartupError } from "../startup-error.ts";
import { breakBody, createProxyConnections, type ProxyConnections } from "./connections.ts";
import { enqueue } from "./exchange.ts";
import { writeRawAnswer } from "./listener-answer.ts";
import { defaultProxyLimits, type ProxyLimits } from "./listener-limits.ts";
import type { ProxyRefusal } from "./refusal.ts";
import type { ProxyHandler } from "./vendor.ts";

export interface ProxyListenerOptions {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  /** Cleartext without it. */
  readonly tls?: TlsSettings;
  /** The host names that clients may mean, without a port. Without them any: a Host is used for nothing else. */
  readonly names?: readonly string[];
  readonly handler: ProxyHandler;
  readonly log: { error(details: object, message: string): void };
  readonly limits?: Partial<ProxyLimits>;
}

export interface ProxyListener {
  /** For example "http://127.0.0.1:12111". */
  readonly url: string;
  readonly port: number;
  /**
   * Stops accepting and answers what still comes on open connections, each answer the last one of its connection. What
   * has no request for `quietMs`, at most half of `graceMs`, is closed then. Resolves when every connection has ended
   * and every request that was begun is over, also those whose client has gone; after `graceMs` the connections are cut
   * and it resolves nevertheless. Does not close the handler. Never rejects; a second call waits for the first.
   */
  close(graceMs: number): Promise<void>;
}

/**
 * Serves one vendor at the root of its own port, over HTTP/1.1. Rejects with a StartupError if the address cannot be
 * bound. Nothing that a client sends ends the process or keeps a connection for longer than `limits` say; what cannot be
 * read in exactly one way never reaches `handler.begin`.
 */
export async function startProxyListener(options: ProxyListenerOptions): Promise<ProxyListener> {
  const { handler, log, tls } = options;
  const limits = { ...defaultProxyLimits, ...options.limits };
  const connections = createProxyConnections(limits);
  const running = new Set<Promise<void>>();
  let draining = false;
  const exchangeOptions = {
    handler,
    limits,
    ...(options.names === undefined ? {} : { names: new Set(options.names.map((name) => name.toLowerCase())) }),
    draining: () => draining,
    onError: (error: unknown) => log.error({ err: error }, "a request to the proxy failed"),
  };
  const http = createHttp(limits);
  const serve = (expectsContinue: boolean) => (request: IncomingMessage, response: ServerResponse) => {
    const connection = connections.of(request.socket);
    if (connection === undefined) return void request.socket.destroy();
    const work = enqueue(connection, { request, response, expectsContinue }, exchangeOptions);
    running.add(work);
    void work.finally(() => running.delete(work));
  };
  http.on("request", serve(false));
  http.on("checkContinue", serve(true));
  http.on("checkExpectation", serve(false));
  http.on("clientError", (error: NodeJS.ErrnoException, socket) =>
    answerUnreadable(error, socket as Socket, { ...exchangeOptions, connections }),
  );
  const open = (socket: Socket): void => {
    connections.open(socket);
    http.emit("connection", socket);
  };
  // Not the HTTP server listens: its own close would at once cut every connection that is between two requests, or whose
  // answer is still on its way.
  const net = tls === undefined ? cleartext(connections, open) : secure(tls, { connections, limits, open });
  await listen(net, options);
  net.on("error", (error) => log.error({ err: error }, "the proxy's port failed to accept a connection"));
  // Node enforces its timeouts only after this event.
  http.emit("listening");

  async function drain(graceMs: number): Promise<void> {
    draining = true;
    const quietMs = Math.min(limits.quietMs, graceMs / 2);
    await emptyBacklog(net);
    const ended = new Promise<void>((resolve) => net.close(() => resolve()));
    let idle: NodeJS.Timeout | undefined;
    const quiet = setTimeout(() => {
      afterReading(connections.endIdle);
      idle = setInterval(() => afterReading(connections.endIdle), 20);
    }, quietMs);
    const stopped = new AbortController();
    const cut = sleep(graceMs, undefined, { signal: stopped.signal }).then(connections.destroyAll, () => {});
    await ended;
    while (running.size > 0 && (await Promise.race([cut.then(() => "late"), Promise.all(running)])) !== "late");
    stopped.abort();
    clearTimeout(quiet);
    clearInterval(idle);
    // Stops its check of timeouts. It never listened, so there is nothing to wait for.
    http.close();
  }

  let closed: Promise<void> | undefined;
  const { address, port } = net.address() as AddressInfo;
  return {
    port,
    url: urlOf(tls === undefined ? "http" : "https", address, port),
    close(graceMs) {
      closed ??= drain(graceMs);
      return closed;
    },
  };
}

/** How many connections the kernel keeps until they are accepted. */
const backlogMax = 511;

/**
 * Takes in the connections that the kernel has already established: closing the port would reset them, requests and all,
 * and Node accepts no more than one per turn of its loop. Counts turns and connections, not time: those that wait when
 * this begins are in however busy the machine is, and newcomers cannot keep it going.
 */
async function emptyBacklog(server: NetServer): Promise<void> {
  let accepted = 0;
  const onConnection = (): void => void (accepted += 1);
  server.on("connection", onConnection);
  for (let calmTurns = 0; calmTurns < 3 && accepted <= backlogMax; ) {
    const before = accepted;
    await new Promise((resolve) => setImmediate(resolve));
    calmTurns = accepted === before ? calmTurns + 1 : 0;
  }
  server.off("connection", onConnection);
}

/** Runs a step once everything that has already arrived at this machine was read. */
function afterReading(step: () => void): void {
  setImmediate(() => setImmediate(step));
}

function createHttp(limits: ProxyLimits): Server {
  const server = createHttpServer({
    headersTimeout: limits.headMs,
    // The body has a time of its own, which ends in an answer and a record.
    requestTimeout: 0,
    connectionsCheckingInterval: limits.sweepMs,
    keepAliveTimeout: limits.idleMs,
    maxHeaderSize: limits.headerBytesMax,
    // Checked with the other headers, and answered in the vendor's shape.
    requireHostHeader: false,
    insecureHTTPParser: false,
  });
  // 0 keeps all lines; what is too many is refused instead of served without its tail.
  server.maxHeadersCount = 0;
  // Node would end the connection as well, but with a reset that looks like a fault.
  server.on("connect", (_request, socket) => socket.destroy());
  return server;
}

function cleartext(connections: ProxyConnections, open: (socket: Socket) => void): NetServer {
  return createNetServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    if (connections.count(socket)) open(socket);
  });
}

function secure(
  tls: TlsSettings,
  parts: {
    readonly connections: ProxyConnections;
    readonly limits: ProxyLimits;
    readonly open: (socket: Socket) => void;
  },
): NetServer {
  const accept = {
    count: parts.connections.count,
    secured(socket: Socket) {
      socket.on("error", () => socket.destroy());
      // Not before: who leaves in a handshake has gone.
      socket.allowHalfOpen = true;
      parts.open(socket);
    },
  };
  return createSecureServer(tls, accept, { firstRequestMs: parts.limits.headMs }, ["http/1.1"]);
}

function answerUnreadable(
  error: NodeJS.ErrnoException,
  socket: Socket,
  parts: {
    readonly connections: ProxyConnections;
    readonly handler: ProxyHandler;
    readonly limits: ProxyLimits;
    readonly onError: (error: unknown) => void;
  },
): void {
  const code = error.code ?? "";
  const connection = parts.connections.of(socket);
  const isOfClient = code.startsWith("HPE_") || code === "ERR_HTTP_REQUEST_TIMEOUT";
  if (connection === undefined || !isOfClient || !socket.writable) return void socket.destroy();
  // Comes again with everything that follows; it is dropped until the connection ends.
  if (connection.ended) return;
  const refusal = refusalOf(code);
  if (breakBody(connection, refusal)) return;
  if (connection.waiting > 0) {
    // What was asked before gets its answer; what stands behind it cannot be read.
    connection.closing = true;
    return;
  }
  connection.ended = true;
  // A connection that was opened ahead and never used: there is nothing to answer.
  if (connection.served === 0 && socket.bytesRead === connection.bytesSeen) return void socket.destroy();
  try {
    writeRawAnswer(socket, parts.handler.unreadable(refusal), parts.limits.lingerMs);
  } catch (thrown) {
    parts.onError(thrown);
    socket.destroy();
  }
}

function refusalOf(code: string): ProxyRefusal {
  if (code === "HPE_HEADER_OVERFLOW") {
    return { status: 431, code: "headers_too_large", message: "Send at most 16 KiB of request line and headers." };
  }
  if (code === "ERR_HTTP_REQUEST_TIMEOUT") {
    return {
      status: 408,
      code: "head_timeout",
      message: "The headers did not arrive in time; send them again.",
      retry: true,
    };
  }
  return { status: 400, code: "invalid_request", message: "What was sent is not an HTTP/1.1 request." };
}

function listen(server: NetServer, { host, port }: ProxyListenerOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const refused = (error: NodeJS.ErrnoException): void => {
      const why =
        error.code === "EADDRINUSE" ? "another program listens there" : `${error.code ?? "unknown"}: ${error.message}`;
      const remedy =
        "Set HOLDFAST_STRIPE_PROXY_HOST and HOLDFAST_STRIPE_PROXY_PORT to a free address; port 0 takes a free one.";
      reject(new StartupError("address", `The proxy cannot listen on ${host}:${port}: ${why}. ${remedy}`, error));
    };
    server.once("error", refused);
    server.listen({ host, port, backlog: backlogMax }, () => {
      server.off("error", refused);
      resolve();
    });
  });
}

function urlOf(scheme: string, address: string, port: number): string {
  if (address === "0.0.0.0" || address === "::") return `${scheme}://localhost:${port}`;
  return `${scheme}://${address.includes(":") ? `[${address}]` : address}:${port}`;
}

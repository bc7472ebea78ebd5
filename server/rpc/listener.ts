import { createServer as createHttp1Server, type Server as Http1Server } from "node:http";
import { createServer as createHttp2Server, type Http2Server } from "node:http2";
import { type AddressInfo, createServer as createNetServer, type Server as NetServer } from "node:net";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { StartupError } from "../startup-error.ts";
import { createDispatcher, type DispatchOptions, type Dispatcher } from "./dispatch.ts";
import { createConnections } from "./listener-connections.ts";
import { defaultLimits, type ListenerLimits } from "./listener-limits.ts";
import { createSecureServer, type TlsSettings } from "./listener-tls.ts";
import { watchSessions } from "./listener-sessions.ts";

export interface ListenerOptions
  extends Pick<DispatchOptions, "routes" | "interceptors" | "requestGate" | "leanMethods" | "log"> {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  readonly limits?: Partial<ListenerLimits>;
  /** Cleartext without it. */
  readonly tls?: TlsSettings;
}

export interface Listener {
  /** For example "http://127.0.0.1:4850". */
  readonly url: string;
  readonly port: number;
  /**
   * Stops accepting, tells clients to go elsewhere (GOAWAY, `connection: close`) and waits for the calls that run.
   * After 80 % of `graceMs` their signals are aborted with UNAVAILABLE, after all of it the connections are cut.
   * Never rejects; a second call waits for the first.
   */
  close(graceMs: number): Promise<void>;
}

/**
 * Listens on one port, cleartext or TLS, for Connect, gRPC and gRPC-Web over HTTP/1.1 and HTTP/2. Rejects if the address
 * cannot be bound. Nothing that a client sends ends the process or keeps a connection for longer than `limits` say.
 */
export async function startListener(options: ListenerOptions): Promise<Listener> {
  const limits = { ...defaultLimits, ...options.limits };
  const shutdown = new AbortController();
  const dispatcher = createDispatcher({ ...options, limits, shutdownSignal: shutdown.signal });
  const http1 = createHttp1(dispatcher, limits);
  const http2 = createHttp2(dispatcher, limits);
  const sessions = watchSessions(http2, limits, dispatcher.isStreaming);
  const connections = createConnections(limits, (socket, isHttp2) =>
    (isHttp2 ? http2 : http1).emit("connection", socket),
  );

  // Half-open like Node's own HTTP server: a client may close its side and still read the answer.
  const net: NetServer =
    options.tls === undefined
      ? createNetServer({ allowHalfOpen: true, noDelay: true }, connections.accept)
      : createSecureServer(options.tls, connections, limits);
  await listen(net, options.host, options.port);
  net.on("error", (error) => options.log.error({ err: error }, "the listener failed to accept a connection"));
  // Node enforces the HTTP/1 timeouts only after this event, and this server never listens itself.
  http1.emit("listening");
  const sweep = setInterval(() => {
    connections.sweep();
    sessions.sweep();
  }, limits.sweepMs).unref();

  let closed: Promise<void> | undefined;
  const { address, port } = net.address() as AddressInfo;
  return {
    port,
    url: urlOf(options.tls === undefined ? "http" : "https", address, port),
    close(graceMs) {
      closed ??= drain(graceMs);
      return closed;
    },
  };

  async function drain(graceMs: number): Promise<void> {
    const ended = new Promise<void>((resolve) => net.close(() => resolve()));
    http1.on("request", (_request, response) => {
      response.shouldKeepAlive = false;
    });
    connections.destroyUndecided();
    sessions.close();
    http1.closeIdleConnections();
    const idle = setInterval(() => http1.closeIdleConnections(), 20);
    const reason = new ConnectError(
      "The server is shutting down: repeat the call on another replica.",
      Code.Unavailable,
      undefined,
      [{ desc: RetryInfoSchema, value: { retryDelay: durationFromMs(100) } }],
    );
    const abort = setTimeout(() => shutdown.abort(reason), graceMs * 0.8);
    const cut = setTimeout(connections.destroyAll, graceMs);
    await ended;
    clearTimeout(abort);
    clearTimeout(cut);
    clearInterval(idle);
    clearInterval(sweep);
    // Stops its check of timeouts. It never listened, so there is nothing to wait for.
    http1.close();
  }
}

function createHttp1(dispatcher: Dispatcher, limits: ListenerLimits): Http1Server {
  const server = createHttp1Server({
    headersTimeout: limits.firstRequestMs,
    requestTimeout: Math.max(limits.firstRequestMs, 30_000),
    connectionsCheckingInterval: limits.sweepMs,
    keepAliveTimeout: 5_000,
    maxHeaderSize: limits.headerBytesMax,
    requireHostHeader: true,
  });
  // 0 keeps all of them; the dispatcher refuses what is too many instead of serving a request without its tail.
  server.maxHeadersCount = 0;
  server.timeout = limits.callMs;
  server.on("request", dispatcher.handle);
  server.on("clientError", (error: NodeJS.ErrnoException, socket) => {
    if (!socket.writable || error.code === "ECONNRESET") return socket.destroy();
    const status =
      error.code === "HPE_HEADER_OVERFLOW"
        ? "431 Request Header Fields Too Large"
        : error.code === "ERR_HTTP_REQUEST_TIMEOUT"
          ? "408 Request Timeout"
          : "400 Bad Request";
    socket.end(`HTTP/1.1 ${status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`, () => socket.destroy());
  });
  return server;
}

function createHttp2(dispatcher: Dispatcher, limits: ListenerLimits): Http2Server {
  const server = createHttp2Server({
    settings: {
      maxConcurrentStreams: limits.streamsMax,
      maxHeaderListSize: limits.headerBytesMax,
      enablePush: false,
    },
    maxHeaderListPairs: limits.headersMax,
    streamResetBurst: limits.resetBurst,
    streamResetRate: limits.resetsPerSecond,
  });
  // Makes requests of the streams that are not taken, as Node does; it gets no connection of its own.
  const adapted = createHttp2Server();
  adapted.on("request", dispatcher.handle);
  server.on("stream", (stream, headers, flags, rawHeaders) => {
    if (!dispatcher.take(stream, headers, rawHeaders)) adapted.emit("stream", stream, headers, flags, rawHeaders);
  });
  // A broken session has nobody to tell; without a listener its error would end the process.
  server.on("sessionError", () => {});
  return server;
}

function listen(server: NetServer, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const refused = (error: NodeJS.ErrnoException): void => reject(cannotListen(host, port, error));
    server.once("error", refused);
    server.listen({ host, port }, () => {
      server.off("error", refused);
      resolve();
    });
  });
}

function cannotListen(host: string, port: number, error: NodeJS.ErrnoException): StartupError {
  const why =
    error.code === "EADDRINUSE" ? "another program listens there" : `${error.code ?? "unknown"}: ${error.message}`;
  return new StartupError(
    "address",
    `Cannot listen on ${host}:${port}: ${why}. Set HOLDFAST_HOST and HOLDFAST_PORT to a free address; port 0 takes a free one.`,
    error,
  );
}

function urlOf(scheme: string, address: string, port: number): string {
  if (address === "0.0.0.0" || address === "::") return `${scheme}://localhost:${port}`;
  return `${scheme}://${address.includes(":") ? `[${address}]` : address}:${port}`;
}

import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerOptions, type ServerResponse } from "node:http";
import { createServer as createSecureServer } from "node:https";
import type { AddressInfo } from "node:net";
import type { TlsSettings } from "./rpc/listener-tls.ts";
import { StartupError } from "./startup-error.ts";

export interface MetricsListenerOptions {
  readonly host: string;
  /** 0 takes a free port. */
  readonly port: number;
  /** Every metric in Prometheus' text format. */
  readonly scrape: () => Promise<string>;
  /** Cleartext without it. */
  readonly tls: TlsSettings | undefined;
  readonly log: { warn(details: object, message: string): void };
}

export interface MetricsListener {
  /** For example "http://127.0.0.1:9464/metrics". */
  readonly url: string;
  /** Cuts every connection: a scrape is worth nothing to a server that ends. Never rejects. */
  close(): Promise<void>;
}

const path = "/metrics";
const limits: ServerOptions = {
  maxHeaderSize: 8_192,
  headersTimeout: 5_000,
  requestTimeout: 5_000,
  keepAliveTimeout: 65_000,
  connectionsCheckingInterval: 1_000,
};
const connectionsMax = 32;

/**
 * Serves the metrics at the path /metrics of a port of their own. Scrapes that come at once are one. Rejects with a
 * StartupError if the address cannot be bound.
 */
export async function startMetricsListener(options: MetricsListenerOptions): Promise<MetricsListener> {
  const { host, port, tls, scrape, log } = options;
  let running: Promise<string> | undefined;
  const shared = (): Promise<string> => {
    running ??= scrape().finally(() => (running = undefined));
    return running;
  };
  const serve = (request: IncomingMessage, response: ServerResponse): void => {
    void answer(request, response, shared).catch((error: unknown) => {
      log.warn({ err: error }, "the metrics could not be collected");
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  };
  const server = tls === undefined ? createServer(limits, serve) : secure(tls, serve);
  server.maxConnections = connectionsMax;
  try {
    server.listen(port, host);
    await once(server, "listening");
  } catch (cause) {
    const { code = "an unknown reason" } = cause as NodeJS.ErrnoException;
    const message =
      `Cannot serve the metrics on ${host}:${port} (${code}). Set HOLDFAST_METRICS_HOST and HOLDFAST_METRICS_PORT to a ` +
      "free address; port 0 takes a free one.";
    throw new StartupError("address", message, cause);
  }
  server.on("error", (error) => log.warn({ err: error }, "the port of the metrics failed to accept a connection"));
  const bound = server.address() as AddressInfo;
  const name = bound.family === "IPv6" ? `[${bound.address}]` : bound.address;
  return {
    url: `${tls === undefined ? "http" : "https"}://${name}:${bound.port}${path}`,
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
  };
}

function secure({ certificates, minVersion, onOpen }: TlsSettings, serve: Parameters<typeof createServer>[1]) {
  const contextOf = ({ cert, key, clientCa }: typeof certificates) => ({
    cert,
    key,
    minVersion,
    ...(clientCa === undefined ? {} : { ca: clientCa }),
  });
  const asked = certificates.clientCa !== undefined;
  const server = createSecureServer(
    { ...limits, ...contextOf(certificates), requestCert: asked, rejectUnauthorized: asked, handshakeTimeout: 5_000 },
    serve,
  );
  onOpen((exchanged) => server.setSecureContext(contextOf(exchanged)));
  return server;
}

async function answer(request: IncomingMessage, response: ServerResponse, scrape: () => Promise<string>) {
  // A body is of no use here, and reading it costs less than a connection that ends.
  request.resume();
  if (request.url?.split("?")[0] !== path) return void response.writeHead(404).end();
  if (request.method !== "GET" && request.method !== "HEAD") {
    return void response.writeHead(405, { allow: "GET, HEAD" }).end();
  }
  const text = await scrape();
  response.writeHead(200, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
  response.end(request.method === "HEAD" ? undefined : text);
}

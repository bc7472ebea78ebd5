import {
  createServer as createTlsServer,
  type SecureVersion,
  type Server as TlsServer,
  type TLSSocket,
} from "node:tls";
import type { Socket } from "node:net";
import type { Certificates } from "./certificates.ts";
import type { Connections } from "./listener-connections.ts";
import type { ListenerLimits } from "./listener-limits.ts";

/** How a port is secured, and how its certificates are exchanged while it is open. */
export interface TlsSettings {
  readonly certificates: Certificates;
  readonly minVersion: SecureVersion;
  /** Is given a function that takes new certificates into use for new connections. */
  readonly onOpen: (exchange: (certificates: Certificates) => void) => void;
}

/**
 * A TLS server that hands on each connection with the protocol that the client chose. One that does not end its handshake
 * in time, or cannot, is cut; nobody has to be told.
 */
export function createSecureServer(
  { certificates, minVersion, onOpen }: TlsSettings,
  connections: Pick<Connections, "count" | "secured">,
  limits: Pick<ListenerLimits, "firstRequestMs">,
  protocols: readonly ("h2" | "http/1.1")[] = ["h2", "http/1.1"],
): TlsServer {
  const contextOf = ({ cert, key, clientCa }: Certificates) => ({
    cert,
    key,
    minVersion,
    ...(clientCa === undefined ? {} : { ca: clientCa }),
  });
  const server = createTlsServer({
    ...contextOf(certificates),
    ALPNProtocols: [...protocols],
    handshakeTimeout: limits.firstRequestMs,
    requestCert: certificates.clientCa !== undefined,
    rejectUnauthorized: certificates.clientCa !== undefined,
    allowHalfOpen: false,
    noDelay: true,
  });
  server.on("connection", (socket: Socket) => connections.count(socket));
  server.on("secureConnection", (socket: TLSSocket) => connections.secured(socket, socket.alpnProtocol === "h2"));
  server.on("tlsClientError", (_error, socket) => socket.destroy());
  onOpen((exchanged) => server.setSecureContext(contextOf(exchanged)));
  return server;
}

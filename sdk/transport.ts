import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { createSessions } from "./sessions.ts";
import type { TlsOptions } from "./tls.ts";

/** Largest answer that is read: what the server's limits allow. */
export const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;

export interface ClosableTransport extends Transport {
  /** Ends the connection when its calls have ended. */
  close(): void;
}

/** gRPC over one HTTP/2 connection, which is replaced when it ends or does not answer. */
export function createDefaultTransport(baseUrl: string, tls: TlsOptions | undefined): ClosableTransport {
  const sessions = createSessions({
    authority: new URL(baseUrl).origin,
    ...(tls === undefined
      ? {}
      : { tls: { ...tls, ...(tls.serverName === undefined ? {} : { servername: tls.serverName }) } }),
  });
  const transport = createGrpcTransport({ baseUrl, sessionManager: sessions, readMaxBytes: MESSAGE_BYTES_MAX });
  return {
    unary: (...args) => transport.unary(...args),
    stream: (...args) => transport.stream(...args),
    close: () => sessions.close(),
  };
}

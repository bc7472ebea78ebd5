import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import type { ProxyLimits } from "./listener-limits.ts";
import type { ProxyRefusal } from "./refusal.ts";

/** One client's connection, and how far it is. */
export interface Connection {
  readonly socket: Socket;
  /** Resolves when the requests that have come so far are answered. They are answered one at a time. */
  turn: Promise<void>;
  /** Requests that run or wait. */
  waiting: number;
  served: number;
  /** One of its requests was let in: it is no stranger. */
  known: boolean;
  /** The next answer is the last one. */
  closing: boolean;
  /** The last answer was written: no further request is begun. */
  ended: boolean;
  /** The request that came last, whose body may be still on its way. */
  latest: { readonly request: IncomingMessage; readonly broken: AbortController } | undefined;
  /** How many bytes had come before HTTP, or when the last answer was written: more are a request that begins. */
  bytesSeen: number;
}

export interface ProxyConnections {
  /** Takes what was accepted. False if there are too many: it was ended. */
  readonly count: (socket: Socket) => boolean;
  /** Takes a connection that can carry HTTP: what was counted, or what a TLS handshake has made of it. */
  readonly open: (socket: Socket) => Connection;
  readonly of: (socket: Socket) => Connection | undefined;
  /** Ends the connections without a request. */
  readonly endIdle: () => void;
  readonly destroyAll: () => void;
}

export function createProxyConnections(
  limits: Pick<ProxyLimits, "connectionsMax" | "connectionsPerPeerMax">,
): ProxyConnections {
  const accepted = new Set<Socket>();
  const perPeer = new Map<string, number>();
  const open = new Map<Socket, Connection>();

  function count(socket: Socket): boolean {
    const peer = socket.remoteAddress ?? "";
    const ofPeer = perPeer.get(peer) ?? 0;
    // For the whole life of the socket: Node drops its own listeners before the last error.
    socket.on("error", () => socket.destroy());
    if (accepted.size >= limits.connectionsMax || ofPeer >= limits.connectionsPerPeerMax) {
      socket.destroy();
      return false;
    }
    accepted.add(socket);
    perPeer.set(peer, ofPeer + 1);
    socket.once("close", () => {
      accepted.delete(socket);
      const left = (perPeer.get(peer) ?? 1) - 1;
      if (left > 0) perPeer.set(peer, left);
      else perPeer.delete(peer);
    });
    return true;
  }

  return {
    count,
    open(socket) {
      const connection: Connection = {
        socket,
        turn: Promise.resolve(),
        waiting: 0,
        served: 0,
        known: false,
        closing: false,
        ended: false,
        latest: undefined,
        bytesSeen: socket.bytesRead,
      };
      open.set(socket, connection);
      socket.once("close", () => open.delete(socket));
      return connection;
    },
    of: (socket) => open.get(socket),
    endIdle() {
      for (const { socket, waiting, ended, bytesSeen } of open.values()) {
        if (waiting === 0 && !ended && socket.bytesRead === bytesSeen) socket.destroySoon();
      }
    },
    destroyAll() {
      for (const socket of accepted) socket.destroy();
    },
  };
}

/** Says of the request whose body is still on its way that the rest cannot be read. False if there is none. */
export function breakBody({ latest }: Connection, refusal: ProxyRefusal): boolean {
  if (latest === undefined || latest.request.complete) return false;
  latest.broken.abort(refusal);
  return true;
}

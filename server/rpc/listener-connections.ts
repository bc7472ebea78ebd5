import type { Socket } from "node:net";
import type { ListenerLimits } from "./listener-limits.ts";

/** What every HTTP/2 client sends first. No HTTP/1 method begins with it. */
const preface = Buffer.from("PRI ");

export interface Connections {
  /** Takes a cleartext connection. */
  readonly accept: (socket: Socket) => void;
  /** Takes the connection below a TLS handshake. False if there are too many: it was ended. */
  readonly count: (socket: Socket) => boolean;
  /** Takes what a handshake has made of a counted connection. */
  readonly secured: (socket: Socket, isHttp2: boolean) => void;
  /** Ends the connections that have not said in time which protocol they speak. */
  readonly sweep: () => void;
  readonly destroyUndecided: () => void;
  readonly destroyAll: () => void;
}

/** Counts the connections and hands each on when its first bytes have said which protocol it speaks. */
export function createConnections(
  limits: ListenerLimits,
  handOver: (socket: Socket, isHttp2: boolean) => void,
): Connections {
  const all = new Set<Socket>();
  const perPeer = new Map<string, number>();
  /** By the address of the client: a TLS socket and the one below it have nothing else in common. */
  const undecided = new Map<string, { readonly socket: Socket; readonly since: number }>();

  function count(socket: Socket): boolean {
    const peer = socket.remoteAddress ?? "";
    const ofPeer = perPeer.get(peer) ?? 0;
    // For the whole life of the socket: the servers behind drop their own listeners before the last error.
    socket.on("error", () => socket.destroy());
    if (all.size >= limits.connectionsMax || ofPeer >= limits.connectionsPerPeerMax) {
      socket.destroy();
      return false;
    }
    all.add(socket);
    perPeer.set(peer, ofPeer + 1);
    const from = addressOf(socket);
    undecided.set(from, { socket, since: performance.now() });
    socket.once("close", () => {
      all.delete(socket);
      if (undecided.get(from)?.socket === socket) undecided.delete(from);
      const left = (perPeer.get(peer) ?? 1) - 1;
      if (left > 0) perPeer.set(peer, left);
      else perPeer.delete(peer);
    });
    return true;
  }

  function decided(socket: Socket, isHttp2: boolean): void {
    undecided.delete(addressOf(socket));
    // An HTTP/2 client that closes its side has gone; only HTTP/1 clients do so and still read. Without this the calls
    // of a vanished client would run until their deadline.
    if (isHttp2) socket.allowHalfOpen = false;
    handOver(socket, isHttp2);
  }

  return {
    accept(socket) {
      if (count(socket)) peek(socket, (isHttp2) => decided(socket, isHttp2));
    },
    count,
    secured(socket, isHttp2) {
      socket.on("error", () => socket.destroy());
      // Not before: who leaves in a handshake has gone.
      socket.allowHalfOpen = true;
      if (isHttp2) decided(socket, true);
      // An HTTP/1 connection counts as idle, for a shutdown, only after its first request.
      else peek(socket, () => decided(socket, false));
    },
    sweep() {
      const limit = performance.now() - limits.firstRequestMs;
      for (const { socket, since } of undecided.values()) if (since < limit) socket.destroy();
    },
    destroyUndecided() {
      for (const { socket } of undecided.values()) socket.destroy();
    },
    destroyAll() {
      for (const socket of all) socket.destroy();
    },
  };
}

function addressOf({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress ?? ""} ${remotePort ?? ""}`;
}

/** Reads until the protocol is certain, puts back what it has read, and calls `decided`. */
function peek(socket: Socket, decided: (isHttp2: boolean) => void): void {
  let head = Buffer.alloc(0);
  const onEnd = () => socket.destroy();
  const onReadable = () => {
    const chunk = socket.read() as Buffer | null;
    if (chunk === null) return;
    head = Buffer.concat([head, chunk]);
    const length = Math.min(head.length, preface.length);
    const isHttp2 = head.subarray(0, length).equals(preface.subarray(0, length));
    if (isHttp2 && length < preface.length) return;
    socket.off("readable", onReadable);
    socket.off("end", onEnd);
    socket.unshift(head);
    decided(isHttp2);
  };
  socket.on("end", onEnd);
  socket.on("readable", onReadable);
}

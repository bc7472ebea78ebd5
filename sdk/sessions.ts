import { type ClientHttp2Session, type ClientHttp2Stream, connect, type OutgoingHttpHeaders } from "node:http2";
import type { SecureContextOptions } from "node:tls";
import { Code, ConnectError } from "@connectrpc/connect";
import type { GrpcTransportOptions } from "@connectrpc/connect-node";
import { tlsFailure } from "./tls.ts";

type SessionManager = NonNullable<GrpcTransportOptions["sessionManager"]>;

/** The HTTP/2 connection of a client. Nothing that happens to it is thrown outside of a call. */
export interface Sessions extends SessionManager {
  /** Ends the connection when its calls have ended. A later call opens another one. */
  close(): void;
}

export interface SessionsOptions {
  /** Origin, for example "https://holdfast.internal:8443". */
  readonly authority: string;
  readonly tls?: Pick<SecureContextOptions, "ca" | "cert" | "key"> & { readonly servername?: string };
}

interface Session {
  readonly http2: ClientHttp2Session;
  /** Readings of the real monotonic clock, in milliseconds. */
  heardAt: number;
  pingedAt: number | undefined;
  calls: number;
  watch: NodeJS.Timeout | undefined;
}

const CONNECT_TIMEOUT_MS = 5_000;
// A connection whose other side is gone without a word, or whose process was stopped for long, looks like any other.
// It is asked as soon as it was silent for this long while a call waits, and given up when it does not answer.
const SILENCE_MS = 1_000;
const PING_TIMEOUT_MS = 4_000;
const WATCH_MS = 500;

/**
 * Keeps one connection, and opens another one as soon as that one is closed, was told to go (GOAWAY) or does not
 * answer. Only calls keep the process alive, an idle connection does not.
 */
export function createSessions(options: SessionsOptions): Sessions {
  let current: Promise<Session> | undefined;

  async function usable(): Promise<Session> {
    const known = current;
    if (known !== undefined) {
      const session = await known.catch(() => undefined);
      if (session !== undefined && !session.http2.closed && !session.http2.destroyed) return session;
      if (current !== known) return usable();
    }
    const opening = open(options);
    current = opening;
    opening.catch(() => {
      if (current === opening) current = undefined;
    });
    return opening;
  }

  return {
    authority: options.authority,
    async request(method, path, headers) {
      const session = await usable();
      return startCall(session, { ...headers, ":method": method, ":path": path });
    },
    notifyResponseByteRead() {
      // Answers are small: their first and last frames are heard above, and a ping is answered in between.
    },
    close() {
      const known = current;
      current = undefined;
      void known?.then(
        ({ http2 }) => http2.close(),
        () => undefined,
      );
    },
  };
}

function open({ authority, tls }: SessionsOptions): Promise<Session> {
  return new Promise((resolve, reject) => {
    let cause: unknown;
    const http2 = connect(authority, tls === undefined ? {} : { ...tls, ALPNProtocols: ["h2"] });
    const session: Session = { http2, heardAt: performance.now(), pingedAt: undefined, calls: 0, watch: undefined };
    const timer = setTimeout(
      () => http2.destroy(unavailable("the connection was not established in time")),
      CONNECT_TIMEOUT_MS,
    );
    http2.once("connect", () => {
      clearTimeout(timer);
      heard(session);
      if (session.calls === 0) http2.unref();
      resolve(session);
    });
    // Both happen to every connection sooner or later; the calls on it learn of it by themselves.
    http2.on("error", (error) => {
      cause ??= error;
    });
    http2.once("close", () => {
      clearTimeout(timer);
      clearInterval(session.watch);
      reject(tlsFailure(cause) ?? cause ?? unavailable("the connection was closed"));
    });
  });
}

function startCall(session: Session, headers: OutgoingHttpHeaders): ClientHttp2Stream {
  const { http2 } = session;
  const stream = http2.request(headers);
  // Whoever reads the stream listens too, but a little later.
  stream.on("error", () => undefined);
  stream.on("response", () => heard(session));
  stream.on("trailers", () => heard(session));
  session.calls += 1;
  if (session.calls === 1) {
    http2.ref();
    session.watch = setInterval(() => look(session), WATCH_MS).unref();
    look(session);
  }
  stream.once("close", () => {
    session.calls -= 1;
    if (session.calls > 0) return;
    clearInterval(session.watch);
    session.pingedAt = undefined;
    if (!http2.destroyed) http2.unref();
  });
  return stream;
}

function heard(session: Session): void {
  session.heardAt = performance.now();
  session.pingedAt = undefined;
}

/** Asks a silent connection for a sign of life, and gives it up when none came. */
function look(session: Session): void {
  const { http2, pingedAt } = session;
  const now = performance.now();
  if (http2.destroyed) return;
  if (pingedAt === undefined) {
    if (now - session.heardAt < SILENCE_MS) return;
    session.pingedAt = now;
    try {
      http2.ping((error) => {
        if (error === null) heard(session);
      });
    } catch {
      // Closed between the two lines: its calls are told.
    }
    return;
  }
  if (now - pingedAt < PING_TIMEOUT_MS) return;
  // After a stop of this process the answer may have arrived already, and is read in the next turns.
  setImmediate(() =>
    setImmediate(() => {
      if (session.pingedAt === pingedAt && !http2.destroyed) {
        http2.destroy(unavailable("the connection does not answer any more"));
      }
    }),
  );
}

function unavailable(message: string): ConnectError {
  return new ConnectError(message, Code.Unavailable);
}

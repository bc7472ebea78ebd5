import { constants, type Http2Server, type Http2Session, type ServerHttp2Stream } from "node:http2";
import type { ListenerLimits } from "./listener-limits.ts";

export interface SessionWatch {
  /** Ends the calls and sessions whose time is over. */
  sweep(): void;
  /** Sends GOAWAY on every session; each ends with its last call. */
  close(): void;
}

interface SessionState {
  /** When the session was opened or when its last call ended. */
  since: number;
  used: boolean;
  readonly calls: Map<ServerHttp2Stream, { readonly since: number; readonly streaming: boolean }>;
}

/**
 * Bounds the time of HTTP/2 sessions and their calls, which Node leaves open for ever. Time is counted in calls,
 * not in bytes, because a client can keep a session "active" with pings or single bytes. One sweep looks at all of
 * them; a timer per call would cost more than the call's own bookkeeping.
 */
export function watchSessions(
  server: Http2Server,
  limits: ListenerLimits,
  isStreaming: (path: string | undefined) => boolean,
): SessionWatch {
  const sessions = new Map<Http2Session, SessionState>();

  server.on("session", (session) => {
    sessions.set(session, { since: performance.now(), used: false, calls: new Map() });
    session.once("close", () => sessions.delete(session));
  });
  server.on("stream", (stream, headers) => {
    const state = stream.session === undefined ? undefined : sessions.get(stream.session);
    if (state === undefined) return;
    state.used = true;
    state.calls.set(stream, { since: performance.now(), streaming: isStreaming(headers[":path"]) });
    stream.once("close", () => {
      state.calls.delete(stream);
      state.since = performance.now();
    });
  });

  return {
    sweep() {
      const now = performance.now();
      for (const [session, state] of sessions) {
        if (state.calls.size === 0) endIdle(session, state, now, limits);
        for (const [stream, call] of state.calls) {
          const limit = limitOf(stream, call.streaming, limits);
          if (now - call.since > limit) stream.close(constants.NGHTTP2_CANCEL);
        }
      }
    },
    close() {
      for (const session of sessions.keys()) if (!session.destroyed) session.close();
    },
  };
}

function endIdle(session: Http2Session, state: SessionState, now: number, limits: ListenerLimits): void {
  const age = now - state.since;
  if (!state.used && age > limits.firstRequestMs) session.destroy();
  else if (age > limits.idleMs && !session.closed) session.close();
  // A client that does not react to GOAWAY, or half a request that never became a call.
  else if (age > limits.idleMs + limits.firstRequestMs) session.destroy();
}

function limitOf(stream: ServerHttp2Stream, streaming: boolean, limits: ListenerLimits): number {
  if (streaming) return limits.streamMs;
  return stream.state.remoteClose === 1 ? limits.callMs : limits.requestMs;
}

import { setTimeout as delay } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type HandlerContext, type ServiceImpl } from "@connectrpc/connect";
import { RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type WatchAuditEventsRequest,
  type WatchAuditEventsResponse,
  WatchAuditEventsResponseSchema,
} from "@holdfast/api/holdfast/v1/audit_pb";
import {
  type AuditDetachment,
  type AuditEvent,
  type AuditFilter,
  type AuditPosition,
  isBehind,
} from "../domain/audit.ts";
import { HoldfastError } from "../domain/errors.ts";
import * as store from "../store/audit.ts";
import type { Database } from "../store/database.ts";
import {
  detachedUntil,
  eventMessage,
  filterFrom,
  positionFrom,
  refuseDetached,
  resumeTokenOf,
} from "./audit-message.ts";
import { type AuditPulse, createAuditPulse } from "./audit-pulse.ts";
import { principalOf } from "./auth.ts";
import { millisecondsFrom } from "./convert.ts";

export interface AuditWatchOptions {
  readonly database: Database;
  /** Throws if the caller may not call any more: a stream lives longer than a token may. */
  readonly authenticate: (context: HandlerContext) => Promise<void>;
  readonly pollMs?: number;
  /** How many may watch at this server, and how many of them in one workspace. */
  readonly watchersMax?: number;
  readonly watchersPerWorkspaceMax?: number;
  /** How long one stream lives; below what the listener allows a stream. */
  readonly streamMs?: number;
}

export interface AuditWatch {
  readonly methods: Pick<ServiceImpl<typeof AdminService>, "watchAuditEvents">;
  /** Ends every stream with UNAVAILABLE, so that watchers go on at another server and do not hold up a shutdown. */
  close(): void;
}

const pageMax = 200;
const heartbeatDefaultMs = 10_000;

/** Streams of audit events. */
export function createAuditWatch(options: AuditWatchOptions): AuditWatch {
  const { database, authenticate, pollMs = 500, streamMs = 600_000 } = options;
  const closing = new AbortController();
  const admit = createAdmission(options.watchersMax ?? 64, options.watchersPerWorkspaceMax ?? 16);
  const pulse = createAuditPulse({
    readHead: (workspace) => store.readAuditHead(database, workspace),
    pause: () => delay(pollMs, undefined, { ref: false }),
  });

  async function* watch(request: WatchAuditEventsRequest, context: HandlerContext) {
    const { workspace } = principalOf(context.values);
    const reader = readerOf(
      database,
      workspace,
      filterFrom(request),
      positionFrom(request.resumeToken, "resume_token"),
    );
    const heartbeatMs =
      request.heartbeatInterval === undefined
        ? heartbeatDefaultMs
        : millisecondsFrom(request.heartbeatInterval, "heartbeat_interval");
    const leave = admit(workspace);
    try {
      const endMs = performance.now() + streamMs;
      const ending = AbortSignal.any([context.signal, closing.signal]);
      // At once: it says where the stream begins.
      for (let dueMs = 0; ; ) {
        ending.throwIfAborted();
        const events = await reader.read();
        const isDue = performance.now() >= dueMs;
        if (events.length > 0 || isDue) {
          await authenticate(context);
          yield messageOf(events, reader);
          dueMs = performance.now() + heartbeatMs;
        }
        if (events.length === pageMax) continue;
        if (performance.now() >= endMs) return;
        await waitForNews(pulse, { workspace, reader, ending, waitMs: Math.max(0, dueMs - performance.now()) });
      }
    } finally {
      leave();
    }
  }

  return {
    methods: { watchAuditEvents: watch },
    close: () => closing.abort(shutdown()),
  };
}

interface Reader {
  /** The next events, at most a page of them. */
  read(): Promise<readonly AuditEvent[]>;
  readonly position: AuditPosition | undefined;
  resumeToken(): string;
  readonly detachment: AuditDetachment | undefined;
}

function readerOf(
  database: Database,
  workspace: string,
  filter: AuditFilter,
  begin: AuditPosition | undefined,
): Reader {
  let position = begin;
  let token = "";
  let detachment: AuditDetachment | undefined;
  return {
    async read() {
      const query = { filter, newestFirst: false, after: position, limit: pageMax };
      const { events, seen, ...rest } = await store.listAuditEvents(database, workspace, query);
      ({ detachment } = rest);
      refuseDetached(position, detachment, "resume_token");
      // A full page says nothing about what comes after it.
      const stands = events.length === pageMax ? (events.at(-1) ?? seen) : seen;
      token = resumeTokenOf(stands, position);
      if (position === undefined || isBehind(stands, position)) position = stands;
      return events;
    },
    get position() {
      return position;
    },
    resumeToken: () => token,
    get detachment() {
      return detachment;
    },
  };
}

interface Waiting {
  readonly workspace: string;
  readonly reader: Reader;
  readonly ending: AbortSignal;
  readonly waitMs: number;
}

async function waitForNews(pulse: AuditPulse, { workspace, reader, ending, waitMs }: Waiting): Promise<void> {
  const waking = new AbortController();
  const timer = setTimeout(() => waking.abort(), waitMs);
  try {
    await pulse.beyond(workspace, reader.position, AbortSignal.any([ending, waking.signal]));
  } finally {
    clearTimeout(timer);
  }
}

/** Counts who watches. Refuses what is too many; what it returns gives the place back. */
function createAdmission(max: number, perWorkspaceMax: number): (workspace: string) => () => void {
  const watching = new Map<string, number>();
  let all = 0;
  return (workspace) => {
    const here = watching.get(workspace) ?? 0;
    if (all >= max || here >= perWorkspaceMax) {
      throw new HoldfastError(
        "QUEUE_FULL",
        "Too many watch the audit at this server. End a watch, or try again after the delay, on another server.",
        { retryAfterMs: 5_000 },
      );
    }
    all += 1;
    watching.set(workspace, here + 1);
    return () => {
      all -= 1;
      const left = (watching.get(workspace) ?? 1) - 1;
      if (left > 0) watching.set(workspace, left);
      else watching.delete(workspace);
    };
  };
}

function messageOf(events: readonly AuditEvent[], reader: Reader): WatchAuditEventsResponse {
  return create(WatchAuditEventsResponseSchema, {
    auditEvents: events.map(eventMessage),
    resumeToken: reader.resumeToken(),
    ...detachedUntil(reader.detachment),
  });
}

function shutdown(): ConnectError {
  return new ConnectError(
    "The server is shutting down: go on with the last resume token on another server.",
    Code.Unavailable,
    undefined,
    [{ desc: RetryInfoSchema, value: { retryDelay: durationFromMs(100) } }],
  );
}

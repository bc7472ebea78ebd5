import { setTimeout } from "node:timers/promises";
import type { SpendIdentity } from "../domain/spend.ts";
import type { ProxyDisposition } from "../store/proxy.ts";
import { type CarryParts, carryOut, type LastLook, type Opened } from "./carry-out.ts";
import type { Identity } from "./identity.ts";
import { checkHead, type ProxyKey } from "./policy-check.ts";
import { type ProxyRefusal, refuse, RefusedRequest } from "./refusal.ts";
import { type RequestTrace, traceRequest } from "./trace.ts";
import type { ProxyAnswer, ProxyHandler, RawHead, RequestHead, WantedBody } from "./vendor.ts";

/** One request for the audit. */
export interface RecordedRequest {
  readonly key: ProxyKey;
  readonly requestId: string;
  readonly disposition: ProxyDisposition;
  /** The refusal's code; empty without one. */
  readonly reason: string;
  /** Empty where the request was not read so far. */
  readonly endpoint: string;
  readonly account: string;
  readonly status: number;
  /** What the request was about, if it came that far. */
  readonly spend: SpendIdentity | undefined;
}

export interface ProxyParts extends CarryParts {
  /** Reads what a request is judged by. @throws RefusedRequest on a token that opens nothing, or is no vault key's. */
  readonly open: (token: string) => Promise<OpenedKey>;
  readonly record: (request: RecordedRequest) => Promise<void>;
  /** Records how many refusals of each key were not written down since its last event. */
  readonly recordRest: () => Promise<void>;
}

/** What a token opens, as it is at this moment, whoever it is asked for. */
export interface OpenedKey extends LastLook {
  readonly key: ProxyKey;
}

/** What is known of a request so far. */
interface Trail {
  readonly requestId: string;
  readonly trace: RequestTrace;
  key: ProxyKey | undefined;
  head: RequestHead | undefined;
  identity: Identity | undefined;
}

/** Serves one vendor: match, judge, then rebuild. */
export function createProxy(parts: ProxyParts): ProxyHandler {
  const { dialect } = parts.vendor;
  const running = new Set<Promise<unknown>>();

  function trailOf(raw: RawHead): Trail {
    const trace = traceRequest(raw, dialect.name);
    return { requestId: `hf_${parts.random()}`, trace, key: undefined, head: undefined, identity: undefined };
  }

  function begin(raw: RawHead): Promise<ProxyAnswer | WantedBody> {
    const trail = trailOf(raw);
    return guarded<ProxyAnswer | WantedBody>(trail, async () => {
      // The credentials come first: also a request that is refused for its path is somebody's.
      const { key, dead, secret } = await keyOf(raw);
      trail.key = key;
      trail.trace.owner(key);
      const head = dialect.readHead(raw);
      trail.head = head;
      trail.trace.asked(head);
      const flow = parts.vendor.flowOf(head);
      const apiVersion = checkHead(head, flow, dialect.name, key);
      if (dead !== undefined) throw new RefusedRequest(dead);
      const opened: Opened = { requestId: trail.requestId, key, secret, flow, apiVersion };
      return {
        bytesMax: head.takesBody ? dialect.bodyBytesMax : 0,
        answer: (body) => answerTo(opened, head, trail, body),
        refused: (refusal) => guarded(trail, () => end(trail, refusal)),
      };
    });
  }

  function answerTo(opened: Opened, head: RequestHead, trail: Trail, body: Uint8Array): Promise<ProxyAnswer> {
    return guarded(trail, async () => {
      const request = dialect.readBody(head, body);
      const { answer, disposition, reason, noted } = await carryOut(parts, opened, request, (identity) => {
        trail.identity = identity;
      });
      // Both are on their way before the client learns of either; neither waits for the other.
      await Promise.all([noted, write(trail, disposition, reason, answer.status)]);
      return answer;
    });
  }

  /** Runs one step of a request to its end, whatever happens, and records what ends it early. */
  async function guarded<Result>(trail: Trail, step: () => Promise<Result>): Promise<Result | ProxyAnswer> {
    const work = trail.trace.run(() => step().catch((error: unknown) => end(trail, refusalOf(error, parts.onError))));
    running.add(work);
    try {
      return await work;
    } finally {
      running.delete(work);
    }
  }

  async function end(trail: Trail, refusal: ProxyRefusal): Promise<ProxyAnswer> {
    const answer = dialect.answerTo(refusal, trail.requestId);
    await write(trail, "REFUSED", refusal.code, answer.status);
    return answer;
  }

  async function write(trail: Trail, disposition: ProxyDisposition, reason: string, status: number): Promise<void> {
    const { key, requestId, head, identity } = trail;
    try {
      // Whoever has no key is nobody's: there is no workspace whose audit such a request belongs into.
      if (key === undefined) return;
      const { endpoint, account } = head ?? { endpoint: "", account: "" };
      await parts.record({ key, requestId, disposition, reason, endpoint, account, status, spend: identity?.spend });
    } catch (error) {
      trail.trace.unrecorded();
      parts.onError(error);
    } finally {
      trail.trace.end({ requestId, disposition, reason, status });
    }
  }

  async function keyOf(raw: RawHead): Promise<OpenedKey> {
    const token = dialect.tokenOf(raw);
    if (token !== undefined) return parts.open(token);
    throw refuse(
      401,
      "missing_credentials",
      "Send a vault key as a bearer token, or as the user name of Basic with an empty password.",
      "Authorization",
    );
  }

  return {
    begin,
    async refuse(raw, refusal) {
      const trail = trailOf(raw);
      return trail.trace.run(async () => {
        try {
          const { key } = await keyOf(raw);
          trail.key = key;
          trail.trace.owner(key);
        } catch {
          // Nobody's: what is wrong with its framing is all there is to say.
        }
        return end(trail, refusal);
      });
    },
    unreadable: (refusal) => dialect.answerTo(refusal, `hf_${parts.random()}`),
    async close(graceMs) {
      const begun = performance.now();
      await Promise.race([Promise.allSettled(running), setTimeout(graceMs, undefined, { ref: false })]);
      await parts.vendor.close(Math.max(0, graceMs - (performance.now() - begun)));
      await parts.recordRest().catch(parts.onError);
    },
  };
}

function refusalOf(error: unknown, onError: (error: unknown) => void): ProxyRefusal {
  if (error instanceof RefusedRequest) return error.refusal;
  onError(error);
  return {
    status: 503,
    code: "holdfast_unavailable",
    message: "Holdfast could not judge the request, and nothing was sent for it. Send it again.",
    retry: true,
  };
}

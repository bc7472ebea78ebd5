import { createHash } from "node:crypto";
import { setTimeout } from "node:timers/promises";
import { type HoldfastError, SpendAlreadyFailedError } from "@holdfast/sdk";
import { identify, type Identity } from "./identity.ts";
import { checkBody, checkHead, type ProxyKey } from "./policy-check.ts";
import { type ProxyRefusal, refuse, RefusedRequest } from "./refusal.ts";
import { type RequestKey, requestKeyOf } from "./request-key.ts";
import { refusalOfSdk } from "./sdk-refusal.ts";
import type {
  Carried,
  Flow,
  ProxiedVendor,
  ProxyAnswer,
  ProxyHandler,
  ProxyRequest,
  RawHead,
  RequestHead,
  WantedBody,
} from "./vendor.ts";

/** How a request ended, in the audit's words. */
export type ProxyDisposition =
  /** A write that moves no money, or a read: the vendor answered. */
  | "PASSED"
  /** The vendor was asked under a spend, and answered. */
  | "FORWARDED"
  /** Answered with what the vendor had answered before. */
  | "REPLAYED"
  /** The same, where only the key's policy knew that it was a repeat. */
  | "HEALED"
  /** Refused before a spend was asked for. */
  | "REFUSED"
  /** A rule of the key or of a cap said no. */
  | "DENIED"
  /** Nobody knows yet whether the vendor charged. */
  | "IN_DOUBT"
  /** Nothing was decided: a twin runs, or something is down. */
  | "DEFERRED";

/** One request for the audit. */
export interface ProxyEvent {
  readonly key: ProxyKey;
  readonly requestId: string;
  readonly disposition: ProxyDisposition;
  /** The refusal's code; empty without one. */
  readonly reason: string;
  /** Empty where the request was not read so far. */
  readonly endpoint: string;
  readonly account: string;
  readonly status: number;
  readonly identity: Identity | undefined;
}

/** An answer that was remembered, or why there is none. */
export type Remembered =
  /** Nobody asked before, or what was asked before has no answer yet. */
  | { readonly kind: "go"; readonly repeated: boolean; readonly retryAfterGeneration?: number }
  | { readonly kind: "answer"; readonly answer: ProxyAnswer }
  | { readonly kind: "other_body" };

/** What the proxy needs of the store. */
export interface ProxyMemory {
  recall(key: ProxyKey, request: RequestKey, identity: Identity, endpoint: string): Promise<Remembered>;
  /** Remembers the vendor's answer, where it is final. */
  remember(
    key: ProxyKey,
    request: RequestKey,
    identity: Identity,
    answer: ProxyAnswer,
    declined: boolean,
  ): Promise<void>;
  /** Nothing was sent: the next request may be another one. */
  forget(key: ProxyKey, request: RequestKey): Promise<void>;
  owns(key: ProxyKey, account: string, objectIds: readonly string[]): Promise<boolean>;
  own(key: ProxyKey, account: string, objectIds: readonly string[]): Promise<void>;
  /** The generation after which a spend may be tried again at once, because nothing was ever sent or refused for good. */
  retryAfter(key: ProxyKey, identity: Identity): Promise<number | undefined>;
}

export interface ProxyParts {
  readonly vendor: ProxiedVendor;
  /** @throws RefusedRequest on a token that opens nothing, or that is not a vault key's. */
  readonly authenticate: (token: string) => Promise<ProxyKey>;
  /** Why the key is dead or stopped now; undefined while it lives. */
  readonly deadness: (key: ProxyKey, customerId: string) => Promise<ProxyRefusal | undefined>;
  /** The vendor's own key, or undefined where no operator has stored one. */
  readonly secretOf: (key: ProxyKey) => Promise<string | undefined>;
  readonly memory: ProxyMemory;
  readonly record: (event: ProxyEvent) => Promise<void>;
  /** 32 random hex digits. */
  readonly random: () => string;
  readonly onError: (error: unknown) => void;
}

/** Serves one vendor: match, judge, then rebuild. */
export function createProxy(parts: ProxyParts): ProxyHandler {
  const { vendor } = parts;
  const { dialect } = vendor;
  const running = new Set<Promise<unknown>>();

  async function begin(raw: RawHead): Promise<ProxyAnswer | WantedBody> {
    const trail: Trail = { requestId: `hf_${parts.random()}`, key: undefined, head: undefined, identity: undefined };
    return guarded(trail, async () => {
      trail.key = await keyOf(parts, raw);
      const head = dialect.readHead(raw);
      trail.head = head;
      const flow = vendor.flowOf(head);
      const apiVersion = checkHead(head, flow, dialect.name, trail.key);
      const dead = await parts.deadness(trail.key, "");
      if (dead !== undefined) throw new RefusedRequest(dead);
      const opened: Opened = { ...trail, key: trail.key, head, flow, apiVersion };
      return {
        bytesMax: head.takesBody ? dialect.bodyBytesMax : 0,
        answer: (body, signal) => answerTo(opened, body, signal),
        refused: (refusal) => end(trail, refusal),
      };
    });
  }

  function answerTo(opened: Opened, body: Uint8Array, signal: AbortSignal): Promise<ProxyAnswer> {
    const trail: Trail = { ...opened };
    return guarded(trail, async () => {
      const request = dialect.readBody(opened.head, body);
      checkBody(request, opened.key);
      const { answer, disposition, reason } = await carryOut(parts, opened, trail, request, signal);
      await write(trail, disposition, reason, answer.status);
      return answer;
    });
  }

  /** Runs one step of a request to its end, whatever happens, and records what ends it early. */
  async function guarded<Result>(trail: Trail, step: () => Promise<Result>): Promise<Result | ProxyAnswer> {
    const work = step().catch((error: unknown) => end(trail, refusalOf(error, parts.onError)));
    running.add(work);
    try {
      return await work;
    } finally {
      running.delete(work);
    }
  }

  async function end(trail: Trail, refusal: ProxyRefusal): Promise<ProxyAnswer> {
    const answer = dialect.answerTo(refusal, trail.requestId);
    await write(trail, refusal.retry === true ? "DEFERRED" : "REFUSED", refusal.code, answer.status);
    return answer;
  }

  async function write(trail: Trail, disposition: ProxyDisposition, reason: string, status: number): Promise<void> {
    const { key, requestId, head, identity } = trail;
    // Whoever has no key is nobody's: such a request is counted and logged where it came in.
    if (key === undefined) return;
    const { endpoint, account } = head ?? { endpoint: "", account: "" };
    await parts
      .record({ key, requestId, disposition, reason, endpoint, account, status, identity })
      .catch(parts.onError);
  }

  return {
    begin,
    unreadable: (refusal) => dialect.answerTo(refusal, `hf_${parts.random()}`),
    async close(graceMs) {
      const begun = performance.now();
      await Promise.race([Promise.allSettled(running), setTimeout(graceMs, undefined, { ref: false })]);
      await vendor.close(Math.max(0, graceMs - (performance.now() - begun)));
    },
  };
}

/** What is known of a request so far. */
interface Trail {
  readonly requestId: string;
  key: ProxyKey | undefined;
  head: RequestHead | undefined;
  identity: Identity | undefined;
}

interface Opened extends Trail {
  readonly key: ProxyKey;
  readonly head: RequestHead;
  readonly flow: Flow;
  readonly apiVersion: string | undefined;
}

/** The credentials come first: also a request that is refused for its path is somebody's. */
async function keyOf(parts: ProxyParts, raw: RawHead): Promise<ProxyKey> {
  const token = parts.vendor.dialect.tokenOf(raw);
  if (token === undefined) {
    throw refuse(
      401,
      "missing_credentials",
      "Send a vault key as a bearer token, or as the user name of Basic with an empty password.",
      "Authorization",
    );
  }
  return parts.authenticate(token);
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

interface Ended {
  readonly answer: ProxyAnswer;
  readonly disposition: ProxyDisposition;
  readonly reason: string;
}

async function carryOut(
  parts: ProxyParts,
  opened: Opened,
  trail: Trail,
  request: ProxyRequest,
  signal: AbortSignal,
): Promise<Ended> {
  const { vendor, memory } = parts;
  const { key, flow } = opened;
  const spends = flow === "begin" || flow === "continue";
  const identity = spends ? identify(request, { ...key }, parts.random) : undefined;
  trail.identity = identity;
  if (flow === "begin" && identity === undefined) throw keyRequired(request.endpoint);
  await checkOwned(parts, key, request);
  const secret = await parts.secretOf(key);
  if (secret === undefined) throw noCredential(vendor.dialect.name);
  const requestKey = requestKeyOf(request, flow, identity, vendor.isPaymentMethod);
  const go: Go = { parts, opened, request, signal, secret, identity, requestKey };
  if (requestKey === undefined || identity === undefined) return concluded(go, await send(go, identity?.spend), false);

  const remembered = await memory.recall(key, requestKey, identity, request.endpoint);
  if (remembered.kind === "other_body") throw otherBody(identity);
  if (remembered.kind === "answer") return replayed(remembered.answer, identity, opened.requestId);
  const { retryAfterGeneration = identity.spend.retryAfterGeneration } = remembered;
  const spend = retryAfterGeneration === undefined ? identity.spend : { ...identity.spend, retryAfterGeneration };
  let carried = await send(go, spend);
  if (carried.refusal instanceof SpendAlreadyFailedError && spend.retryAfterGeneration === undefined) {
    const next = await memory.retryAfter(key, identity);
    if (next !== undefined) carried = await send(go, { ...spend, retryAfterGeneration: next });
  }
  return concluded(go, carried, remembered.repeated);
}

interface Go {
  readonly parts: ProxyParts;
  readonly opened: Opened;
  readonly request: ProxyRequest;
  readonly signal: AbortSignal;
  readonly secret: string;
  readonly identity: Identity | undefined;
  readonly requestKey: RequestKey | undefined;
}

interface Sent extends Carried {
  /** The key died between the grant and the request: why. */
  readonly dead: ProxyRefusal | undefined;
}

async function send(
  { parts, opened, request, signal, secret }: Go,
  spend: Identity["spend"] | undefined,
): Promise<Sent> {
  const { key, flow, apiVersion } = opened;
  let dead: ProxyRefusal | undefined;
  const carried = await parts.vendor.carry({
    request,
    flow,
    token: request.token ?? "",
    secret,
    apiVersion,
    proxy: key.proxy,
    spend,
    passedKey: passedKey(key, request),
    signal,
    beforeMoney: async () => {
      dead = await parts.deadness(key, spend?.customerId ?? "");
      if (dead !== undefined) throw new RefusedRequest(dead);
    },
  });
  return { ...carried, dead };
}

/** A key that no other vault key's client can hit, also on a shared account of the vendor. */
function passedKey({ workspace, vaultKeyId }: ProxyKey, { idempotencyKey }: ProxyRequest): string | undefined {
  if (idempotencyKey === undefined) return undefined;
  return createHash("sha256")
    .update(JSON.stringify([workspace, vaultKeyId, idempotencyKey]))
    .digest("hex");
}

/** What the client is told, and what is remembered of it. */
async function concluded(go: Go, sent: Sent, repeated: boolean): Promise<Ended> {
  const { parts, opened, request, identity, requestKey } = go;
  const { vendor, memory } = parts;
  const { key, requestId } = opened;
  if (sent.refusal !== undefined) return refused(go, sent, sent.refusal);
  const answer = rebuilt(sent, vendor, requestId, identity);
  const succeeded = sent.status >= 200 && sent.status < 300;
  if (succeeded) await memory.own(key, request.account, vendor.objectsOf(sent.body)).catch(parts.onError);
  if (identity === undefined) return { answer, disposition: "PASSED", reason: "" };
  if (requestKey !== undefined) {
    const declined = vendor.isDecline(sent.status);
    // What the vendor did not do may be asked for again in other words; what it did, and what it declined, may not.
    if (succeeded || declined) await memory.remember(key, requestKey, identity, answer, declined).catch(parts.onError);
    else await memory.forget(key, requestKey).catch(parts.onError);
  }
  const healed = repeated && identity.kind === "derived" && succeeded;
  return { answer, disposition: healed ? "HEALED" : "FORWARDED", reason: "" };
}

async function refused({ parts, opened, requestKey }: Go, sent: Sent, error: HoldfastError): Promise<Ended> {
  const { refusal, nothingSent } =
    sent.dead === undefined ? refusalOfSdk(error) : { refusal: sent.dead, nothingSent: true };
  if (nothingSent && requestKey !== undefined) await parts.memory.forget(opened.key, requestKey).catch(parts.onError);
  const disposition =
    refusal.code === "spend_in_doubt"
      ? "IN_DOUBT"
      : refusal.retry === true
        ? "DEFERRED"
        : refusal.status === 403 || refusal.status === 401
          ? "DENIED"
          : "REFUSED";
  return {
    answer: parts.vendor.dialect.answerTo(refusal, opened.requestId),
    disposition,
    reason: refusal.code,
  };
}

function replayed(answer: ProxyAnswer, identity: Identity, requestId: string): Ended {
  const { "request-id": original, ...headers } = answer.headers;
  return {
    answer: {
      ...answer,
      headers: {
        ...headers,
        "request-id": requestId,
        ...(original === undefined ? {} : { "original-request": original }),
        "idempotent-replayed": "true",
      },
    },
    disposition: identity.kind === "derived" ? "HEALED" : "REPLAYED",
    reason: "",
  };
}

const headerValue = /^[\x20-\x7e]{1,256}$/;

/** The vendor's answer in our own framing, with those of its headers that a client may see. */
function rebuilt(sent: Carried, vendor: ProxiedVendor, requestId: string, identity: Identity | undefined): ProxyAnswer {
  const headers: Record<string, string> = { "request-id": requestId };
  for (const [name, value] of Object.entries(sent.headers)) {
    if (vendor.answerHeaders.has(name) && headerValue.test(value)) headers[name] = value;
  }
  headers["content-type"] = "application/json";
  if (identity?.kind === "keyless") headers["holdfast-idempotency"] = "none";
  return { status: sent.status, headers, body: sent.body };
}

async function checkOwned({ vendor, memory }: ProxyParts, key: ProxyKey, request: ProxyRequest): Promise<void> {
  if (key.proxy.objectAccess === "ANY") return;
  const named = vendor.objectsIn(request);
  if (named.length === 0 || (await memory.owns(key, request.account, named))) return;
  // The same words as for an object that does not exist: whether it does is nobody else's business.
  throw refuse(
    404,
    "resource_missing",
    "The vault key has made no such object. Objects of others can be named with object_access ANY only.",
  );
}

function keyRequired(endpoint: string): RefusedRequest {
  return refuse(
    400,
    "idempotency_key_required",
    `${endpoint} moves money and has to say which spend it is: send an Idempotency-Key header, Holdfast-Spend: ` +
      "customer=…; period=…; purpose=…, or the same in the metadata.",
    "Idempotency-Key",
  );
}

function otherBody(identity: Identity): RefusedRequest {
  return refuse(
    400,
    "idempotency_error",
    identity.kind === "client_key"
      ? "The Idempotency-Key was used before for another request. Send the same request, or another key."
      : "The spend was asked for before with other parameters. Send the same ones, or name another spend.",
  );
}

function noCredential(vendor: string): RefusedRequest {
  return refuse(
    403,
    "vendor_credential_missing",
    `No key of ${vendor} is stored for this workspace. An operator stores one with "holdfast credentials set".`,
  );
}

import { createHash } from "node:crypto";
import { type HoldfastError, SpendAlreadyFailedError, SpendInDoubtError, type SpendOption } from "@holdfast/sdk";
import type { ProxyDisposition } from "../store/proxy.ts";
import { inDoubt, keyRequired, noCredential, otherBody, otherCredential, stopped } from "./carry-refusal.ts";
import { identify, type Identity } from "./identity.ts";
import { checkBody, type ProxyKey } from "./policy-check.ts";
import { type ProxyRefusal, refuse, RefusedRequest } from "./refusal.ts";
import { type RequestKey, requestKeyOf } from "./request-key.ts";
import { refusalOfSdk } from "./sdk-refusal.ts";
import type { Carried, Flow, ProxiedVendor, ProxyAnswer, ProxyRequest } from "./vendor.ts";

/** What is known of an earlier request that this one repeats. */
export type Remembered =
  /** Nobody asked before, or what was asked before has no last word yet. */
  | {
      readonly kind: "go";
      readonly repeated: boolean;
      /** It was answered, and the answer is not kept. */
      readonly answered?: boolean;
      /** It goes on with an object that was declined, and may bring another payment method. */
      readonly otherMethod?: boolean;
      readonly retryAfterGeneration?: number | undefined;
    }
  | { readonly kind: "answer"; readonly answer: ProxyAnswer }
  | { readonly kind: "other_body" }
  /** It may have been sent before, and the vendor may have forgotten its key since. */
  | { readonly kind: "in_doubt" };

/** One request that a repeat may be told the answer of. */
export interface RequestClaim {
  /** Claims the request, or reads what became of it; may be asked again. */
  recall(): Promise<Remembered>;
  /**
   * Whether this request is still the one that may be sent, or why not: a claim that nobody seemed to follow is given to
   * others, and what only the vendor's memory protects is sent as long as that surely lasts.
   */
  mayGo(): Promise<Remembered["kind"]>;
  /**
   * The spend was tried before and did not charge: what became of that try, or after which generation the next one is.
   * Undefined where a person has to say that there is to be one.
   */
  recallFailed(): Promise<Remembered | undefined>;
  /** Remembers the vendor's answer, where it is the last word. */
  remember(answer: ProxyAnswer, declined: boolean): Promise<void>;
  /**
   * Nothing was sent, or nothing came of it: the next request may be another one. Not where only the vendor's memory
   * protects the request and a twin of it may have been sent.
   */
  forget(): Promise<void>;
}

export interface AskedRequest {
  readonly endpoint: string;
  /**
   * Set where nothing but the vendor's memory of the request's key keeps a repeat from doing it twice: for how long that
   * surely lasts, in milliseconds.
   */
  readonly keyRememberedForMs: number | undefined;
  /** See `ProxiedVendor`. */
  readonly declinedState: string;
}

/** What the proxy needs of the store. */
export interface ProxyMemory {
  claim(key: ProxyKey, request: RequestKey, identity: Identity, asked: AskedRequest): RequestClaim;
  owns(key: ProxyKey, account: string, objectIds: readonly string[]): Promise<boolean>;
  own(key: ProxyKey, account: string, objectIds: readonly string[]): Promise<void>;
}

/** What may have changed since the head was read. */
export interface LastLook {
  /** Why the key is dead or stopped at this moment; undefined while it lives. */
  readonly dead: ProxyRefusal | undefined;
  /** The vendor's own key, or undefined where no operator has stored one. */
  readonly secret: string | undefined;
}

export interface CarryParts {
  readonly vendor: ProxiedVendor;
  /** One look, right before the bytes. `customerId` is empty where nobody is charged. */
  readonly lastLook: (key: ProxyKey, customerId: string) => Promise<LastLook>;
  readonly memory: ProxyMemory;
  /** 32 random hex digits. */
  readonly random: () => string;
  readonly onError: (error: unknown) => void;
}

/** A request whose head was accepted. */
export interface Opened {
  readonly requestId: string;
  readonly key: ProxyKey;
  /** The vendor's own key, or undefined where no operator has stored one. */
  readonly secret: string | undefined;
  readonly flow: Flow;
  readonly apiVersion: string | undefined;
}

export interface Ended {
  readonly answer: ProxyAnswer;
  readonly disposition: ProxyDisposition;
  /** The refusal's code; empty without one. */
  readonly reason: string;
  /** Resolves when what is remembered of the answer is written down, or cannot be. Never rejects. */
  readonly noted: Promise<unknown>;
}

const nothingToNote = Promise.resolve();

interface Going {
  readonly parts: CarryParts;
  readonly opened: Opened;
  readonly request: ProxyRequest;
  readonly secret: string;
  readonly identity: Identity | undefined;
  readonly claim: RequestClaim | undefined;
}

/**
 * Carries a whole request to its answer: which spend it is, whether it was answered before, the vendor, and what is
 * remembered of that. `identified` is told the spend as soon as it is known.
 *
 * @throws RefusedRequest where nothing was asked for.
 */
export async function carryOut(
  parts: CarryParts,
  opened: Opened,
  request: ProxyRequest,
  identified: (identity: Identity) => void,
): Promise<Ended> {
  const { vendor, memory } = parts;
  const { key } = opened;
  const flow = request.method !== "GET" && vendor.isHarmless(request) ? "pass" : opened.flow;
  checkBody(request, flow, key);
  const spends = flow === "begin" || flow === "continue" || flow === "edit";
  const identity = spends ? identify(request, key, parts.random) : undefined;
  if (identity !== undefined) identified(identity);
  if (flow === "begin" && identity === undefined) throw keyRequired(request.endpoint);
  await checkOwned(parts, key, request);
  // The body may have taken its time, and nobody looks again before a write that needs no grant is sent.
  const isLookedAt = spends || request.method === "GET";
  const { dead, secret } = isLookedAt ? { dead: undefined, secret: opened.secret } : await parts.lastLook(key, "");
  if (dead !== undefined) throw new RefusedRequest(dead);
  if (secret === undefined) throw new RefusedRequest(noCredential(vendor.dialect.name));
  const requestKey = requestKeyOf(request, flow, identity, vendor.isPaymentMethod);
  const going: Going = { parts, opened: { ...opened, flow }, request, secret, identity, claim: undefined };
  if (requestKey === undefined || identity === undefined) {
    return conclude(going, await send(going, identity?.spend), false);
  }
  const claim = memory.claim(key, requestKey, identity, {
    endpoint: request.endpoint,
    keyRememberedForMs: flow === "edit" ? vendor.keysRememberedForMs : undefined,
    declinedState: vendor.declinedState,
  });
  return carryClaimed({ ...going, identity, claim });
}

async function carryClaimed(going: Going & { readonly identity: Identity; readonly claim: RequestClaim }) {
  const { identity, claim, opened } = going;
  let remembered: Remembered | undefined = await claim.recall();
  let spend = identity.spend;
  // A spend that failed is looked at once more: its twin may have been told the answer meanwhile.
  for (let tries = 1; ; tries += 1) {
    if (remembered.kind === "other_body") throw otherBody(identity);
    if (remembered.kind === "answer") return replayed(remembered.answer, identity, opened.requestId);
    if (remembered.kind === "in_doubt") return told(going, inDoubt);
    // What goes on with an object may go on with it twice: the vendor forgets keys.
    if (remembered.answered === true && opened.flow !== "begin") return readAgain(going);
    const { retryAfterGeneration = spend.retryAfterGeneration } = remembered;
    if (retryAfterGeneration !== undefined) spend = { ...spend, retryAfterGeneration };
    const sent = await send(going, spend, remembered.otherMethod !== true);
    const failed = sent.refusal instanceof SpendAlreadyFailedError && spend.retryAfterGeneration === undefined;
    const next: Remembered | undefined = failed && tries < triesMax ? await claim.recallFailed() : undefined;
    if (next === undefined) return conclude(going, sent, remembered.repeated);
    remembered = next;
  }
}

const triesMax = 2;

/** The object as it is now, where the answer to a step of it is no longer kept. */
async function readAgain(going: Going): Promise<Ended> {
  const request = going.parts.vendor.readOf(going.request);
  const read: Going = { ...going, request, opened: { ...going.opened, flow: "retrieve" }, claim: undefined };
  return { ...(await conclude(read, await send(read, undefined), true)), disposition: "REPLAYED" };
}

interface Sent extends Carried {
  /** The key died between the grant and the request: why. */
  readonly dead: ProxyRefusal | undefined;
}

async function send(going: Going, spend: SpendOption | undefined, sameBodyRequired = true): Promise<Sent> {
  const { parts, opened, request, secret, identity, claim } = going;
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
    sameBodyRequired,
    passedKey: passedKey(key, request),
    beforeMoney: async () => {
      const now = await parts.lastLook(key, spend?.customerId ?? "");
      dead = now.dead ?? otherCredential(secret, now.secret, parts.vendor.dialect.name);
      if (dead === undefined && identity !== undefined) dead = stopped(identity, await claim?.mayGo());
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
async function conclude(going: Going, sent: Sent, repeated: boolean): Promise<Ended> {
  const { parts, opened, request, identity } = going;
  const { vendor, memory } = parts;
  if (sent.refusal !== undefined) return refused(going, sent, sent.refusal);
  const answer = rebuilt(sent, vendor, opened.requestId, identity);
  const succeeded = sent.status >= 200 && sent.status < 300;
  const made = succeeded || vendor.isDecline(sent.status);
  const owned = made ? memory.own(opened.key, request.account, madeBy(going, sent.body)) : nothingToNote;
  // The vendor has answered: that it could not be written down is no reason to keep the answer from the client.
  const noted = Promise.all(
    [owned, rememberedBy(going, { answer, succeeded })].map((work) => work.catch(parts.onError)),
  );
  if (identity === undefined) return { answer, disposition: "PASSED", reason: "", noted };
  const healed = repeated && identity.kind === "derived" && succeeded;
  return { answer, disposition: healed ? "HEALED" : "FORWARDED", reason: "", noted };
}

/** What the vendor did not do may be asked for again in other words; what it did, and what it declined, may not. */
async function rememberedBy(
  { parts, claim, opened }: Going,
  { answer, succeeded }: { readonly answer: ProxyAnswer; readonly succeeded: boolean },
): Promise<void> {
  const declined = parts.vendor.isDecline(answer.status);
  if (succeeded || declined) return claim?.remember(answer, declined);
  // Without a grant nobody but the vendor knows what became of it, and it has not said.
  const unknown = opened.flow === "edit" && (answer.status < 400 || answer.status > 499 || answer.status === 409);
  if (!unknown) await claim?.forget();
}

/** A key that may name objects of others makes only those its own that it surely has made. */
function madeBy({ parts, opened, request }: Going, body: string): readonly string[] {
  const ids = parts.vendor.objectsOf(request, body);
  if (opened.flow === "list") return [];
  if (opened.key.proxy.objectAccess === "OWN") return ids;
  return request.method !== "GET" && request.ids.length === 0 ? ids.slice(0, 1) : [];
}

async function refused(going: Going, sent: Sent, error: HoldfastError): Promise<Ended> {
  const { parts, claim } = going;
  // What is in doubt stays so, whatever has become of the key since.
  const { dead } = error instanceof SpendInDoubtError ? { dead: undefined } : sent;
  const { refusal, nothingSent } =
    dead === undefined ? refusalOfSdk(error) : { refusal: dead, nothingSent: dead.code !== inDoubt.code };
  if (nothingSent) await claim?.forget().catch(parts.onError);
  return told(going, refusal);
}

function told({ parts, opened }: Going, refusal: ProxyRefusal): Ended {
  const answer = parts.vendor.dialect.answerTo(refusal, opened.requestId);
  return { answer, disposition: dispositionOf(refusal), reason: refusal.code, noted: nothingToNote };
}

function dispositionOf({ code, status }: ProxyRefusal): ProxyDisposition {
  if (code === "spend_in_doubt") return "IN_DOUBT";
  return status === 401 || status === 403 ? "DENIED" : "REFUSED";
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
    noted: nothingToNote,
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

async function checkOwned({ vendor, memory }: CarryParts, key: ProxyKey, request: ProxyRequest): Promise<void> {
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

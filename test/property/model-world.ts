import { createHash } from "node:crypto";
import type {
  Answer,
  Authorize,
  CreateCap,
  Increase,
  Direction,
  Evidence,
  Fence,
  Finding,
  Identity,
  Look,
  Settlement,
  State,
  Void,
} from "./command.ts";
import type { Asked as AskedOfKey, Cap, Counter, VaultKey } from "./model-cap.ts";
import type { Switch } from "./model-switch.ts";
import type { Leases } from "./model-lease.ts";
import type { AccountSpan } from "./model-look.ts";

/** What one generation takes from one counter. */
export interface Hold {
  counter: Counter;
  amount: bigint;
  /** What refunds gave back. */
  returned: bigint;
  /** The amount is a number of spends. */
  readonly counts: boolean;
}

export interface Asked {
  readonly finding: Finding;
  readonly firstTime: number;
  readonly lastTime: number;
  readonly count: number;
  /** When the first look began that counts, if nothing else than ABSENT was found and nothing else happened since. */
  readonly absentSince: number | null;
}

/** One generation of one spend. */
export interface Generation extends Identity {
  readonly generation: number;
  readonly key: string;
  readonly vendor: string;
  readonly vendorAccount: string;
  readonly endpoint: string;
  readonly direction: Direction;
  readonly refundOf: string;
  readonly currency: string;
  readonly amount: bigint;
  readonly settlement: Settlement;
  readonly resendSafeForMs: number | null;
  readonly fingerprint: string;
  readonly credential: string;
  readonly grantTime: number;
  readonly holds: readonly Hold[];
  state: State;
  /** What is held: the amount, or more after an increase. */
  held: bigint;
  attempt: string;
  /** What the holding attempt was told last. */
  told: boolean;
  holdExpireTime: number;
  /** The latest that any attempt was told. */
  holdExpireMax: number;
  /** Set while IN_DOUBT. */
  inDoubtSince: number | null;
  /** What asking the vendor has found since the last attempt. */
  asked: Asked | null;
  /** A look counts only if it began later: something else than ABSENT was found or told then. */
  looksAfter: number | null;
  bound: boolean;
  reference: string | null;
  vendorState: string;
  followUntil: number | null;
  committed: bigint | null;
  /** What later refunds gave back. */
  refunded: bigint;
  evidence: Evidence | null;
}

/**
 * The decisions that guard money, one function each, so that a broken system is the model with one of them
 * replaced.
 */
export interface Rules {
  /** Why the key's policy or a kill switch denies a request, null if neither does. */
  denies(world: World, key: VaultKey, asked: AskedOfKey): string | null;
  /** Whether an amount still fits a counter. */
  fits(cap: Cap, counter: Counter, amount: bigint): boolean;
  /** The window in which a cap counts what is granted now. */
  label(world: World, rule: CreateCap, period: string): string;
  /** Whether a cap counts what is granted at an instant, whoever asks. */
  counts(cap: Cap, now: number): boolean;
  /** Takes the amount from every cap, or from none and says which one denied. */
  reserve(world: World, request: Authorize, caps: readonly Cap[]): readonly Hold[] | Answer;
  /** The fields in which a repeat differs from the generation that is committed or lives. */
  differences(live: Generation, request: Authorize): readonly string[];
  /** In what a request that is to be sent again differs from what was sent. */
  drift(live: Generation, request: Authorize): readonly string[];
  fenceHolds(leases: Leases, fence: Fence, now: number): boolean;
  /** What a request may do with a generation whose hold is not running any more. */
  takeover(live: Generation, request: Authorize, now: number): "CONTINUE" | "START_ANEW" | "IN_DOUBT";
  /** Whether who asks for more holds the spend, or changes the bound object without an attempt. */
  mayRaise(generation: Generation, request: Increase): boolean;
  /** Takes what an increase adds from every counter of the generation, or from none and says what denied. */
  raise(world: World, generation: Generation, total: bigint): Answer | null;
  /** Whether a request goes on with the bound object that it names. */
  continues(live: Generation, request: Authorize, now: number): boolean;
  /** Whether a voided generation may be followed by the next one. */
  mayFollow(voided: Generation, request: Authorize): boolean;
  /** Whether the evidence proves that no charge exists. */
  proves(generation: Generation, request: Void): boolean;
  /** Whether a look that shows nothing says anything. */
  lookCounts(generation: Generation, look: Look, now: number): boolean;
  /** Whether the vendor's showing nothing proves that nothing exists. */
  provesAbsence(generation: Generation, look: Look, now: number): boolean;
  /** Whether it may be at another account than the one that was looked at. */
  maybeElsewhere(world: World, generation: Generation, look: Look): boolean;
  /** Whether an attempt is in the middle of its call: nobody else says what came of it. */
  isMidCall(generation: Generation, now: number): boolean;
  /** Whether a vendor's object is bound to another spend that is open, or has settled one. */
  belongsElsewhere(world: World, generation: Generation, reference: string): boolean;
  /** Ends the hold that ran out. */
  expire(generation: Generation, now: number): void;
  toDoubt(generation: Generation, now: number): void;
  /** Whoever does not know the outcome has sent. */
  reportSent(generation: Generation): void;
  /** Whether the attempt that holds a running hold may be told again to call the vendor. */
  mayRepeat(live: Generation, request: Authorize, now: number): boolean;
  /** Settles the holds of a committed generation. */
  settle(world: World, generation: Generation, amount: bigint): void;
  /** What a counter counts already of a charge that no state allowed. */
  counted(world: World, charge: string, counter: Counter): bigint;
  /** Records a committed refund against the charge that it names. */
  adjust(world: World, refund: Generation, amount: bigint): void;
  /** Answers the same attempt while its hold runs. */
  repeat(world: World, generation: Generation): void;
}

export interface World {
  readonly rules: Rules;
  now: number;
  /** What the clock showed before it was last set. */
  before: number;
  readonly keys: Map<string, VaultKey>;
  /** The last one of each target. */
  readonly switches: Map<string, Switch>;
  readonly caps: Map<string, Cap>;
  readonly counters: Map<string, Counter>;
  readonly leases: Leases;
  /** Generations of each spend, oldest first. */
  readonly spends: Map<string, Generation[]>;
  /** Which generation a vendor's charge settles. */
  readonly charges: Map<string, Generation>;
  /** By vendor and vault key. */
  readonly accounts: Map<string, readonly AccountSpan[]>;
  /** Which spends a charge was told of after they had been void. */
  readonly chargedVoids: Map<string, Set<string>>;
  /** What counters count of charges that no state allowed, and of no spend that they settle. */
  readonly contradictions: Map<string, Map<Counter, bigint>>;
}

export function createWorld(rules: Rules, now: number): World {
  return {
    rules,
    now,
    before: now,
    keys: new Map(),
    switches: new Map(),
    caps: new Map(),
    counters: new Map(),
    leases: new Map(),
    spends: new Map(),
    charges: new Map(),
    accounts: new Map(),
    chargedVoids: new Map(),
    contradictions: new Map(),
  };
}

const digest = (text: string): string => createHash("sha256").update(text).digest("hex").slice(0, 32);
const identityText = (spend: Identity): string => `${spend.customer}:${spend.period}:${spend.purpose}`;

export const spendKey = (spend: Identity): string => digest(spend.period).slice(0, 4) + digest(identityText(spend));

export function idempotencyKey(spend: Identity, generation: number): string {
  return digest(generation === 1 ? identityText(spend) : `${identityText(spend)}\ng${generation}`);
}

export function authorizationName(spend: Identity, generation: number): string {
  return `authorizations/${spendKey(spend)}-${generation}`;
}

/** A vendor's id names one object, whichever account it was reached through. */
export const chargeName = ({ vendor }: Generation, reference: string): string => `${vendor}|${reference}`;

export function latest(world: World, spend: Identity): Generation | undefined {
  return world.spends.get(spendKey(spend))?.at(-1);
}

export function findGeneration(world: World, spend: Identity, generation: number): Generation | undefined {
  return world.spends.get(spendKey(spend))?.[generation - 1];
}

export const isLive = (generation: Generation): boolean =>
  generation.state === "HELD" || generation.state === "IN_DOUBT";

/** A one-call object in a known state is not being called about: it is followed, or in doubt. */
export const holdRuns = (generation: Generation, now: number): boolean =>
  generation.state === "HELD" &&
  now < generation.holdExpireTime &&
  (generation.settlement === "TWO_STEP" || generation.vendorState === "");

/** The vendor object is in a known, unfinished state: neither expired nor in doubt. */
export const isFollowed = (generation: Generation, now: number): boolean =>
  generation.vendorState !== "" && generation.followUntil !== null && now < generation.followUntil;

/** The figures by which an authorization is shown. */
export function shown(generation: Generation): Answer {
  return {
    error: null,
    name: authorizationName(generation, generation.generation),
    state: generation.state,
    generation: generation.generation,
    idempotencyKey: idempotencyKey(generation, generation.generation),
    vaultKey: generation.key,
    amount: generation.amount,
    heldAmount: generation.held,
    grantTime: generation.grantTime,
    holdExpireTime: generation.holdExpireTime,
    reference: generation.reference,
    vendorState: generation.vendorState,
    followUntil: generation.followUntil,
    inDoubtTime: generation.inDoubtSince,
    finding: generation.asked?.finding ?? null,
    askedTime: generation.asked?.lastTime ?? null,
    askedCount: generation.asked?.count ?? null,
    absentSince: generation.asked?.absentSince ?? null,
    committedAmount: generation.committed,
    refundedAmount: generation.committed === null ? null : generation.refunded,
    direction: generation.direction,
    refundOf: generation.refundOf === "" ? null : generation.refundOf,
    evidence: generation.evidence,
  };
}

/** A generation that is not waiting for its vendor object any more. */
export function unfollow(generation: Generation): void {
  generation.vendorState = "";
  generation.followUntil = null;
}

/**
 * When a hold ends to be an attempt's or followed. What has run out is in doubt since then, whoever noticed when; a
 * two-step that was never bound is not in doubt then but void.
 */
export function doubtSince(generation: Generation, now: number): number {
  if (generation.inDoubtSince !== null) return generation.inDoubtSince;
  if (generation.settlement === "TWO_STEP" && !generation.bound) return now;
  const { vendorState, followUntil, holdExpireTime, settlement } = generation;
  if (vendorState === "" || followUntil === null) return Math.min(now, holdExpireTime);
  return Math.min(now, settlement === "TWO_STEP" ? Math.max(holdExpireTime, followUntil) : followUntil);
}

/** What the vendor has shown is no longer absence. */
export function forgetAbsence(generation: Generation, now: number): void {
  generation.looksAfter = now;
  if (generation.asked !== null) generation.asked = { ...generation.asked, absentSince: null };
}

export function voidWith(generation: Generation, evidence: Evidence): void {
  unfollow(generation);
  generation.inDoubtSince = null;
  generation.state = "VOIDED";
  generation.evidence = evidence;
  for (const hold of generation.holds) hold.counter.held -= hold.amount;
}

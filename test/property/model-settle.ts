import type { Answer, Bind, Commit, Identity, Increase, Look, ReportUnknown, Void } from "./command.ts";
import { type Counter, denial } from "./model-cap.ts";
import {
  chargeName,
  findGeneration,
  forgetAbsence,
  isLive,
  shown,
  spendKey,
  unfollow,
  voidWith,
  type Generation,
  type World,
} from "./model-world.ts";

const weekMs = 7 * 24 * 3_600_000;

export interface Settling {
  readonly key: string | null;
  readonly spend: Identity;
  readonly generation: number;
}

/** The generation that a call settles, or why the caller may not. A null key is the operator. */
export function settled(world: World, request: Settling): Generation | Answer {
  const generation = findGeneration(world, request.spend, request.generation);
  if (generation === undefined) return { error: "NOT_FOUND" };
  return request.key === null || request.key === generation.key ? generation : { error: "OTHER_VAULT_KEY" };
}

export function isAnswer(found: Generation | Answer): found is Answer {
  return "error" in found;
}

export function commit(world: World, request: Commit): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (found.state === "VOIDED") {
    const voids = world.chargedVoids.get(chargeName(found, request.reference)) ?? new Set();
    world.chargedVoids.set(chargeName(found, request.reference), voids.add(spendKey(found)));
    return contradict(world, found, request, "ALREADY_VOIDED", 1n);
  }
  if (found.state === "COMMITTED") return recommit(world, found, request);
  const charge = chargeName(found, request.reference);
  const settledBy = world.charges.get(charge);
  if (settledBy !== undefined && settledBy !== found) {
    // One charge settles one spend, and it was counted there.
    return contradict(world, found, request, "REFERENCE_ALREADY_COMMITTED", 0n);
  }
  if (found.bound && found.reference !== request.reference) {
    return contradict(world, found, request, "COMMIT_CONTRADICTS", 1n);
  }
  if (!found.bound && world.rules.belongsElsewhere(world, found, request.reference)) {
    return contradict(world, found, request, "REFERENCE_BOUND_ELSEWHERE", 0n);
  }
  unfollow(found);
  world.charges.set(charge, found);
  found.state = "COMMITTED";
  found.inDoubtSince = null;
  found.reference = request.reference;
  found.committed = request.amount;
  world.rules.settle(world, found, request.amount);
  countOnce(world, charge, found, request.amount);
  world.rules.adjust(world, found, request.amount);
  return committed(found);
}

function committed(generation: Generation): Answer {
  return { ...shown(generation), overCommitted: (generation.committed ?? 0n) > generation.held };
}

function recommit(world: World, found: Generation, request: Commit): Answer {
  const counted = found.committed ?? 0n;
  if (found.reference !== request.reference) {
    return contradict(world, found, request, "COMMIT_CONTRADICTS", 1n);
  }
  if (counted === request.amount) return committed(found);
  return contradict(world, found, request, "COMMIT_CONTRADICTS", 0n);
}

/**
 * Keeps a second truth: the charge changes no state, but every counter of the generation counts it as committed. One
 * that was told before, or that settles a spend, counts only with what it is more than there; one that is bound to
 * another spend, with what it is more than this one's own hold. `spends`: how many it is.
 */
function contradict(world: World, generation: Generation, request: Commit, error: string, spends: bigint): Answer {
  const charge = chargeName(generation, request.reference);
  const settles = world.charges.get(charge);
  for (const { counter, counts, amount } of generation.holds) {
    const told = counts ? spends : request.amount;
    const before = world.rules.counted(world, charge, counter);
    const covered =
      error === "REFERENCE_BOUND_ELSEWHERE" ? amount : settledAmount(settles, generation.currency, counts);
    const more = told - before - covered;
    if (more > 0n) countLoose(world, charge, counter, more);
  }
  return { error };
}

function settledAmount(settles: Generation | undefined, currency: string, counts: boolean): bigint {
  if (settles === undefined) return 0n;
  if (counts) return 1n;
  return settles.currency === currency ? (settles.committed ?? 0n) : 0n;
}

function countLoose(world: World, charge: string, counter: Counter, more: bigint): void {
  const counted = world.contradictions.get(charge) ?? new Map<Counter, bigint>();
  world.contradictions.set(charge, counted.set(counter, (counted.get(counter) ?? 0n) + more));
  counter.committed += more;
}

/** The charge was told before, as a contradiction: from now on it counts with the spend that it settles. */
function countOnce(world: World, charge: string, generation: Generation, amount: bigint): void {
  for (const { counter, counts } of generation.holds) {
    const counted = world.contradictions.get(charge)?.get(counter) ?? 0n;
    const settled = counts ? 1n : amount;
    if (counted > 0n) countLoose(world, charge, counter, counted < settled ? -counted : -settled);
  }
}

export function voidSpend(world: World, request: Void): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (found.state === "VOIDED") return shown(found);
  if (found.state === "COMMITTED") return { error: "ALREADY_COMMITTED" };
  if (request.evidence === "ABSENT_AFTER_QUARANTINE") return voidAbsent(world, found, request.look);
  if (request.evidence === "OPERATOR" && request.key === null && world.rules.isMidCall(found, world.now)) {
    return { error: "STATE_NOT_ALLOWED" };
  }
  // A tombstone is a fact about the bound object, whoever has seen it.
  const tombstone = request.evidence === "TOMBSTONE" && found.bound && found.reference === request.reference;
  if (request.key !== null && found.attempt !== request.attempt && !tombstone) return { error: "ATTEMPT_SUPERSEDED" };
  if (world.rules.proves(found, request)) {
    voidWith(found, request.evidence);
    return shown(found);
  }
  world.rules.toDoubt(found, world.now);
  forgetAbsence(found, world.now);
  return { error: "EVIDENCE_INSUFFICIENT" };
}

/** Whoever has looked; what is not proven yet changes nothing, for it is looked at again. */
function voidAbsent(world: World, found: Generation, look: Look | undefined): Answer {
  if (look === undefined || !world.rules.provesAbsence(found, look, world.now)) {
    return { error: "EVIDENCE_INSUFFICIENT" };
  }
  if (world.rules.maybeElsewhere(world, found, look)) return { error: "EVIDENCE_INSUFFICIENT" };
  voidWith(found, "ABSENT_AFTER_QUARANTINE");
  return shown(found);
}

export function reportUnknown(world: World, request: ReportUnknown): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (!isLive(found)) return { error: terminalReason(found) };
  if (found.attempt !== request.attempt) return { error: "ATTEMPT_SUPERSEDED" };
  if (found.state === "HELD" || !found.told) forgetAbsence(found, world.now);
  if (found.state === "HELD") world.rules.toDoubt(found, world.now);
  world.rules.reportSent(found);
  return shown(found);
}

/** An object belongs to one spend, also one that was charged for it after it had been void. */
export function mayNotBind(world: World, found: Generation, reference: string): boolean {
  if (found.bound) return false;
  const charged = [...(world.chargedVoids.get(chargeName(found, reference)) ?? [])];
  return charged.some((spend) => spend !== spendKey(found)) || world.rules.belongsElsewhere(world, found, reference);
}

export function bind(world: World, request: Bind): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (!isLive(found)) return { error: terminalReason(found) };
  if (found.settlement !== "TWO_STEP" && request.vendorState === "") return { error: "STATE_NOT_ALLOWED" };
  if (found.bound && found.reference !== request.reference) {
    // Also for a superseded attempt: it has to cancel its own object.
    return { error: "ALREADY_BOUND", winner: found.reference };
  }
  if (found.attempt !== request.attempt) return { error: "ATTEMPT_SUPERSEDED" };
  if (mayNotBind(world, found, request.reference)) return { error: "REFERENCE_BOUND_ELSEWHERE" };
  // A known vendor state is not a doubt.
  if (request.vendorState !== "") {
    found.state = "HELD";
    found.inDoubtSince = null;
  }
  found.asked = null;
  found.bound = true;
  found.reference = request.reference;
  found.vendorState = request.vendorState;
  found.followUntil = request.vendorState === "" ? null : world.now + (request.followForMs ?? weekMs);
  return shown(found);
}

/** More than is held is asked of the key and of every cap; what is held already was granted. */
export function increase(world: World, request: Increase): Answer {
  const found = settled(world, request);
  if (isAnswer(found)) return found;
  if (!isLive(found)) return { error: terminalReason(found) };
  if (!world.rules.mayRaise(found, request)) return { error: "ATTEMPT_SUPERSEDED" };
  if (found.currency !== request.currency) return { error: "SPEND_MISMATCH" };
  if (request.amount > found.held) {
    const key = world.keys.get(found.key);
    const rule =
      (key === undefined
        ? "VAULT_KEY_REVOKED"
        : world.rules.denies(world, key, { ...found, amount: request.amount })) ?? staleFence(world, request);
    const denied = rule === null ? world.rules.raise(world, found, request.amount) : denial(rule);
    if (denied !== null) return { ...shown(found), ...denied, name: shown(found)["name"] ?? null };
  }
  return { ...shown(found), disposition: "GRANTED" };
}

function staleFence(world: World, { fence }: Increase): string | null {
  return fence === null || world.rules.fenceHolds(world.leases, fence, world.now) ? null : "FENCING_TOKEN";
}

export function terminalReason(generation: Generation): string {
  return generation.state === "COMMITTED" ? "ALREADY_COMMITTED" : "ALREADY_VOIDED";
}

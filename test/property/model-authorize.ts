import type { Answer, Authorize } from "./command.ts";
import { denial, draws, matchingCaps } from "./model-cap.ts";
import {
  holdRuns,
  isFollowed,
  isLive,
  latest,
  shown,
  spendKey,
  unfollow,
  voidWith,
  type Generation,
  type Hold,
  type World,
} from "./model-world.ts";

/** Judges one request and writes what it decides, in the order: key, spend, fence, live generation, caps. */
export function authorize(world: World, request: Authorize): Answer {
  const key = world.keys.get(request.key);
  if (key === undefined) return { error: "INVALID_TOKEN" };
  const rule = world.rules.denies(world, key, request);
  if (rule !== null) return denial(rule);
  const last = latest(world, request);
  if (last?.state === "COMMITTED") return alreadyCommitted(world, last, request);
  if (last !== undefined && isLive(last)) return onLive(world, last, request);
  if (isStale(world, request)) return denial("FENCING_TOKEN");
  if (last === undefined) {
    return request.retryAfterGeneration > 0 ? { error: "GENERATION_NOT_FOUND" } : start(world, request, undefined);
  }
  if (world.rules.mayFollow(last, request)) return start(world, request, last);
  const own = last.key === request.key;
  return {
    ...(own ? shown(last) : { name: null }),
    error: null,
    disposition: "ALREADY_FAILED",
    ...(own ? { failedGeneration: last.generation } : {}),
  };
}

function isStale(world: World, request: Authorize): boolean {
  return request.fence !== null && !world.rules.fenceHolds(world.leases, request.fence, world.now);
}

function alreadyCommitted(world: World, last: Generation, request: Authorize): Answer {
  const answer = { error: null, disposition: "ALREADY_COMMITTED" };
  if (last.key !== request.key) return { ...answer, name: null, fields: "" };
  const differing = world.rules.differences(last, request);
  const fields = differing.join();
  if (differing.includes("body_fingerprint")) return { error: "SPEND_MISMATCH", fields };
  return { ...shown(last), ...answer, fields };
}

function onLive(world: World, live: Generation, request: Authorize): Answer {
  const { now, rules } = world;
  if (live.key !== request.key) return onLiveOfAnotherKey(world, live, request);
  const fields = rules.differences(live, request);
  if (fields.length > 0) return { error: "SPEND_MISMATCH", fields: fields.join() };
  if (isStale(world, request)) return denial("FENCING_TOKEN");
  const continues = rules.continues(live, request, now);
  if (isFollowed(live, now) && !continues) return { ...shown(live), disposition: "IN_PROGRESS", waits: true };
  if (holdRuns(live, now) && !continues) {
    if (live.attempt !== request.attempt || !mayAskAgain(live, request))
      return { ...shown(live), disposition: "IN_PROGRESS", waits: true };
    if (rules.mayRepeat(live, request, now)) return repeat(world, live, request);
    return inDoubt(world, live, request);
  }
  const decision = continues ? "CONTINUE" : rules.takeover(live, request, now);
  if (decision === "START_ANEW") return startAnew(world, live, request);
  if (decision === "IN_DOUBT") return inDoubt(world, live, request);
  if (request.dryRun) return { error: null, disposition: "GRANTED", mayHaveBeenSent: true };
  unfollow(live);
  live.state = "HELD";
  live.attempt = request.attempt;
  live.told = true;
  live.holdExpireTime = now + request.holdMs;
  live.holdExpireMax = Math.max(live.holdExpireMax, live.holdExpireTime);
  live.inDoubtSince = null;
  live.asked = null;
  return { ...shown(live), disposition: "GRANTED", mayHaveBeenSent: true };
}

function repeat(world: World, live: Generation, request: Authorize): Answer {
  if (request.dryRun) return { error: null, disposition: "GRANTED", mayHaveBeenSent: true };
  live.told = true;
  world.rules.repeat(world, live);
  return { ...shown(live), disposition: "GRANTED", mayHaveBeenSent: true };
}

/** A bound one-call is not granted again to a caller that does not name its object. */
function mayAskAgain(live: Generation, request: Authorize): boolean {
  return live.settlement === "TWO_STEP" || !live.bound || live.reference === request.continueReference;
}

/** Another key learns the disposition and nothing more, so that no difference is judged for it. */
function onLiveOfAnotherKey(world: World, live: Generation, request: Authorize): Answer {
  const { now } = world;
  const unbound = live.settlement === "TWO_STEP" && !live.bound;
  if (isFollowed(live, now) || holdRuns(live, now))
    return { error: null, disposition: "IN_PROGRESS", waits: true, name: null };
  if (unbound) return isStale(world, request) ? denial("FENCING_TOKEN") : startAnew(world, live, request);
  return { error: null, disposition: "IN_DOUBT", name: null };
}

function inDoubt(world: World, live: Generation, request: Authorize): Answer {
  if (request.dryRun) return { error: null, disposition: "IN_DOUBT" };
  if (live.state === "HELD") world.rules.toDoubt(live, world.now);
  const safe = !live.bound && live.resendSafeForMs !== null && world.now < live.grantTime + live.resendSafeForMs;
  return {
    ...shown(live),
    disposition: "IN_DOUBT",
    ...(safe ? { fields: world.rules.drift(live, request).join() } : {}),
  };
}

/** The last generation is its own proof that nothing was confirmed: nothing was ever bound to it. */
function startAnew(world: World, last: Generation, request: Authorize): Answer {
  if (request.dryRun) return { error: null };
  voidWith(last, "NEVER_BOUND");
  return start(world, request, last);
}

function start(world: World, request: Authorize, last: Generation | undefined): Answer {
  const caps = matchingCaps(world, request);
  const drawn = request.dryRun ? { draws: draws(world, request, caps) } : {};
  const holds = world.rules.reserve(world, request, caps);
  if (!isHolds(holds)) return { ...holds, ...drawn };
  if (request.dryRun) {
    for (const hold of holds) hold.counter.held -= hold.amount;
    return { error: null, disposition: "GRANTED", name: null, mayHaveBeenSent: false, ...drawn };
  }
  const generation = grant(world, request, (last?.generation ?? 0) + 1, holds);
  const id = spendKey(request);
  world.spends.set(id, [...(world.spends.get(id) ?? []), generation]);
  return { ...shown(generation), disposition: "GRANTED", mayHaveBeenSent: false };
}

function isHolds(reserved: readonly Hold[] | Answer): reserved is readonly Hold[] {
  return Array.isArray(reserved);
}

function grant(world: World, request: Authorize, generation: number, holds: readonly Hold[]): Generation {
  return {
    customer: request.customer,
    period: request.period,
    purpose: request.purpose,
    generation,
    key: request.key,
    vendor: request.vendor,
    vendorAccount: request.vendorAccount,
    endpoint: request.endpoint,
    direction: request.direction,
    refundOf: request.refundOf,
    currency: request.currency,
    amount: request.amount,
    settlement: request.settlement,
    resendSafeForMs: request.resendSafeForMs,
    fingerprint: request.fingerprint,
    credential: request.credential,
    grantTime: world.now,
    holds,
    state: "HELD",
    held: request.amount,
    attempt: request.attempt,
    told: false,
    holdExpireTime: world.now + request.holdMs,
    holdExpireMax: world.now + request.holdMs,
    inDoubtSince: null,
    asked: null,
    looksAfter: null,
    bound: false,
    reference: null,
    vendorState: "",
    followUntil: null,
    committed: null,
    refunded: 0n,
    evidence: null,
  };
}

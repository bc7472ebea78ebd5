import type { Answer, Authorize, Void } from "./command.ts";
import { capDenial, counterDenial, counterOf, takes, type Cap } from "./model-cap.ts";
import { policyDenial } from "./model-switch.ts";
import { fenceHolds } from "./model-lease.ts";
import { lookCounts, maybeElsewhere, provesAbsence } from "./model-look.ts";
import { windowLabel } from "./model-window.ts";
import {
  chargeName,
  doubtSince,
  holdRuns,
  isLive,
  unfollow,
  voidWith,
  type Generation,
  type Hold,
  type Rules,
  type World,
} from "./model-world.ts";

/** The rules as they are meant. */
export const rules: Rules = {
  denies: policyDenial,
  fits: (cap, counter, amount) => amount <= cap.limit - counter.committed - counter.held,
  label: (world, rule, period) => windowLabel(rule, period, world.now),
  counts: ({ rule, archived }, now) =>
    !archived && (rule.fixed === null || (rule.fixed.start <= now && now < rule.fixed.end)),
  reserve,
  differences,
  drift,
  fenceHolds,
  takeover,
  continues: (live, request, now) =>
    live.bound &&
    live.reference === request.continueReference &&
    (live.state === "IN_DOUBT" || live.vendorState !== "" || !holdRuns(live, now)),
  raise,
  mayRaise: (generation, { attempt }) => attempt === generation.attempt || (attempt === "" && generation.bound),
  mayFollow: (voided, request) =>
    voided.evidence === "NEVER_SENT" ||
    voided.evidence === "NOT_EXECUTED" ||
    voided.evidence === "NEVER_BOUND" ||
    request.retryAfterGeneration === voided.generation,
  proves,
  lookCounts,
  provesAbsence,
  maybeElsewhere,
  isMidCall: (generation, now) =>
    generation.state === "HELD" && generation.vendorState === "" && now < generation.holdExpireTime,
  belongsElsewhere,
  expire: (generation, now) => {
    if (generation.settlement === "TWO_STEP" && !generation.bound) voidWith(generation, "NEVER_BOUND");
    else rules.toDoubt(generation, now);
  },
  toDoubt: (generation, now) => {
    generation.inDoubtSince = doubtSince(generation, now);
    unfollow(generation);
    generation.state = "IN_DOUBT";
  },
  reportSent: (generation) => {
    generation.told = true;
  },
  mayRepeat: (live, _request, now) =>
    live.bound || live.resendSafeForMs === null || now < live.grantTime + live.resendSafeForMs,
  settle: (_world, generation, amount) => {
    for (const hold of generation.holds) {
      hold.counter.held -= hold.amount;
      hold.counter.committed += hold.counts ? 1n : amount;
    }
  },
  adjust,
  counted: (world, charge, counter) => world.contradictions.get(charge)?.get(counter) ?? 0n,
  repeat: () => {},
};

function reserve(world: World, request: Authorize, caps: readonly Cap[]): readonly Hold[] | Answer {
  const drawn: Cap[] = [];
  for (const cap of caps) {
    const denied = capDenial(world, cap, request);
    if (denied !== null && cap.enforcement === "ENFORCE") return denied;
    // What a cap in the shadow cannot count, it only reports.
    const rule = denied?.["rule"];
    if (rule !== "CURRENCY" && rule !== "BILLING_PERIOD_NOT_PINNED") drawn.push(cap);
  }
  return drawn.map((cap) => {
    const counter = counterOf(world, cap, request);
    const amount = takes(cap, request);
    counter.held += amount;
    return { counter, amount, returned: 0n, counts: cap.rule.currency === null };
  });
}

/** Money of another currency is recorded, but nothing says how much headroom it is worth. */
function adjust(world: World, refund: Generation, amount: bigint): void {
  const original = refund.refundOf === "" ? undefined : world.charges.get(chargeName(refund, refund.refundOf));
  if (original === undefined || original === refund || original.currency !== refund.currency) return;
  if (original.vendorAccount !== refund.vendorAccount) return;
  original.refunded += amount;
  for (const hold of original.holds) {
    if (world.caps.get(hold.counter.name.cap)?.restores !== true) continue;
    const left = (original.committed ?? 0n) - hold.returned;
    const returned = amount < left ? amount : left;
    hold.returned += returned;
    hold.counter.committed -= returned;
  }
}

/** In the windows in which the generation was granted, whatever the clock says now. */
function raise(world: World, generation: Generation, total: bigint): Answer | null {
  // A place is taken once, and an archived cap counts nothing more.
  const raised = generation.holds.filter(
    ({ counter, counts }) => !counts && world.caps.get(counter.name.cap)?.archived !== true,
  );
  for (const { counter, amount } of raised) {
    const cap = world.caps.get(counter.name.cap);
    if (cap === undefined || cap.enforcement === "SHADOW") continue;
    const denied = counterDenial(world, cap, counter, { total, more: total - amount });
    if (denied !== null) return denied;
  }
  for (const hold of raised) {
    hold.counter.held += total - hold.amount;
    hold.amount = total;
  }
  generation.held = total;
  return null;
}

function differences(live: Generation, request: Authorize): readonly string[] {
  const differs: [string, boolean][] = [
    ["body_fingerprint", request.sameBodyRequired && settledOrBound(live) && isOther(live, request)],
    ["direction", live.direction !== request.direction],
    ["endpoint", live.endpoint !== request.endpoint],
    ["refund_of", live.refundOf !== request.refundOf],
    ["resend_safe_for", live.resendSafeForMs !== request.resendSafeForMs],
    ["settlement", live.settlement !== request.settlement],
    ["spend.amount", live.amount !== request.amount || live.currency !== request.currency],
    ["vendor", live.vendor !== request.vendor],
    ["vendor_account", live.vendorAccount !== request.vendorAccount],
  ];
  return differs.filter(([, different]) => different).map(([field]) => field);
}

function settledOrBound({ state, bound }: Generation): boolean {
  return state === "COMMITTED" || bound;
}

/** Whether the body is known to be another one. */
function isOther(live: Generation, request: Authorize): boolean {
  return live.fingerprint !== "" && request.fingerprint !== "" && live.fingerprint !== request.fingerprint;
}

function drift(live: Generation, request: Authorize): readonly string[] {
  if (live.fingerprint === "" || request.fingerprint === "") return [];
  return [
    ...(isOther(live, request) ? ["body_fingerprint"] : []),
    ...(live.credential === request.credential ? [] : ["credential_fingerprint"]),
  ];
}

function takeover(live: Generation, request: Authorize, now: number): "CONTINUE" | "START_ANEW" | "IN_DOUBT" {
  switch (live.settlement) {
    case "TWO_STEP":
      return isOther(live, request) && !live.bound ? "START_ANEW" : "CONTINUE";
    case "RESEND_SAFE":
      return !live.bound && drift(live, request).length === 0 && now < live.grantTime + (live.resendSafeForMs ?? 0)
        ? "CONTINUE"
        : "IN_DOUBT";
    default:
      return "IN_DOUBT";
  }
}

function proves(generation: Generation, request: Void): boolean {
  if (request.evidence === "OPERATOR") return request.key === null;
  if (generation.bound) return request.evidence === "TOMBSTONE" && request.reference === generation.reference;
  if (request.key === null) return false;
  if (request.evidence === "NEVER_SENT") return !generation.told;
  if (request.evidence === "NOT_EXECUTED") {
    return !generation.told && !request.replayed && [401, 403, 429].includes(request.vendorStatus);
  }
  if (request.evidence !== "VENDOR_REFUSED") return false;
  if (request.vendorStatus === 402 || (request.vendorStatus === 400 && request.replayed)) return true;
  return !generation.told && [400, 401, 403, 404, 429].includes(request.vendorStatus);
}

function belongsElsewhere(world: World, generation: Generation, reference: string): boolean {
  const name = chargeName(generation, reference);
  const settles = world.charges.get(name);
  if (settles !== undefined && settles !== generation) return true;
  const others = [...world.spends.values()].flat().filter((other) => other !== generation && isLive(other));
  return others.some((other) => other.bound && chargeName(other, other.reference ?? "") === name);
}

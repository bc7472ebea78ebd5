import { createHash } from "node:crypto";
import type {
  Authorize,
  Command,
  CreateCap,
  CreateVaultKey,
  Fence,
  Identity,
  Look,
  Settlement,
  SwitchTarget,
  UpdateCap,
} from "./command.ts";
import { capIds, customers, dollar, endpoints, keyIds, leases, periods, purposes } from "./history-names.ts";
import type {
  Amount,
  AuthorizeStep,
  ClockStep,
  CommittedAmount,
  LeaseStep,
  LookStep,
  Raise,
  Reference,
  SettleStep,
  Step,
} from "./history-step.ts";
import { type Cap, counterOf } from "./model-cap.ts";
import { findLease } from "./model-lease.ts";
import { generations } from "./model.ts";
import { nextEdge } from "./model-window.ts";
import { latest, spendKey, type Generation, type World } from "./model-world.ts";

const switchTargets: readonly SwitchTarget[] = [
  { kind: "CUSTOMER", name: customers[0] },
  { kind: "CUSTOMER", name: customers[1] },
  { kind: "VENDOR", name: "stripe" },
  { kind: "WORKSPACE", name: "" },
];
const leasePeriod = "2026-11";
const at = <T>(list: readonly T[], i: number): T => list[i % list.length] as T;
const attemptId = (n: number): string => createHash("sha256").update(`attempt ${n}`).digest("hex").slice(0, 32);
const fingerprint = (n: number): string => (n === 0 ? "" : String(n).repeat(64));
const credential = (n: number): string => (n === 0 ? "" : String(n).repeat(32));

/** The command that a step means in this world, or null if it means nothing there. */
export function resolve(world: World, step: Step, log: readonly Command[]): Command | null {
  switch (step.kind) {
    case "authorize":
      return resolveAuthorize(world, step);
    case "batch": {
      const requests = step.items.map((item) => resolveAuthorize(world, item));
      const key = requests[0]?.key ?? keyIds[0];
      return { op: "authorizeBatch", key, requests: requests.map((request) => ({ ...request, key })) };
    }
    case "settle":
      return resolveSettle(world, step);
    case "commitBatch": {
      const requests = step.items.map((item) => resolveSettle(world, item)).filter((one) => one?.op === "commit");
      const key = requests[0]?.key ?? null;
      return requests.length === 0
        ? null
        : { op: "commitBatch", key, requests: requests.map((one) => ({ ...one, key })) };
    }
    case "lease":
      return resolveLease(world, step);
    case "clock": {
      const now = instant(world, step);
      return now !== null && now > world.now ? { op: "setClock", now } : null;
    }
    case "repeat": {
      const repeatable = log.filter(({ op }) => op !== "setClock");
      return repeatable.at(-1 - step.back) ?? null;
    }
    case "limit": {
      const cap = world.caps.get(at(capIds, step.cap));
      const limit = cap?.rule.currency === null ? BigInt(step.dollars) / 4n : BigInt(step.dollars) * dollar;
      return updateOf(cap, { limit });
    }
    case "restores":
      return updateOf(world.caps.get(at(capIds, step.cap)), { restores: step.restores });
    case "enforce":
      return updateOf(world.caps.get(at(capIds, step.cap)), { enforcement: step.enforcement });
    case "archive":
      return world.caps.has(at(capIds, step.cap)) ? { op: "archiveCap", cap: at(capIds, step.cap) } : null;
    case "suspend":
    case "resume": {
      const key = at(keyIds, step.key);
      const op = step.kind === "suspend" ? "suspendVaultKey" : "resumeVaultKey";
      return world.keys.has(key) ? { op, key } : null;
    }
    case "revoke":
      return world.keys.has(at(keyIds, step.key)) ? { op: "revokeVaultKey", key: at(keyIds, step.key) } : null;
    case "rotate":
      return world.keys.has(at(keyIds, step.key)) ? { op: "rotateVaultKey", key: at(keyIds, step.key) } : null;
    case "policy": {
      const key = at(keyIds, step.key);
      const { purposes: pinned, maxPerSpend } = step;
      return world.keys.has(key) ? { op: "updateVaultKey", key, purposes: pinned, maxPerSpend } : null;
    }
    case "engage":
      return { op: "engageSwitch", target: at(switchTargets, step.target) };
    case "release": {
      const target = [...world.switches.values()].toReversed()[step.back]?.target;
      return target === undefined ? null : { op: "releaseSwitch", target };
    }
    case "sweep":
      return { op: "sweep" };
    case "admin":
      return resolveMaking(world, step.command);
  }
}

function updateOf(cap: Cap | undefined, change: Partial<UpdateCap>): Command | null {
  if (cap === undefined) return null;
  return { op: "updateCap", cap: cap.rule.cap, limit: null, restores: null, enforcement: null, ...change };
}

function resolveMaking(world: World, command: CreateCap | CreateVaultKey): Command {
  if (command.op === "createVaultKey") {
    const isAttachable = (id: string): boolean => {
      const cap = world.caps.get(id);
      return cap !== undefined && cap.rule.attachedOnly && !cap.archived;
    };
    // A key that could not be made would leave the history nothing to do; repeats of older requests are refused often.
    const ended = command.expireTime !== null && command.expireTime <= world.now;
    const expireTime = ended ? world.now + 86_400_000 : command.expireTime;
    return { ...command, expireTime, attachedCaps: command.attachedCaps.filter(isAttachable) };
  }
  const { fixed } = command;
  return fixed === null
    ? command
    : { ...command, fixed: { start: world.now + fixed.start, end: world.now + fixed.end } };
}

function resolveAuthorize(world: World, step: AuthorizeStep): Authorize {
  const identity: Identity = {
    customer: at(customers, step.customer),
    period: at(periods, step.period),
    purpose: at(purposes, step.purpose),
  };
  const last = latest(world, identity);
  const like = step.like ? last : undefined;
  const key = like?.key ?? existingKey(world, step.key);
  const settlement = like?.settlement ?? step.settlement;
  const request: Authorize = {
    op: "authorize",
    ...identity,
    key,
    currency: like?.currency ?? "usd",
    amount: like?.amount ?? 1n,
    vendor: like?.vendor ?? world.keys.get(key)?.policy.vendor ?? "stripe",
    vendorAccount: like?.vendorAccount ?? "",
    endpoint: like?.endpoint ?? endpoints[0],
    direction: like?.direction ?? step.direction,
    refundOf: like?.refundOf ?? (step.direction === "REFUND" ? refundedCharge(world, step) : ""),
    attempt: resolveAttempt(last, step.attempt),
    settlement,
    resendSafeForMs: like === undefined ? resendSafeFor(settlement, step) : like.resendSafeForMs,
    holdMs: step.holdMs,
    retryAfterGeneration: retryAfter(last, step.retry),
    continueReference: continued(last, step.continues),
    fence: resolveFence(world, step.fence),
    fingerprint: fingerprint(step.fingerprint),
    credential: credential(step.credential),
    sameBodyRequired: step.sameBodyRequired,
    dryRun: step.dryRun,
  };
  return vary(
    world,
    like === undefined ? { ...request, amount: resolveAmount(world, request, step.amount) } : request,
    step,
  );
}

const resendSafeFor = (settlement: Settlement, step: AuthorizeStep): number | null =>
  settlement === "RESEND_SAFE" ? step.resendSafeForMs : null;

function existingKey(world: World, n: number): string {
  return world.keys.has(at(keyIds, n)) ? at(keyIds, n) : keyIds[0];
}

function retryAfter(last: Generation | undefined, retry: AuthorizeStep["retry"]): number {
  if (retry === "none") return 0;
  return (last?.generation ?? 0) + (retry === "last" ? 0 : 1);
}

function refundedCharge(world: World, { refundOf }: AuthorizeStep): string {
  if (typeof refundOf === "string") return refundOf === "none" ? "" : "pi_unknown";
  const committed = generations(world)
    .filter((one) => one.state === "COMMITTED")
    .toSorted((a, b) => b.grantTime - a.grantTime);
  return committed[refundOf]?.reference ?? "";
}

function continued(last: Generation | undefined, continues: AuthorizeStep["continues"]): string {
  return continues === "other" ? "pi_other" : continues === "bound" ? (last?.reference ?? "") : "";
}

function resolveAttempt(last: Generation | undefined, attempt: "holder" | number): string {
  return attempt === "holder" ? (last?.attempt ?? attemptId(0)) : attemptId(attempt);
}

/** An amount at the edge of what a cap still allows: the values at which a comparison that is off by one shows. */
function resolveAmount(world: World, request: Authorize, amount: Amount): bigint {
  if (amount.kind === "fixed") return amount.amount;
  const cap = world.caps.get(at(capIds, amount.cap)) ?? world.caps.values().next().value;
  if (cap === undefined) return dollar;
  const counter = counterOf(world, cap, request);
  const edge =
    amount.of === "max" && cap.rule.maxPerSpend !== null
      ? cap.rule.maxPerSpend
      : cap.rule.currency === null
        ? dollar
        : cap.limit - counter.committed - counter.held;
  const wanted = edge + BigInt(amount.delta);
  return wanted > 0n ? wanted : 1n;
}

function vary(world: World, request: Authorize, step: AuthorizeStep): Authorize {
  switch (step.vary) {
    case "":
      return request;
    case "amount":
      return { ...request, amount: request.amount + 1n };
    case "currency":
      return { ...request, currency: request.currency === "usd" ? "eur" : "usd" };
    case "vendor":
      return { ...request, vendor: request.vendor === "stripe" ? "twilio" : "stripe" };
    case "account":
      return { ...request, vendorAccount: request.vendorAccount === "" ? "acct_1" : "" };
    case "endpoint":
      return { ...request, endpoint: request.endpoint === endpoints[0] ? endpoints[1] : endpoints[0] };
    case "settlement": {
      const settlement = request.settlement === "TWO_STEP" ? "SEND_ONCE" : "TWO_STEP";
      return { ...request, settlement, resendSafeForMs: null };
    }
    case "resend":
      return request.resendSafeForMs === null ? request : { ...request, resendSafeForMs: step.resendSafeForMs };
    case "direction": {
      const direction = request.direction === "SPEND" ? "REFUND" : "SPEND";
      return { ...request, direction, refundOf: direction === "SPEND" ? "" : refundedCharge(world, step) };
    }
    case "key":
      return { ...request, key: existingKey(world, step.key) };
  }
}

function resolveFence(world: World, fence: AuthorizeStep["fence"]): Fence | null {
  if (fence === "none") return null;
  const lease = findLease(world.leases, leases[0], leasePeriod);
  const holder = lease?.holder ?? "h0";
  const token = lease?.token ?? 1n;
  if (fence === "stale") return { lease: leases[0], period: leasePeriod, holder, token: token > 1n ? token - 1n : 9n };
  return { lease: leases[0], period: leasePeriod, holder: fence === "other" ? `${holder}x` : holder, token };
}

function resolveSettle(world: World, step: SettleStep): Command | null {
  const all = generations(world).toSorted((a, b) => b.grantTime - a.grantTime);
  const target = all[step.pick % Math.max(all.length, 1)];
  if (target === undefined) return null;
  const spend: Identity = { customer: target.customer, period: target.period, purpose: target.purpose };
  const generation = target.generation + (step.missing ? 7 : 0);
  const owner =
    step.by === "other" ? (keyIds.find((id) => id !== target.key && world.keys.has(id)) ?? target.key) : target.key;
  const attempt = resolveAttempt(target, step.attempt);
  const { action } = step;
  const by = step.by === "operator" ? null : owner;
  switch (action.kind) {
    case "commit": {
      const amount = committedAmount(target, action.amount);
      const reference = resolveReference(target, action.reference);
      return { op: "commit", key: by, spend, generation, currency: target.currency, amount, reference };
    }
    case "void": {
      const evidence = by === null && action.evidence !== "ABSENT_AFTER_QUARANTINE" ? "OPERATOR" : action.evidence;
      const reference = evidence === "TOMBSTONE" ? resolveReference(target, action.reference) : "";
      const { vendorStatus, replayed } = action;
      const look = evidence === "ABSENT_AFTER_QUARANTINE" ? { look: lookOf(world, target, action.look) } : {};
      return { op: "void", key: by, spend, generation, attempt, evidence, vendorStatus, replayed, reference, ...look };
    }
    case "reportUnknown":
      return { op: "reportUnknown", key: owner, spend, generation, attempt };
    case "report": {
      const isOpen = action.finding === "OPEN" && action.reference !== "none";
      const reference = isOpen ? resolveReference(target, action.reference) : "";
      const { finding } = action;
      const vendorState = isOpen ? "open" : "";
      const look = lookOf(world, target, action.look);
      return { op: "report", key: owner, spend, generation, finding, reference, vendorState, look };
    }
    case "resolve": {
      const { amount } = action;
      const committed =
        amount === "voided" ? null : { currency: target.currency, amount: committedAmount(target, amount) };
      const isNamed = committed !== null || action.reference !== "none";
      const reference = isNamed ? resolveReference(target, action.reference) : "";
      return { op: "resolve", key: null, spend, generation, committed, reference };
    }
    case "increase": {
      const currency = action.amount.of === "currency" && target.currency === "usd" ? "eur" : target.currency;
      return {
        op: "increase",
        key: owner,
        spend,
        generation,
        currency,
        amount: raisedTotal(world, target, action.amount),
        attempt: action.byObject ? "" : attempt,
        fence: resolveFence(world, action.fence),
      };
    }
    case "bind": {
      const reference = resolveReference(target, action.reference);
      const { vendorState } = action;
      const followForMs = vendorState === "" ? null : action.followForMs;
      return { op: "bind", key: owner, spend, generation, attempt, reference, vendorState, followForMs };
    }
  }
}

function lookOf(world: World, { asked, looksAfter }: Generation, { began, account }: LookStep): Look {
  const at = {
    now: world.now,
    days: world.now - 3 * 86_400_000,
    before: looksAfter ?? world.now,
    again: asked?.absentSince ?? world.now,
    later: world.now + 600_000,
  };
  return { at: at[began], account };
}

function raisedTotal(world: World, target: Generation, raise: Raise): bigint {
  const counter = target.holds[raise.hold % Math.max(target.holds.length, 1)]?.counter;
  const cap = counter === undefined ? undefined : world.caps.get(counter.name.cap);
  const headroom = counter === undefined || cap === undefined ? 0n : cap.limit - counter.committed - counter.held;
  const edge =
    raise.of === "headroom"
      ? target.held + headroom
      : raise.of === "max"
        ? (cap?.rule.maxPerSpend ?? target.held)
        : target.held;
  return edge + raise.delta > 0n ? edge + raise.delta : 1n;
}

function committedAmount({ held }: Generation, amount: CommittedAmount): bigint {
  return { held, less: held / 2n, more: held + dollar, zero: 0n }[amount];
}

function resolveReference(target: Generation, reference: Reference | "none"): string {
  const own = `pi_${spendKey(target).slice(0, 8)}_${target.generation}`;
  switch (reference) {
    case "own":
    case "none":
      return own;
    case "second":
      return `${own}_b`;
    case "shared":
      return "pi_shared";
    case "bound":
      return target.reference ?? own;
  }
}

function resolveLease(world: World, step: LeaseStep): Command {
  const lease = at(leases, step.lease);
  const known = findLease(world.leases, lease, leasePeriod);
  const holder = `h${step.holder}`;
  const token = (known?.token ?? 1n) + (step.token === "stale" ? 1n : 0n);
  const common = { key: keyIds[0], lease, period: leasePeriod, holder };
  if (step.action === "acquire") return { op: "acquireLease", ...common, ttlMs: step.ttlMs };
  if (step.action === "renew") return { op: "renewLease", ...common, token, ttlMs: step.ttlMs };
  return { op: "releaseLease", ...common, token, completed: step.action === "complete" };
}

/** The instant that a clock step means: one of the edges at which an answer changes, or one millisecond beside it. */
function instant(world: World, step: ClockStep): number | null {
  const all = generations(world).toSorted((a, b) => b.grantTime - a.grantTime);
  const one = all[step.pick % Math.max(all.length, 1)];
  const edge = (): number | null => {
    switch (step.to) {
      case "soon":
        return world.now + [1, 1_000, 30_000, 3_600_000, 90_000_000, 700_000_000][step.pick % 6]!;
      case "expiry":
        return one?.holdExpireTime ?? null;
      case "resend":
        return one === undefined || one.resendSafeForMs === null ? null : one.grantTime + one.resendSafeForMs;
      case "follow":
        return one?.followUntil ?? null;
      case "quarantine":
        return one === undefined
          ? null
          : Math.max(one.holdExpireMax, one.grantTime + (one.resendSafeForMs ?? 0)) + 25 * 3_600_000;
      case "absence":
        return one === undefined || one.asked === null || one.asked.absentSince === null
          ? null
          : one.asked.absentSince + 300_000;
      case "window": {
        const edges = [...world.caps.values()].map(({ rule }) => nextEdge(rule, world.now));
        // The end of a year is far from everything else that a history does.
        const near = edges.filter((edge) => edge !== null && edge < world.now + 40 * 86_400_000);
        return near[step.pick % Math.max(near.length, 1)] ?? null;
      }
      case "lease":
        return findLease(world.leases, leases[0], leasePeriod)?.expireTime ?? null;
      case "keyExpiry":
        return Date.parse("2026-12-01T12:00:00Z") - world.now < 90_000_000 ? Date.parse("2026-12-01T12:00:00Z") : null;
    }
  };
  const found = edge();
  return found === null ? null : found + step.delta;
}

import type { AcquireLease, Answer, Fence, ReleaseLease, RenewLease } from "./command.ts";
import type { VaultKey } from "./model-cap.ts";

export interface Lease {
  holder: string;
  token: bigint;
  expireTime: number;
  completed: boolean;
}

export type Leases = Map<string, Lease>;

const leaseName = (lease: string, period: string): string => `${lease}:${period}`;

function shown(lease: Lease): Answer {
  return { error: null, holder: lease.holder, token: lease.token, completed: lease.completed };
}

function held(lease: Lease | undefined, fence: Fence): lease is Lease {
  return lease !== undefined && lease.holder === fence.holder && lease.token === fence.token;
}

/** Whether a fence proves the right to spend at this instant. */
export function fenceHolds(leases: Leases, fence: Fence, now: number): boolean {
  const lease = leases.get(leaseName(fence.lease, fence.period));
  return held(lease, fence) && now < lease.expireTime && !lease.completed;
}

export function findLease(leases: Leases, lease: string, period: string): Lease | undefined {
  return leases.get(leaseName(lease, period));
}

/** Whether a vault key gets nothing new: no job either. */
export function isOut(key: VaultKey | undefined, now: number): boolean {
  if (key === undefined || key.revoked || key.suspended) return true;
  return key.policy.expireTime !== null && now >= key.policy.expireTime;
}

export function acquireLease(leases: Leases, request: AcquireLease, now: number): Answer {
  const name = leaseName(request.lease, request.period);
  const old = leases.get(name);
  const expireTime = now + request.ttlMs;
  if (old === undefined) {
    const lease: Lease = { holder: request.holder, token: 1n, expireTime, completed: false };
    leases.set(name, lease);
    return { ...shown(lease), answer: "ACQUIRED", expireTime };
  }
  if (old.completed) return { ...shown(old), answer: "ALREADY_COMPLETED" };
  const running = now < old.expireTime;
  if (running && old.holder !== request.holder) {
    return { ...shown(old), answer: "HELD_BY_OTHER", expireTime: old.expireTime };
  }
  if (!running) old.token += 1n;
  old.holder = request.holder;
  old.expireTime = expireTime;
  return { ...shown(old), answer: "ACQUIRED", expireTime };
}

export function renewLease(leases: Leases, request: RenewLease, now: number): Answer {
  const lease = leases.get(leaseName(request.lease, request.period));
  if (lease === undefined) return { error: null, renewed: false };
  if (!fenceHolds(leases, request, now)) return { ...shown(lease), renewed: false };
  // A late heartbeat with a short time to live takes no time away.
  lease.expireTime = Math.max(lease.expireTime, now + request.ttlMs);
  return { ...shown(lease), renewed: true, expireTime: lease.expireTime };
}

export function releaseLease(leases: Leases, request: ReleaseLease, now: number): Answer {
  const lease = leases.get(leaseName(request.lease, request.period));
  if (lease === undefined) return { error: null, released: false };
  if (!held(lease, request) || (lease.completed && !request.completed)) return { ...shown(lease), released: false };
  lease.expireTime = Math.min(lease.expireTime, now);
  lease.completed ||= request.completed;
  return { ...shown(lease), released: true };
}

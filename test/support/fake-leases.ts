import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import {
  type AcquireBillingLeaseRequest,
  LeaseAnswer,
  LeaseOutcome,
  type ReleaseBillingLeaseRequest,
  type RenewBillingLeaseRequest,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { LeaseFence } from "@holdfast/api/holdfast/v1/spend_pb";

interface Lease {
  holderId: string;
  token: bigint;
  expires: number;
  completed: boolean;
}

/** Billing leases in memory, on the clock of the fake control plane. */
export function createFakeLeases(now: () => number) {
  const leases = new Map<string, Lease>();

  function lookUp(request: { lease: string; billingPeriod: string }): Lease | undefined {
    return leases.get(`${request.lease}:${request.billingPeriod}`);
  }
  function message(request: AcquireBillingLeaseRequest, lease: Lease, answer: LeaseAnswer) {
    const { lease: name, billingPeriod } = request;
    return {
      answer,
      billingLease: { lease: name, billingPeriod, holderId: lease.holderId, fencingToken: lease.token },
      remaining: durationFromMs(Math.max(0, lease.expires - now())),
    };
  }
  const ttlMs = (request: { ttl?: Parameters<typeof durationMs>[0] | undefined }): number =>
    request.ttl === undefined ? 0 : durationMs(request.ttl);

  return {
    holds(this: void, fence: LeaseFence): boolean {
      const lease = lookUp(fence);
      return lease !== undefined && lease.token === fence.fencingToken && lease.expires > now();
    },
    acquire(this: void, request: AcquireBillingLeaseRequest) {
      const lease = lookUp(request) ?? { holderId: "", token: 0n, expires: 0, completed: false };
      leases.set(`${request.lease}:${request.billingPeriod}`, lease);
      if (lease.completed) return message(request, lease, LeaseAnswer.ALREADY_COMPLETED);
      if (lease.expires > now() && lease.holderId !== request.holderId) {
        return message(request, lease, LeaseAnswer.HELD_BY_OTHER);
      }
      lease.token += 1n;
      lease.holderId = request.holderId;
      lease.expires = now() + ttlMs(request);
      return message(request, lease, LeaseAnswer.ACQUIRED);
    },
    renew(this: void, request: RenewBillingLeaseRequest) {
      const lease = lookUp(request);
      if (lease === undefined || lease.token !== request.fencingToken || lease.expires <= now()) {
        return { renewed: false };
      }
      lease.expires = now() + ttlMs(request);
      return { renewed: true, remaining: durationFromMs(lease.expires - now()) };
    },
    release(this: void, request: ReleaseBillingLeaseRequest) {
      const lease = lookUp(request);
      if (lease === undefined || lease.token !== request.fencingToken) return { released: false };
      lease.expires = now();
      lease.completed = request.outcome === LeaseOutcome.COMPLETED;
      return { released: true };
    },
  };
}

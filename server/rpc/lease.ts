import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type BillingLease as BillingLeaseMessage,
  BillingLeaseSchema,
  LeaseAnswer,
  LeaseOutcome,
  type SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError } from "../domain/errors.ts";
import type { BillingLease, LeaseCommand } from "../domain/lease.ts";
import type { Database } from "../store/database.ts";
import * as store from "../store/lease.ts";
import { type Principal, principalOf } from "./auth.ts";
import { millisecondsFrom, timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type LeaseMethods = Pick<
  ServiceImpl<typeof SpendControlService>,
  "acquireBillingLease" | "renewBillingLease" | "releaseBillingLease"
>;

const answerOf = {
  ACQUIRED: LeaseAnswer.ACQUIRED,
  HELD_BY_OTHER: LeaseAnswer.HELD_BY_OTHER,
  ALREADY_COMPLETED: LeaseAnswer.ALREADY_COMPLETED,
} as const;

/** Billing leases. Validation has made sure that `ttl` is there and in range. */
export function leaseMethods(database: Database): LeaseMethods {
  return {
    async acquireBillingLease(request, context) {
      const principal = principalOf(context.values);
      const ttlMs = request.ttl === undefined ? 0 : millisecondsFrom(request.ttl, "ttl");
      const command = { ...leaseCommand(principal, request), ttlMs };
      const { answer, lease, remainingMs } = await store.acquireBillingLease(database, principal.workspace, command);
      return {
        answer: answerOf[answer],
        billingLease: leaseMessage(lease),
        remaining: durationFromMs(answer === "ALREADY_COMPLETED" ? 0 : remainingMs),
      };
    },
    async renewBillingLease(request, context) {
      const principal = principalOf(context.values);
      const ttlMs = request.ttl === undefined ? 0 : millisecondsFrom(request.ttl, "ttl");
      const command = { ...leaseCommand(principal, request), fencingToken: request.fencingToken, ttlMs };
      const result = await store.renewBillingLease(database, principal.workspace, command);
      return {
        renewed: result.renewed,
        remaining: durationFromMs(result.renewed ? result.remainingMs : 0),
        ...withLease(result.lease),
      };
    },
    async releaseBillingLease(request, context) {
      const principal = principalOf(context.values);
      const result = await store.releaseBillingLease(database, principal.workspace, {
        ...leaseCommand(principal, request),
        fencingToken: request.fencingToken,
        completed: request.outcome === LeaseOutcome.COMPLETED,
      });
      return { released: result.released, ...withLease(result.lease) };
    },
  };
}

/** What operators see and do of billing leases. */
export function leaseAdminMethods(
  database: Database,
): Pick<ServiceImpl<typeof AdminService>, "listBillingLeases" | "reopenBillingLease"> {
  return {
    async listBillingLeases(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [lease, billingPeriod = ""] = decodePageToken("billing_leases", request.pageToken, 2) ?? [];
      const rows = await store.listBillingLeases(database, workspace, {
        lease: request.lease || undefined,
        after: lease === undefined ? undefined : { lease, billingPeriod },
        limit: size + 1,
      });
      const page = cutPage("billing_leases", rows, size, (last) => [last.lease, last.billingPeriod]);
      return { billingLeases: page.rows.map(leaseMessage), nextPageToken: page.nextPageToken };
    },
    async reopenBillingLease(request, context) {
      const { workspace, id } = principalOf(context.values);
      const { lease, billingPeriod, reason } = request;
      const command = { lease, billingPeriod, reason, operatorId: id, traceId: currentTraceId() ?? "" };
      const result = await store.reopenBillingLease(database, workspace, command);
      if (result.lease === undefined) {
        throw new HoldfastError(
          "NOT_FOUND",
          `There is no billing lease ${lease} of ${billingPeriod}. ListBillingLeases shows which there are.`,
          { metadata: { lease, billing_period: billingPeriod } },
        );
      }
      return { billingLease: leaseMessage(result.lease) };
    },
  };
}

function leaseCommand(
  principal: Principal,
  request: { readonly lease: string; readonly billingPeriod: string; readonly holderId: string },
): LeaseCommand {
  return {
    vaultKeyId: principal.id,
    lease: request.lease,
    billingPeriod: request.billingPeriod,
    holderId: request.holderId,
    traceId: currentTraceId() ?? "",
  };
}

function withLease(lease: BillingLease | undefined): { billingLease?: BillingLeaseMessage } {
  return lease === undefined ? {} : { billingLease: leaseMessage(lease) };
}

function leaseMessage(lease: BillingLease): BillingLeaseMessage {
  return create(BillingLeaseSchema, {
    lease: lease.lease,
    billingPeriod: lease.billingPeriod,
    holderId: lease.holderId,
    fencingToken: lease.fencingToken,
    expireTime: timestampMessage(lease.expireTime),
    completed: lease.completed,
  });
}

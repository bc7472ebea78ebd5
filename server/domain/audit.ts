import type { Money } from "./money.ts";
import type { AuthorizationId } from "./spend.ts";

/** Where an event stands: its transaction, and its number in it. */
export interface AuditPosition {
  readonly xid: string;
  readonly n: number;
}

/** One decision or change. Times are microseconds since 1970 on the database clock. */
export interface AuditEvent extends AuditPosition {
  readonly eventTime: bigint;
  readonly kind: string;
  readonly actorKind: "vault_key" | "operator" | "server";
  readonly actorId: string;
  readonly authorization: AuthorizationId | undefined;
  readonly customerId: string;
  readonly billingPeriod: string;
  readonly purpose: string;
  readonly attemptId: string;
  readonly amount: Money | undefined;
  readonly disposition: string;
  readonly reason: string;
  readonly traceId: string;
  /** The figures as JSON text: a number may be too large for JavaScript. */
  readonly detail: string;
  /** Whom it is about, also where somebody else did it; empty for none. */
  readonly vaultKeyId: string;
  /** How many identical denials or refused calls it stands for; 1 for every other event. */
  readonly count: bigint;
}

/** What is set must match. */
export interface AuditFilter {
  readonly startTime: bigint | undefined;
  readonly endTime: bigint | undefined;
  /** A kind, or what stands before its dot. */
  readonly kind: string | undefined;
  readonly actor: Pick<AuditEvent, "actorKind" | "actorId"> | undefined;
  readonly authorization: AuthorizationId | undefined;
  readonly customerId: string | undefined;
  readonly billingPeriod: string | undefined;
  readonly purpose: string | undefined;
  /** What it did, and what was done to it or to what it was granted. */
  readonly vaultKeyId: string | undefined;
  readonly disposition: string | undefined;
  readonly traceId: string | undefined;
}

/** Whether the first stands behind the second. */
export function isBehind(one: AuditPosition, other: AuditPosition): boolean {
  const [a, b] = [BigInt(one.xid), BigInt(other.xid)];
  return a === b ? one.n > other.n : a > b;
}

/** The beginning of the audit that is not part of it any more. */
export interface AuditDetachment {
  /** The first transaction whose events are still there. */
  readonly toXid: string;
  /** When the last event of what was detached was. */
  readonly untilTime: bigint;
}

/** Whether events may be missing between a position and what comes next. */
export function isDetachedAfter({ xid }: AuditPosition, { toXid }: AuditDetachment): boolean {
  return BigInt(xid) + 1n < BigInt(toXid);
}

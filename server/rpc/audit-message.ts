import { create, type JsonObject } from "@bufbuild/protobuf";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import {
  type AuditEvent as AuditEventMessage,
  AuditEventSchema,
  type ListAuditEventsRequest,
} from "@holdfast/api/holdfast/v1/audit_pb";
import {
  type AuditDetachment,
  type AuditEvent,
  type AuditFilter,
  type AuditPosition,
  isBehind,
  isDetachedAfter,
} from "../domain/audit.ts";
import { invalidField } from "../domain/errors.ts";
import { formatAuthorizationName, parseAuthorizationName } from "../domain/spend.ts";
import { microsFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { decodePageToken, encodePageToken } from "./page.ts";

const collectionOf = { vault_key: "vaultKeys", operator: "operators", server: "server" } as const;
const actorKinds = Object.keys(collectionOf) as (keyof typeof collectionOf)[];

/** The filters that every reading of the audit takes. */
export type AuditFilterFields = Pick<
  ListAuditEventsRequest,
  | "startTime"
  | "endTime"
  | "kind"
  | "actor"
  | "authorization"
  | "customerId"
  | "billingPeriod"
  | "purpose"
  | "vaultKey"
  | "disposition"
  | "traceId"
>;

export function positionParts({ xid, n }: AuditPosition): readonly string[] {
  return [xid, `${n}`];
}

/** The position in a token; undefined for none. Throws INVALID_FIELD that names `field`. */
export function positionFrom(
  token: string,
  field: "page_token" | "resume_token" = "page_token",
  listing = "audit_events",
): AuditPosition | undefined {
  const parts = decodePageToken(listing, token, 2, field);
  if (parts === undefined) return undefined;
  const [xid = "", n = ""] = parts;
  if (!/^\d{1,19}$/.test(xid) || !/^\d{1,10}$/.test(n) || Number(n) > 2_147_483_647) {
    throw invalidField(field, "is not one of ours; take next_page_token or resume_token of the answer before.");
  }
  return { xid, n: Number(n) };
}

/** Where a reader stands who has read all up to `seen`: one that has come further before stays where it is. */
export function resumeTokenOf(seen: AuditPosition, after: AuditPosition | undefined): string {
  return encodePageToken("audit_events", positionParts(after !== undefined && isBehind(after, seen) ? after : seen));
}

/** Refuses a reader who would go on behind events that are not there any more without learning of it. */
export function refuseDetached(
  after: AuditPosition | undefined,
  detachment: AuditDetachment | undefined,
  field: "page_token" | "resume_token" = "page_token",
): void {
  if (after === undefined || detachment === undefined || !isDetachedAfter(after, detachment)) return;
  const { seconds } = timestampMessage(detachment.untilTime);
  throw invalidField(
    field,
    `stands before events up to ${new Date(Number(seconds) * 1000).toISOString()} that were detached from the audit; ` +
      "find those in what was detached, and begin again without it.",
  );
}

/** Until when events are not part of the audit any more; nothing where all are. */
export function detachedUntil(detachment: AuditDetachment | undefined): { readonly detachedUntilTime?: Timestamp } {
  return detachment === undefined ? {} : { detachedUntilTime: timestampMessage(detachment.untilTime) };
}

export function filterFrom(request: AuditFilterFields): AuditFilter {
  const [collection = "", actorId = ""] = request.actor.split("/");
  const actorKind = actorKinds.find((kind) => collectionOf[kind] === collection);
  return {
    startTime: request.startTime === undefined ? undefined : microsFrom(request.startTime, "start_time"),
    endTime: request.endTime === undefined ? undefined : microsFrom(request.endTime, "end_time"),
    kind: request.kind || undefined,
    actor: actorKind === undefined ? undefined : { actorKind, actorId },
    authorization:
      request.authorization === "" ? undefined : parseAuthorizationName(request.authorization, "authorization"),
    customerId: request.customerId || undefined,
    billingPeriod: request.billingPeriod || undefined,
    purpose: request.purpose || undefined,
    vaultKeyId: request.vaultKey.replace(/^vaultKeys\//, "") || undefined,
    disposition: request.disposition || undefined,
    traceId: request.traceId || undefined,
  };
}

export function eventMessage(event: AuditEvent): AuditEventMessage {
  return create(AuditEventSchema, {
    name: `auditEvents/${event.xid}-${event.n}`,
    eventTime: timestampMessage(event.eventTime),
    kind: event.kind,
    actor: `${collectionOf[event.actorKind]}/${event.actorId}`,
    authorization: event.authorization === undefined ? "" : formatAuthorizationName(event.authorization),
    customerId: event.customerId,
    billingPeriod: event.billingPeriod,
    purpose: event.purpose,
    attemptId: event.attemptId,
    disposition: event.disposition,
    reason: event.reason,
    traceId: event.traceId,
    detail: detailFrom(event.detail),
    vaultKey: event.vaultKeyId === "" ? "" : `vaultKeys/${event.vaultKeyId}`,
    count: event.count,
    ...(event.amount === undefined ? {} : { amount: moneyMessage(event.amount) }),
  });
}

/** A number that JavaScript cannot carry exactly goes as the text it was written in. */
function detailFrom(text: string): JsonObject {
  return JSON.parse(text, (_key, value: unknown, context?: { readonly source?: string }) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) ? context?.source : value,
  ) as JsonObject;
}

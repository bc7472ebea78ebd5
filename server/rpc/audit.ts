import { create, type JsonObject } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type AuditEvent as AuditEventMessage,
  AuditEventSchema,
  type ListAuditEventsRequest,
} from "@holdfast/api/holdfast/v1/audit_pb";
import type { AuditEvent, AuditFilter, AuditPosition } from "../domain/audit.ts";
import { invalidField } from "../domain/errors.ts";
import { formatAuthorizationName, parseAuthorizationName } from "../domain/spend.ts";
import * as store from "../store/audit.ts";
import type { Database } from "../store/database.ts";
import { principalOf } from "./auth.ts";
import { microsFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, encodePageToken, pageSize } from "./page.ts";

const collectionOf = { vault_key: "vaultKeys", operator: "operators", server: "server" } as const;
const actorKinds = Object.keys(collectionOf) as (keyof typeof collectionOf)[];

/** What an operator and an auditor read of the audit. */
export function auditMethods(database: Database): Pick<ServiceImpl<typeof AdminService>, "listAuditEvents"> {
  return {
    async listAuditEvents(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const { newestFirst } = request;
      const after = positionFrom(request.pageToken);
      const filter = filterFrom(request);
      const { events, seen } = await store.listAuditEvents(database, workspace, {
        filter,
        newestFirst,
        after,
        limit: size + 1,
      });
      const page = cutPage("audit_events", events, size, positionParts);
      // A reader that has come further than what is sure now stays where it is.
      const stands = after === undefined || BigInt(seen.xid) > BigInt(after.xid) ? seen : after;
      const resumeToken =
        page.nextPageToken === "" ? encodePageToken("audit_events", positionParts(stands)) : page.nextPageToken;
      return {
        auditEvents: page.rows.map(eventMessage),
        nextPageToken: page.nextPageToken,
        resumeToken: newestFirst ? "" : resumeToken,
      };
    },
  };
}

function positionParts({ xid, n }: AuditPosition): readonly string[] {
  return [xid, `${n}`];
}

function positionFrom(token: string): AuditPosition | undefined {
  const parts = decodePageToken("audit_events", token, 2);
  if (parts === undefined) return undefined;
  const [xid = "", n = ""] = parts;
  if (!/^\d{1,19}$/.test(xid) || !/^\d{1,10}$/.test(n) || Number(n) > 2_147_483_647) {
    throw invalidField("page_token", "is not one of ours; take next_page_token or resume_token of the page before.");
  }
  return { xid, n: Number(n) };
}

function filterFrom(request: ListAuditEventsRequest): AuditFilter {
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
    disposition: request.disposition || undefined,
    traceId: request.traceId || undefined,
  };
}

function eventMessage(event: AuditEvent): AuditEventMessage {
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
    ...(event.amount === undefined ? {} : { amount: moneyMessage(event.amount) }),
  });
}

/** A number that JavaScript cannot carry exactly goes as the text it was written in. */
function detailFrom(text: string): JsonObject {
  return JSON.parse(text, (_key, value: unknown, context?: { readonly source?: string }) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) ? context?.source : value,
  ) as JsonObject;
}

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type GetSpendStoryRequest,
  type ProxiedRequest,
  ProxiedRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_story_pb";
import { HoldfastError } from "../domain/errors.ts";
import type { ProxiedRequestSummary } from "../domain/proxied-request.ts";
import { parseAuthorizationName, type SpendIdentity, spendKeyOf } from "../domain/spend.ts";
import { listAuditEventsOfSpend, readAuditDetachment } from "../store/audit.ts";
import type { Database } from "../store/database.ts";
import * as store from "../store/spend-story.ts";
import { detachedUntil, eventMessage, positionFrom, positionParts } from "./audit-message.ts";
import { principalOf } from "./auth.ts";
import { contradictionMessage } from "./contradictions.ts";
import { authorizationMessage, timestampMessage } from "./convert.ts";
import { cutPage, pageSize } from "./page.ts";

/** So many generations, contradictions and proxied requests are shown of one spend. */
const partsMax = 100;

/** Everything that is known about one spend. */
export function spendStoryMethods(database: Database): Pick<ServiceImpl<typeof AdminService>, "getSpendStory"> {
  return {
    async getSpendStory(request, context) {
      const { workspace } = principalOf(context.values);
      const after = positionFrom(request.pageToken, "page_token", "spend_story");
      const { spend, spendKey } = await spendOf(database, workspace, request.lookup);
      const size = pageSize(request.pageSize);
      const [parts, events, detachment] = await Promise.all([
        store.readSpendParts(database, workspace, { spendKey, spend, limit: partsMax }),
        listAuditEventsOfSpend(database, workspace, { spendKey, after, limit: size + 1 }),
        readAuditDetachment(database),
      ]);
      // A page after the last event of a spend that there is has none either.
      const isEmpty = [parts.authorizations, parts.proxiedRequests, events].every((list) => list.length === 0);
      if (isEmpty && after === undefined) throw notFound();
      const page = cutPage("spend_story", events, size, positionParts);
      return {
        spend,
        authorizations: parts.authorizations.map(authorizationMessage),
        auditEvents: page.rows.map(eventMessage),
        contradictions: parts.contradictions.map(contradictionMessage),
        proxiedRequests: parts.proxiedRequests.map(requestMessage),
        nextPageToken: page.nextPageToken,
        ...detachedUntil(detachment),
      };
    },
  };
}

async function spendOf(
  database: Database,
  workspace: string,
  lookup: GetSpendStoryRequest["lookup"],
): Promise<{ readonly spend: SpendIdentity; readonly spendKey: string }> {
  if (lookup.case === "spend") {
    const { customerId, billingPeriod, purpose } = lookup.value;
    const spend = { customerId, billingPeriod, purpose };
    return { spend, spendKey: spendKeyOf(spend) };
  }
  const { spendKey } = parseAuthorizationName(lookup.value ?? "", "authorization");
  const spend = await store.spendOfKey(database, workspace, spendKey);
  if (spend === undefined) throw notFound();
  return { spend, spendKey };
}

function notFound(): HoldfastError {
  return new HoldfastError(
    "NOT_FOUND",
    "Nobody has asked for such a spend. Take an authorization that ListAuthorizations gives, or the customer, billing period and purpose that were sent.",
  );
}

function requestMessage(request: ProxiedRequestSummary): ProxiedRequest {
  const { answerTime } = request;
  const message: MessageInitShape<typeof ProxiedRequestSchema> = {
    vaultKey: `vaultKeys/${request.vaultKeyId}`,
    endpoint: request.endpoint,
    open: request.isOpen,
    generation: request.generation,
    status: request.status ?? 0,
    declined: request.declined,
    createTime: timestampMessage(request.createTime),
    ...(answerTime === undefined ? {} : { answerTime: timestampMessage(answerTime) }),
  };
  return create(ProxiedRequestSchema, message);
}

import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import * as store from "../store/audit.ts";
import type { Database } from "../store/database.ts";
import {
  detachedUntil,
  eventMessage,
  filterFrom,
  positionFrom,
  positionParts,
  refuseDetached,
  resumeTokenOf,
} from "./audit-message.ts";
import { principalOf } from "./auth.ts";
import { cutPage, pageSize } from "./page.ts";

/** What an operator and an auditor read of the audit. */
export function auditMethods(database: Database): Pick<ServiceImpl<typeof AdminService>, "listAuditEvents"> {
  return {
    async listAuditEvents(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const { newestFirst } = request;
      const after = positionFrom(request.pageToken);
      const filter = filterFrom(request);
      const { events, seen, detachment } = await store.listAuditEvents(database, workspace, {
        filter,
        newestFirst,
        after,
        limit: size + 1,
      });
      if (!newestFirst) refuseDetached(after, detachment);
      const page = cutPage("audit_events", events, size, positionParts);
      const resumeToken = page.nextPageToken === "" ? resumeTokenOf(seen, after) : page.nextPageToken;
      return {
        auditEvents: page.rows.map(eventMessage),
        nextPageToken: page.nextPageToken,
        resumeToken: newestFirst ? "" : resumeToken,
        ...detachedUntil(detachment),
      };
    },
  };
}

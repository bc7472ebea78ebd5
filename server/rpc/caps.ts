import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CreateCapRequestSchema } from "@holdfast/api/holdfast/v1/cap_pb";
import { type Cap, labelProblem } from "../domain/cap.ts";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import * as store from "../store/cap.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import { principalOf } from "./auth.ts";
import { capMessage, etagOf, usageMessage } from "./cap-message.ts";
import { capWarnings } from "./cap-warnings.ts";
import { capChange, capUpdate, createdDetail, newCap, requireTimeZone } from "./cap-policy.ts";
import { creationRequest, requireSameRequest } from "./creation-request.ts";
import { requireCapEnd } from "./future.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type CapMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "createCap" | "getCap" | "updateCap" | "listCaps" | "archiveCap"
>;

/** Making, changing, ending and reading caps. Each change returns after every grant that saw the cap as it was. */
export function capMethods(database: Database, changePolicy: ChangePolicy): CapMethods {
  return {
    async createCap(request, context) {
      const principal = principalOf(context.values);
      const cap = newCap(request.capId, request.cap);
      const sent = creationRequest(CreateCapRequestSchema, request, request.requestId);
      await requireTimeZone(database, cap, "cap");
      const event = {
        principal,
        kind: "cap.created",
        traceId: currentTraceId() ?? "",
        detail: createdDetail(cap),
      };
      const created = await changePolicy(event, async (transaction, audit) => {
        const before =
          sent === undefined
            ? undefined
            : await store.findCapByRequest(transaction, principal.workspace, sent.requestId);
        if (sent === undefined || before === undefined) {
          await requireCapEnd(transaction, cap.endTime, "cap.end_time");
          return await store.insertCap(transaction, principal.workspace, cap, sent);
        }
        requireSameRequest(sent, before.sha256, `caps/${before.cap.capId}`);
        audit.unchanged();
        return before.cap;
      });
      return { cap: capMessage(created), warnings: capWarnings(created) };
    },
    async getCap(request, context) {
      const { workspace } = principalOf(context.values);
      const cap = requireCap(request.name, await store.getCap(database, workspace, capIdOf(request.name)));
      const counter = { window: request.window, customerId: cap.perCustomer ? request.customerId : "" };
      const problem = labelProblem(cap, counter.window);
      if (problem !== undefined && counter.window !== "") {
        throw invalidField("window", problem);
      }
      const isUnnamed =
        (cap.window === "BILLING_PERIOD" && counter.window === "") || (cap.perCustomer && counter.customerId === "");
      const usage = isUnnamed ? undefined : await store.getCapUsage(database, workspace, cap.capId, counter);
      return { cap: capMessage(cap), ...(usage === undefined ? {} : { usage: usageMessage(cap, usage) }) };
    },
    async updateCap(request, context) {
      const principal = principalOf(context.values);
      const update = capUpdate(request.cap, request.updateMask?.paths ?? []);
      const { name, etag } = update.cap;
      const capId = capIdOf(name);
      const detail = { cap: capId, fields: update.paths };
      const event = { principal, kind: "cap.updated", traceId: currentTraceId() ?? "", detail };
      const updated = await changePolicy(event, async (transaction, audit) => {
        const before = requireCap(name, await store.getCap(transaction, principal.workspace, capId));
        requireEtag(before, etag);
        if (before.archiveTime !== undefined) throw archived(name);
        const after = await store.updateCap(transaction, principal.workspace, capId, capChange(before, update));
        audit.detail({ before: changing(before), after: changing(after) });
        return after;
      });
      return { cap: capMessage(updated), warnings: capWarnings(updated) };
    },
    async listCaps(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const [after = ""] = decodePageToken("caps", request.pageToken, 1) ?? [];
      const { includeArchived } = request;
      const rows = await store.listCaps(database, workspace, { after, includeArchived, limit: size + 1 });
      const page = cutPage("caps", rows, size, (cap) => [cap.capId]);
      return { caps: page.rows.map(capMessage), nextPageToken: page.nextPageToken };
    },
    async archiveCap({ name, etag, reason }, context) {
      const principal = principalOf(context.values);
      const capId = capIdOf(name);
      const event = {
        principal,
        kind: "cap.archived",
        traceId: currentTraceId() ?? "",
        detail: { cap: capId, reason },
      };
      const cap = await changePolicy(event, async (transaction, audit) => {
        const before = requireCap(name, await store.getCap(transaction, principal.workspace, capId));
        if (before.archiveTime !== undefined) {
          // Whoever repeats it because the answer was lost has the old etag.
          audit.unchanged();
          return before;
        }
        requireEtag(before, etag);
        return requireCap(name, await store.archiveCap(transaction, principal.workspace, capId, reason));
      });
      return { cap: capMessage(cap) };
    },
  };
}

/** Throws INVALID_FIELD. The database alone computes windows, so it alone knows the zones. */
/** What of a cap may change, as the audit shows it. */
function changing({ limit, maxPerSpend, refundsRestoreHeadroom, enforcement }: Cap): object {
  return { limit, maxPerSpend, refundsRestoreHeadroom, enforcement };
}

function capIdOf(name: string): string {
  const match = /^caps\/([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)$/.exec(name);
  if (match === null) throw invalidField("cap.name", 'must be a resource name, for example "caps/daily".');
  return match[1] as string;
}

function requireCap(name: string, cap: Cap | undefined): Cap {
  if (cap !== undefined) return cap;
  throw new HoldfastError("NOT_FOUND", `There is no cap ${name}. ListCaps shows which there are.`, {
    metadata: { name },
  });
}

function requireEtag(cap: Cap, etag: string): void {
  if (etag === "" || etag === etagOf(cap)) return;
  const name = `caps/${cap.capId}`;
  throw new HoldfastError("ETAG_MISMATCH", `${name} has changed since it was read. Read it again and repeat.`, {
    metadata: { name },
  });
}

function archived(name: string): HoldfastError {
  return new HoldfastError("STATE_NOT_ALLOWED", `${name} is archived for ever and counts nothing; create a new cap.`, {
    metadata: { name, state: "ARCHIVED" },
  });
}

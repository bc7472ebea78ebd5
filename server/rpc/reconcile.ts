import type { ServiceImpl } from "@connectrpc/connect";
import type {
  ReportReconciliationRequest,
  SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { invalidField } from "../domain/errors.ts";
import { parseAuthorizationName } from "../domain/spend.ts";
import type { Database } from "../store/database.ts";
import * as store from "../store/reconcile.ts";
import { principalOf } from "./auth.ts";
import { authorizationPosition, authorizationPositionOf } from "./authorizations.ts";
import { authorizationMessage, findingFrom, microsFrom } from "./convert.ts";
import { encodeLookToken, lookFrom } from "./look.ts";
import { cutPage, pageSize } from "./page.ts";
import { followForMsDefault, requireSettled } from "./settle.ts";
import { currentTraceId } from "./trace.ts";

type ReconcileMethods = Pick<
  ServiceImpl<typeof SpendControlService>,
  "listUnsettledAuthorizations" | "listCommittedAuthorizations" | "reportReconciliation"
>;

/** What a service needs to ask its own vendor about what is not settled. */
export function reconcileMethods(database: Database): ReconcileMethods {
  return {
    async listUnsettledAuthorizations(request, context) {
      const { workspace, id } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const lookToken = encodeLookToken(await store.readLookTime(database));
      const rows = await store.listUnsettled(database, workspace, {
        vaultKeyId: id,
        includeNotDue: request.includeNotDue,
        after: authorizationPositionOf("unsettled", request.pageToken),
        limit: size + 1,
      });
      const page = cutPage("unsettled", rows, size, authorizationPosition);
      const { nextPageToken } = page;
      return { authorizations: page.rows.map(authorizationMessage), nextPageToken, lookToken };
    },
    async listCommittedAuthorizations(request, context) {
      const { workspace, id } = principalOf(context.values);
      if (request.startTime === undefined) throw invalidField("start_time", "is required.");
      const size = pageSize(request.pageSize);
      const rows = await store.listCommitted(database, workspace, {
        vaultKeyId: id,
        startTime: microsFrom(request.startTime, "start_time"),
        after: authorizationPositionOf("committed", request.pageToken),
        limit: size + 1,
      });
      const page = cutPage("committed", rows, size, authorizationPosition);
      return { authorizations: page.rows.map(authorizationMessage), nextPageToken: page.nextPageToken };
    },
    async reportReconciliation(request, context) {
      const { workspace, id } = principalOf(context.values);
      const finding = findingFrom(request.finding);
      requireObjectOf(request, finding === "OPEN");
      const result = await store.reportReconciliation(database, workspace, {
        actor: { kind: "vault_key", id },
        authorization: parseAuthorizationName(request.authorization, "authorization"),
        finding,
        vendorReference: request.vendorReference,
        vendorState: request.vendorState,
        note: request.note,
        followForMs: followForMsDefault,
        traceId: currentTraceId() ?? "",
        ...lookFrom(request.look, finding === "ABSENT"),
      });
      return { authorization: authorizationMessage(requireSettled(result, midCall)) };
    },
  };
}

const midCall =
  "An attempt is in the middle of its call to the vendor. Ask again once its hold has run out, or it has ended.";

/** An open object is named with its state, anything else has none. */
function requireObjectOf({ vendorReference, vendorState }: ReportReconciliationRequest, isOpen: boolean): void {
  if (!isOpen && vendorReference !== "") throw invalidField("vendor_reference", "is given with OPEN only.");
  if (vendorReference === "" && vendorState !== "") {
    throw invalidField("vendor_state", "is given together with vendor_reference only.");
  }
  if (vendorReference !== "" && vendorState === "") {
    throw invalidField("vendor_state", "is required with vendor_reference: name the state of the object.");
  }
}

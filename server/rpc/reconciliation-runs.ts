import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  type ReconciliationDifference as DifferenceMessage,
  ReconciliationDifferenceKind as DifferenceKindMessage,
  ReconciliationDifferenceSchema,
  type ReconciliationRun as RunMessage,
  ReconciliationRunSchema,
  ReconciliationRunState as RunStateMessage,
  type StartReconciliationRunRequest,
  StartReconciliationRunRequestSchema,
} from "@holdfast/api/holdfast/v1/reconciliation_run_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type {
  ReconciliationDifference,
  ReconciliationDifferenceKind,
  ReconciliationRun,
  ReconciliationRunState,
} from "../domain/reconciliation-run.ts";
import type { Database } from "../store/database.ts";
import type { ChangePolicy } from "../store/policy.ts";
import * as store from "../store/reconciliation-run.ts";
import { credentialOfVendor } from "../store/vendor-credential.ts";
import { principalOf } from "./auth.ts";
import { microsFrom, moneyMessage, timestampMessage } from "./convert.ts";
import { creationRequest, requireSameRequest } from "./creation-request.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

type RunMethods = Pick<
  ServiceImpl<typeof AdminService>,
  "startReconciliationRun" | "getReconciliationRun" | "listReconciliationRuns" | "listReconciliationDifferences"
>;

const stateOf = {
  PENDING: RunStateMessage.PENDING,
  RUNNING: RunStateMessage.RUNNING,
  DONE: RunStateMessage.DONE,
  FAILED: RunStateMessage.FAILED,
} as const satisfies Record<ReconciliationRunState, RunStateMessage>;

const kindOf = {
  UNSETTLED: DifferenceKindMessage.UNSETTLED,
  MOVEMENT_MISSING: DifferenceKindMessage.MOVEMENT_MISSING,
  AMOUNT_DIFFERS: DifferenceKindMessage.AMOUNT_DIFFERS,
  AUTHORIZATION_MISSING: DifferenceKindMessage.AUTHORIZATION_MISSING,
  CONTRADICTION: DifferenceKindMessage.CONTRADICTION,
} as const satisfies Record<ReconciliationDifferenceKind, DifferenceKindMessage>;

/** Comparisons of both sides: starting them, and reading what they found. `random` returns that many random bytes. */
export function reconciliationRunMethods(
  database: Database,
  changePolicy: ChangePolicy,
  random: (size: number) => Uint8Array,
): RunMethods {
  return {
    async startReconciliationRun(request, context) {
      const principal = principalOf(context.values);
      const { workspace } = principal;
      const span = spanOf(request);
      const runId = Buffer.from(random(16)).toString("hex");
      const sent = creationRequest(StartReconciliationRunRequestSchema, request, request.requestId);
      const detail = { reconciliation_run: runId, vendor: request.vendor };
      const event = { principal, kind: "reconciliation_run.started", traceId: currentTraceId() ?? "", detail };
      const run = await changePolicy(event, async (transaction, audit) => {
        const before =
          sent === undefined ? undefined : await store.findRunByRequest(transaction, workspace, sent.requestId);
        if (sent !== undefined && before !== undefined) {
          requireSameRequest(sent, before.sha256, `reconciliationRuns/${before.run.runId}`);
          audit.unchanged();
          return before.run;
        }
        if ((await credentialOfVendor(transaction, workspace, request.vendor)) === undefined) {
          throw new HoldfastError(
            "STATE_NOT_ALLOWED",
            `There is no credential for ${request.vendor}; store one with CreateVendorCredential.`,
            { metadata: { state: "NO_VENDOR_CREDENTIAL" } },
          );
        }
        return await store.insertReconciliationRun(
          transaction,
          workspace,
          { runId, vendor: request.vendor, ...span },
          sent,
        );
      });
      return { reconciliationRun: runMessage(run) };
    },
    async getReconciliationRun({ name }, context) {
      const { workspace } = principalOf(context.values);
      return { reconciliationRun: runMessage(await find(database, workspace, name, "name")) };
    },
    async listReconciliationRuns(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const rows = await store.listReconciliationRuns(database, workspace, positionOf(request.pageToken), size + 1);
      const page = cutPage("reconciliation_runs", rows, size, ({ createTime, runId }) => [`${createTime}`, runId]);
      return { reconciliationRuns: page.rows.map(runMessage), nextPageToken: page.nextPageToken };
    },
    async listReconciliationDifferences(request, context) {
      const { workspace } = principalOf(context.values);
      const { runId } = await find(database, workspace, request.parent, "parent");
      const size = pageSize(request.pageSize);
      const [after = "0"] = decodePageToken("reconciliation_differences", request.pageToken, 1) ?? [];
      if (!/^\d{1,9}$/.test(after)) throw notOurs();
      const filter = { runId, after: Number(after), limit: size + 1 };
      const rows = await store.listReconciliationDifferences(database, workspace, filter);
      const page = cutPage("reconciliation_differences", rows, size, ({ n }) => [`${n}`]);
      return { differences: page.rows.map(differenceMessage), nextPageToken: page.nextPageToken };
    },
  };
}

/** The store knows what the time is, and refuses a span that is none. */
function spanOf({ startTime, endTime }: StartReconciliationRunRequest) {
  return {
    startTime: startTime === undefined ? undefined : microsFrom(startTime, "start_time"),
    endTime: endTime === undefined ? undefined : microsFrom(endTime, "end_time"),
  };
}

async function find(database: Database, workspace: string, name: string, field: string): Promise<ReconciliationRun> {
  const match = /^reconciliationRuns\/([0-9a-f]{32})$/.exec(name);
  if (match === null) throw invalidField(field, "must be a name that StartReconciliationRun has answered.");
  const run = await store.getReconciliationRun(database, workspace, match[1] as string);
  if (run !== undefined) return run;
  throw new HoldfastError("NOT_FOUND", `There is no ${name}. ListReconciliationRuns shows which there are.`, {
    metadata: { name },
  });
}

function positionOf(token: string): Pick<ReconciliationRun, "createTime" | "runId"> | undefined {
  const parts = decodePageToken("reconciliation_runs", token, 2);
  if (parts === undefined) return undefined;
  const [time = "", runId = ""] = parts;
  if (!/^\d{1,18}$/.test(time) || !/^[0-9a-f]{32}$/.test(runId)) throw notOurs();
  return { createTime: BigInt(time), runId };
}

function notOurs(): HoldfastError {
  return invalidField("page_token", "is not one of ours; take next_page_token of the page before.");
}

function runMessage(run: ReconciliationRun): RunMessage {
  return create(ReconciliationRunSchema, {
    name: `reconciliationRuns/${run.runId}`,
    vendor: run.vendor,
    state: stateOf[run.state],
    startTime: timestampMessage(run.startTime),
    endTime: timestampMessage(run.endTime),
    createTime: timestampMessage(run.createTime),
    ...(run.finishTime === undefined ? {} : { finishTime: timestampMessage(run.finishTime) }),
    message: run.message,
    readCount: run.readCount,
    authorizationCount: run.authorizationCount,
    committedCount: run.committedCount,
    voidedCount: run.voidedCount,
    movementCount: run.movementCount,
    differenceCount: run.differenceCount,
  });
}

function differenceMessage(difference: ReconciliationDifference): DifferenceMessage {
  const { authorized, charged, mark } = difference;
  return create(ReconciliationDifferenceSchema, {
    kind: kindOf[difference.kind],
    authorization: mark === "" ? "" : `authorizations/${mark}`,
    vendorReference: difference.vendorReference,
    vendorAccount: difference.vendorAccount,
    message: difference.message,
    ...(authorized === undefined ? {} : { authorizedAmount: moneyMessage(authorized) }),
    ...(charged === undefined ? {} : { vendorAmount: moneyMessage(charged) }),
  });
}

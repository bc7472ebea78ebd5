import { create } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { type AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import {
  ContradictionKind,
  type Contradiction as ContradictionMessage,
  ContradictionSchema,
} from "@holdfast/api/holdfast/v1/contradiction_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import { type Contradiction, formatAuthorizationName } from "../domain/spend.ts";
import * as store from "../store/contradiction.ts";
import type { Database } from "../store/database.ts";
import { principalOf } from "./auth.ts";
import { moneyMessage, timestampMessage } from "./convert.ts";
import { cutPage, decodePageToken, pageSize } from "./page.ts";
import { currentTraceId } from "./trace.ts";

const kindOf = {
  COMMIT_AFTER_VOID: ContradictionKind.COMMIT_AFTER_VOID,
  OTHER_REFERENCE: ContradictionKind.OTHER_REFERENCE,
  OTHER_AMOUNT: ContradictionKind.OTHER_AMOUNT,
  REFERENCE_OF_ANOTHER_SPEND: ContradictionKind.REFERENCE_OF_ANOTHER_SPEND,
} as const satisfies Record<Contradiction["kind"], ContradictionKind>;

/** What an operator reads of second truths, and closing one that was dealt with. */
export function contradictionMethods(
  database: Database,
): Pick<ServiceImpl<typeof AdminService>, "listContradictions" | "closeContradiction"> {
  return {
    async listContradictions(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const filter = {
        includeClosed: request.includeClosed,
        after: positionOf(request.pageToken),
        limit: size + 1,
      };
      const [rows, openCount] = await Promise.all([
        store.listContradictions(database, workspace, filter),
        store.countOpenContradictions(database, workspace),
      ]);
      const page = cutPage("contradictions", rows, size, (last) => [`${last.createTime}`, last.contradictionId]);
      return { contradictions: page.rows.map(contradictionMessage), nextPageToken: page.nextPageToken, openCount };
    },
    async closeContradiction(request, context) {
      const { workspace, id } = principalOf(context.values);
      const closed = await store.closeContradiction(database, workspace, {
        contradictionId: request.name.replace(/^contradictions\//, ""),
        operatorId: id,
        reason: request.reason,
        traceId: currentTraceId() ?? "",
      });
      if (closed === undefined) {
        throw new HoldfastError(
          "NOT_FOUND",
          "There is no such contradiction. Take a name that ListContradictions gives.",
        );
      }
      return { contradiction: contradictionMessage(closed) };
    },
  };
}

export function contradictionMessage(contradiction: Contradiction): ContradictionMessage {
  const { amount, closeTime } = contradiction;
  return create(ContradictionSchema, {
    name: `contradictions/${contradiction.contradictionId}`,
    kind: kindOf[contradiction.kind],
    authorization: formatAuthorizationName(contradiction.authorization),
    vendor: contradiction.vendor,
    vendorAccount: contradiction.vendorAccount,
    vendorReference: contradiction.vendorReference,
    amount: moneyMessage(amount),
    countedAmount: moneyMessage({ currency: amount.currency, micros: contradiction.counted }),
    attemptId: contradiction.attemptId,
    createTime: timestampMessage(contradiction.createTime),
    closeReason: contradiction.closeReason ?? "",
    ...(closeTime === undefined ? {} : { closeTime: timestampMessage(closeTime) }),
  });
}

function positionOf(token: string): store.ContradictionFilter["after"] {
  const parts = decodePageToken("contradictions", token, 2);
  if (parts === undefined) return undefined;
  const [time = "", contradictionId = ""] = parts;
  if (!/^\d{1,18}$/.test(time) || !/^[0-9a-f]{32}$/.test(contradictionId)) {
    throw invalidField("page_token", "is not one of ours; take next_page_token of the page before.");
  }
  return { createTime: BigInt(time), contradictionId };
}

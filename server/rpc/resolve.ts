import type { ServiceImpl } from "@connectrpc/connect";
import type { AdminService, ResolveAuthorizationRequest } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { invalidField } from "../domain/errors.ts";
import { type CommitCommand, parseAuthorizationName } from "../domain/spend.ts";
import type { Database } from "../store/database.ts";
import type { GroupCommit } from "../store/group-commit.ts";
import { listInDoubt } from "../store/reconcile.ts";
import { resolveVoid } from "../store/resolve.ts";
import type { CommitResult, Settled } from "../store/spend.ts";
import { type Principal, principalOf } from "./auth.ts";
import { authorizationPositionOf } from "./authorizations.ts";
import { authorizationMessage, durationMessage, moneyFrom } from "./convert.ts";
import { cutPage, pageSize } from "./page.ts";
import { midCall, requireSettled } from "./settle.ts";
import { currentTraceId } from "./trace.ts";

export interface ResolveDependencies {
  readonly database: Database;
  readonly commits: GroupCommit<CommitCommand, CommitResult>;
}

type ResolveMethods = Pick<ServiceImpl<typeof AdminService>, "listInDoubtAuthorizations" | "resolveAuthorization">;

/** What an operator sees of what is in doubt, and settling it on his word. */
export function resolveMethods(dependencies: ResolveDependencies): ResolveMethods {
  return {
    async listInDoubtAuthorizations(request, context) {
      const { workspace } = principalOf(context.values);
      const size = pageSize(request.pageSize);
      const position = authorizationPositionOf("in_doubt", request.pageToken);
      const found = await listInDoubt(dependencies.database, workspace, {
        after: position === undefined ? undefined : { ...position, inDoubtTime: position.grantTime },
        limit: size + 1,
      });
      const page = cutPage("in_doubt", found.authorizations, size, (last) => [
        `${last.inDoubtTime ?? 0n}`,
        last.spendKey,
        `${last.generation}`,
      ]);
      return {
        authorizations: page.rows.map(authorizationMessage),
        nextPageToken: page.nextPageToken,
        totalCount: found.totalCount,
        ...(found.oldestAge === undefined ? {} : { oldestAge: durationMessage(found.oldestAge) }),
      };
    },
    async resolveAuthorization(request, context) {
      const resolved = await resolve(dependencies, principalOf(context.values), request);
      return { authorization: authorizationMessage(requireSettled(resolved, midCall(resolved))) };
    },
  };
}

// An operator who gave up waiting has still said what is true.
const neverAborted = new AbortController().signal;

async function resolve(
  { database, commits }: ResolveDependencies,
  { workspace, id }: Principal,
  { name, reason, resolution }: ResolveAuthorizationRequest,
): Promise<Settled> {
  const authorization = parseAuthorizationName(name, "name");
  const traceId = currentTraceId() ?? "";
  switch (resolution.case) {
    case "committed": {
      const command: CommitCommand = {
        actor: { kind: "operator", id },
        authorization,
        amount: moneyFrom(resolution.value.amount, "committed.amount", true),
        vendorReference: resolution.value.vendorReference,
        attemptId: "",
        traceId,
        resolution: reason,
      };
      return await commits.submit(workspace, command, neverAborted);
    }
    case "voided": {
      const { vendorReference } = resolution.value;
      return await resolveVoid(database, workspace, {
        operatorId: id,
        authorization,
        vendorReference,
        reason,
        traceId,
      });
    }
    default:
      throw invalidField("resolution", "is required: set one of committed, voided.");
  }
}

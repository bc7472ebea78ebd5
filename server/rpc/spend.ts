import { create } from "@bufbuild/protobuf";
import type { HandlerContext, ServiceImpl } from "@connectrpc/connect";
import {
  type AuthorizeSpendRequest,
  AuthorizeSpendRequestSchema,
  type AuthorizeSpendResponse,
  type CommitSpendRequest,
  CommitSpendRequestSchema,
  type CommitSpendResponse,
  CommitSpendResponseSchema,
  type SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import {
  type Authorization,
  type AuthorizeCommand,
  type AuthorizeDecision,
  type CommitCommand,
  parseAuthorizationName,
} from "../domain/spend.ts";
import type { Database } from "../store/database.ts";
import type { GroupCommit } from "../store/group-commit.ts";
import * as store from "../store/spend.ts";
import { actorOf, type Principal, principalOf } from "./auth.ts";
import { authorizeCommand, authorizeResponse } from "./authorize.ts";
import { authorizationMessage, evidenceFrom, millisecondsFrom, moneyFrom } from "./convert.ts";
import { type ErrorLog, toRequestError } from "./errors.ts";
import { lookFrom } from "./look.ts";
import { followForMsDefault, midCall, requireSettled } from "./settle.ts";
import { currentTraceId, inTraceOf } from "./trace.ts";
import { validateMessage } from "./validate.ts";

export interface SpendDependencies {
  readonly database: Database;
  readonly authorizations: GroupCommit<AuthorizeCommand, AuthorizeDecision>;
  readonly commits: GroupCommit<CommitCommand, store.CommitResult>;
  /** Judges one command and takes everything back. */
  readonly rehearse: (workspace: string, command: AuthorizeCommand) => Promise<AuthorizeDecision>;
  readonly log: ErrorLog;
}

type SpendMethods = Pick<
  ServiceImpl<typeof SpendControlService>,
  | "authorizeSpend"
  | "batchAuthorizeSpend"
  | "commitSpend"
  | "batchCommitSpend"
  | "voidSpend"
  | "reportUnknown"
  | "bindVendorReference"
  | "getAuthorization"
>;

/** Authorizing, settling and reading spends. */
export function spendMethods(dependencies: SpendDependencies): SpendMethods {
  const { database, log } = dependencies;
  return {
    authorizeSpend: (request, context) =>
      inTraceOf(request.traceParent, () => authorize(dependencies, request, context)),
    async batchAuthorizeSpend(request, context) {
      const answer = (one: AuthorizeSpendRequest) =>
        inTraceOf(one.traceParent, () =>
          answerOrError(log, () => authorize(dependencies, validated(AuthorizeSpendRequestSchema, one), context)),
        );
      // A dry run is judged in its place: after what comes before it and without what comes after it.
      if (request.requests.some((one) => one.dryRun)) return { results: await inTurn(request.requests, answer) };
      return { results: await Promise.all(request.requests.map(answer)) };
    },
    commitSpend: (request, context) => inTraceOf(request.traceParent, () => commit(dependencies, request, context)),
    batchCommitSpend: async (request, context) => ({
      results: await Promise.all(
        request.requests.map((one) =>
          inTraceOf(one.traceParent, () =>
            answerOrError(log, () => commit(dependencies, validated(CommitSpendRequestSchema, one), context)),
          ),
        ),
      ),
    }),
    async voidSpend(request, context) {
      const principal = principalOf(context.values);
      if (request.evidence === VoidEvidence.OPERATOR && request.reason === "") {
        throw invalidField("reason", "is required with OPERATOR; say how it was found out that no charge exists.");
      }
      const result = await store.voidSpend(database, principal.workspace, {
        actor: actorOf(principal),
        authorization: parseAuthorizationName(request.authorization, "authorization"),
        attemptId: request.attemptId,
        evidence: evidenceFrom(request.evidence),
        vendorStatus: request.vendorStatus,
        vendorReplayed: request.vendorReplayed,
        vendorReference: request.vendorReference,
        reason: request.reason,
        traceId: currentTraceId() ?? "",
        ...lookFrom(request.look, request.evidence === VoidEvidence.ABSENT_AFTER_QUARANTINE),
      });
      return { authorization: authorizationMessage(requireSettled(result, midCall(result))) };
    },
    async reportUnknown(request, context) {
      const principal = principalOf(context.values);
      const result = await store.reportUnknown(database, principal.workspace, {
        ...attemptOf(principal, request),
        reason: request.reason,
      });
      return { authorization: authorizationMessage(requireSettled(result)) };
    },
    async bindVendorReference(request, context) {
      const principal = principalOf(context.values);
      const result = await store.bindVendorReference(database, principal.workspace, {
        ...attemptOf(principal, request),
        vendorReference: request.vendorReference,
        vendorState: request.vendorState,
        followForMs:
          request.followFor === undefined ? followForMsDefault : millisecondsFrom(request.followFor, "follow_for"),
      });
      return { authorization: authorizationMessage(requireSettled(result)) };
    },
    async getAuthorization(request, context) {
      const principal = principalOf(context.values);
      const found = await lookUp(database, principal, request.lookup);
      return { authorization: authorizationMessage(requireVisible(principal, found)) };
    },
  };
}

async function authorize(
  { authorizations, rehearse }: SpendDependencies,
  request: AuthorizeSpendRequest,
  context: HandlerContext,
): Promise<AuthorizeSpendResponse> {
  const principal = principalOf(context.values);
  const command = authorizeCommand(request, principal.id, currentTraceId() ?? "");
  const decision = request.dryRun
    ? withoutRow(await rehearse(principal.workspace, command))
    : await authorizations.submit(principal.workspace, command, context.signal, deadlineOf(context));
  return authorizeResponse(command, decision);
}

function deadlineOf(context: HandlerContext): number {
  const leftMs = context.timeoutMs();
  return leftMs === undefined ? Infinity : performance.now() + leftMs;
}

// The charge exists, whether or not its caller still waits: a process that was killed must not take the truth along.
const neverAborted = new AbortController().signal;

async function commit(
  { commits }: SpendDependencies,
  request: CommitSpendRequest,
  context: HandlerContext,
): Promise<CommitSpendResponse> {
  const principal = principalOf(context.values);
  const command: CommitCommand = {
    actor: actorOf(principal),
    authorization: parseAuthorizationName(request.authorization, "authorization"),
    amount: moneyFrom(request.amount, "amount", true),
    vendorReference: request.vendorReference,
    attemptId: request.attemptId,
    traceId: currentTraceId() ?? "",
  };
  const result = await commits.submit(principal.workspace, command, neverAborted);
  return create(CommitSpendResponseSchema, {
    authorization: authorizationMessage(requireSettled(result)),
    overCommitted: result.overCommitted,
  });
}

/** A dry run shows what exists, never the row of a generation that it has only rehearsed. */
function withoutRow(decision: AuthorizeDecision): AuthorizeDecision {
  return decision.disposition === "GRANTED" ? { ...decision, authorization: undefined } : decision;
}

function validated<
  Desc extends Parameters<typeof validateMessage>[0],
  Message extends Parameters<typeof validateMessage<Desc>>[1],
>(schema: Desc, message: Message): Message {
  validateMessage(schema, message);
  return message;
}

async function inTurn<One, Answer>(all: readonly One[], answer: (one: One) => Promise<Answer>): Promise<Answer[]> {
  const answers: Answer[] = [];
  for (const one of all) answers.push(await answer(one));
  return answers;
}

async function answerOrError<Response>(log: ErrorLog, answer: () => Promise<Response>) {
  try {
    return { result: { case: "response" as const, value: await answer() } };
  } catch (error) {
    return { result: { case: "error" as const, value: toRequestError(error, log) } };
  }
}

function attemptOf(principal: Principal, request: { authorization: string; attemptId: string }): store.AttemptCommand {
  return {
    vaultKeyId: principal.id,
    authorization: parseAuthorizationName(request.authorization, "authorization"),
    attemptId: request.attemptId,
    traceId: currentTraceId() ?? "",
  };
}

async function lookUp(
  database: Database,
  { workspace, role, id }: Principal,
  lookup: Parameters<SpendMethods["getAuthorization"]>[0]["lookup"],
): Promise<Authorization | undefined> {
  switch (lookup.case) {
    case "name":
      return await store.getAuthorization(database, workspace, parseAuthorizationName(lookup.value, "name"));
    case "vendorReference":
      return await store.getAuthorizationByReference(
        database,
        workspace,
        lookup.value,
        role === "vault_key" ? id : undefined,
      );
    default:
      throw invalidField("lookup", "is required: set one of name, vendor_reference.");
  }
}

/** A vault key sees its own authorizations only; another key's looks as if it did not exist. */
function requireVisible(principal: Principal, found: Authorization | undefined): Authorization {
  if (found !== undefined && (principal.role !== "vault_key" || found.vaultKeyId === principal.id)) return found;
  throw new HoldfastError("NOT_FOUND", "There is no such authorization. Check the name or the vendor reference.");
}

import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Client, Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { CapEnforcement } from "@holdfast/api/holdfast/v1/cap_pb";
import { ReconciliationFinding, VoidEvidence } from "@holdfast/api/holdfast/v1/spend_pb";
import { LeaseOutcome, SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Answer, Answers, Command, CounterName, Identity, System } from "./command.ts";
import { authorizationName } from "./model-world.ts";
import {
  authorizationAnswer,
  authorizationOf,
  authorizeAnswer,
  authorizeMessage,
  capMessage,
  commitMessage,
  denialAnswer,
  leaseAnswer,
  leaseAnswerName,
  leaseFence,
  lookMessage,
  money,
  refusalAnswer,
  usageAnswer,
  targetMessage,
  vaultKeyMessage,
} from "./rpc-message.ts";

export interface RpcSystemOptions {
  readonly transport: Transport;
  readonly operatorToken: string;
  /** Tokens of vault keys by id. Shared by the systems of several replicas. */
  readonly tokens: Map<string, string>;
  /** What caps count, by id: null for spends. Shared like the tokens. */
  readonly currencies: Map<string, string | null>;
  /** Sets the database clock. */
  readonly setClock: (now: number) => Promise<void>;
  /** Lets the expiry of holds run once in this workspace. */
  readonly sweep: () => Promise<void>;
}

type Spending = Client<typeof SpendControlService>;
type Request<Op extends Command["op"]> = Extract<Command, { op: Op }>;
type Headers = { readonly headers: { readonly authorization: string } };

/** A server behind its RPCs, in one workspace that is its own. */
export function createRpcSystem(options: RpcSystemOptions): System {
  const spending = createClient(SpendControlService, options.transport);
  const admin = createClient(AdminService, options.transport);
  const bearer = (token: string): Headers => ({ headers: { authorization: `Bearer ${token}` } });
  /** The names of the kill switches that were engaged last, by target. */
  const switches = new Map<string, string>();
  const operator = bearer(options.operatorToken);
  const as = (key: string | null): Headers => (key === null ? operator : bearer(options.tokens.get(key) ?? "none"));

  const administer = async (command: Command): Promise<Answer> => {
    switch (command.op) {
      case "createCap":
        await admin.createCap({ capId: command.cap, cap: capMessage(command) }, operator);
        options.currencies.set(command.cap, command.currency);
        return { error: null };
      case "updateCap": {
        await admin.updateCap(capUpdate(command, options.currencies.get(command.cap) ?? null), operator);
        return { error: null };
      }
      case "archiveCap":
        await admin.archiveCap({ name: `caps/${command.cap}`, reason: "history" }, operator);
        return { error: null };
      case "createVaultKey": {
        const vaultKey = vaultKeyMessage(command);
        const { token } = await admin.createVaultKey({ vaultKeyId: command.key, vaultKey }, operator);
        options.tokens.set(command.key, token);
        return { error: null };
      }
      case "suspendVaultKey":
        await admin.suspendVaultKey({ name: `vaultKeys/${command.key}`, reason: "history" }, operator);
        return { error: null };
      case "resumeVaultKey":
        await admin.resumeVaultKey({ name: `vaultKeys/${command.key}`, reason: "history" }, operator);
        return { error: null };
      case "updateVaultKey": {
        const { maxPerSpend, purposes } = command;
        const vaultKey = {
          name: `vaultKeys/${command.key}`,
          purposes: [...purposes],
          ...(maxPerSpend === null ? {} : { maxPerSpend: money(maxPerSpend.currency, maxPerSpend.amount) }),
        };
        await admin.updateVaultKey({ vaultKey, updateMask: { paths: ["purposes", "max_per_spend"] } }, operator);
        return { error: null };
      }
      case "rotateVaultKey": {
        const { token } = await admin.rotateVaultKey({ name: `vaultKeys/${command.key}`, overlap: {} }, operator);
        options.tokens.set(command.key, token);
        return { error: null };
      }
      case "engageSwitch": {
        const request = { target: targetMessage(command.target), reason: "history" };
        const engaged = await admin.engageKillSwitch(request, operator);
        switches.set(JSON.stringify(command.target), engaged.killSwitch?.name ?? "");
        return { error: null, open: Number(engaged.openAuthorizationCount) };
      }
      case "releaseSwitch": {
        const name = switches.get(JSON.stringify(command.target)) ?? `killSwitches/${"0".repeat(32)}`;
        await admin.releaseKillSwitch({ name, reason: "history" }, operator);
        return { error: null };
      }
      case "revokeVaultKey": {
        const revoked = await admin.revokeVaultKey({ name: `vaultKeys/${command.key}` }, operator);
        return { error: null, open: Number(revoked.openAuthorizationCount) };
      }
      case "resolve": {
        const { committed, reference } = command;
        const resolution =
          committed === null
            ? { case: "voided" as const, value: { vendorReference: reference } }
            : {
                case: "committed" as const,
                value: { amount: money(committed.currency, committed.amount), vendorReference: reference },
              };
        const request = { name: authorizationOf(command), resolution, reason: "history" };
        return authorizationAnswer((await admin.resolveAuthorization(request, operator)).authorization);
      }
      case "setClock":
        await options.setClock(command.now);
        return { error: null };
      case "sweep":
        await options.sweep();
        return { error: null };
      default:
        return await spend(spending, as, command);
    }
  };

  return {
    apply: async (command): Promise<Answers> => {
      if (command.op === "authorizeBatch") {
        const requests = command.requests.map(authorizeMessage);
        const { results } = await spending.batchAuthorizeSpend({ requests }, as(command.key));
        return results.map(({ result }) => batched(result, authorizeAnswer));
      }
      if (command.op === "commitBatch") {
        const requests = command.requests.map(commitMessage);
        const { results } = await spending.batchCommitSpend({ requests }, as(command.key));
        return results.map(({ result }) => batched(result, committedAnswer));
      }
      return [await answered(() => administer(command))];
    },
    usage: async ({ cap, window, customer }: CounterName) => {
      const request = { name: `caps/${cap}`, window, customerId: customer };
      return await answered(async () => {
        return usageAnswer((await admin.getCap(request, operator)).usage);
      });
    },
    authorization: async (identity: Identity, generation: number) => {
      const name = authorizationName(identity, generation);
      const lookup = { case: "name" as const, value: name };
      return await answered(async () =>
        authorizationAnswer((await spending.getAuthorization({ lookup }, operator)).authorization),
      );
    },
  };
}

function capUpdate({ cap, limit, restores, enforcement }: Request<"updateCap">, currency: string | null) {
  const isCount = currency === null;
  return {
    cap: {
      name: `caps/${cap}`,
      ...(limit === null ? {} : isCount ? { spendCountLimit: limit } : { limit: money(currency, limit) }),
      ...(restores === null ? {} : { refundsRestoreHeadroom: restores }),
      ...(enforcement === null ? {} : { enforcement: CapEnforcement[enforcement] }),
    },
    updateMask: {
      paths: [
        ...(limit === null ? [] : [isCount ? "spend_count_limit" : "limit"]),
        ...(restores === null ? [] : ["refunds_restore_headroom"]),
        ...(enforcement === null ? [] : ["enforcement"]),
      ],
    },
  };
}

async function spend(client: Spending, as: (key: string | null) => Headers, command: Command): Promise<Answer> {
  switch (command.op) {
    case "authorize":
      return authorizeAnswer(await client.authorizeSpend(authorizeMessage(command), as(command.key)));
    case "commit":
      return committedAnswer(await client.commitSpend(commitMessage(command), as(command.key)));
    case "void":
      return await voidSpend(client, as(command.key), command);
    case "reportUnknown": {
      const request = { authorization: authorizationOf(command), attemptId: command.attempt, reason: "history" };
      return authorizationAnswer((await client.reportUnknown(request, as(command.key))).authorization);
    }
    case "increase": {
      const request = {
        authorization: authorizationOf(command),
        amount: money(command.currency, command.amount),
        attemptId: command.attempt,
        ...leaseFence(command.fence),
      };
      const response = await client.increaseHold(request, as(command.key));
      return { ...authorizationAnswer(response.authorization), ...denialAnswer(response) };
    }
    case "bind": {
      const request = {
        authorization: authorizationOf(command),
        attemptId: command.attempt,
        vendorReference: command.reference,
        vendorState: command.vendorState,
        ...(command.followForMs === null ? {} : { followFor: durationFromMs(command.followForMs) }),
      };
      return authorizationAnswer((await client.bindVendorReference(request, as(command.key))).authorization);
    }
    case "report": {
      const request = {
        authorization: authorizationOf(command),
        finding: ReconciliationFinding[command.finding],
        vendorReference: command.reference,
        vendorState: command.vendorState,
        note: "history",
        look: lookMessage(command.look),
      };
      return authorizationAnswer((await client.reportReconciliation(request, as(command.key))).authorization);
    }
    case "acquireLease":
    case "renewLease":
    case "releaseLease":
      return await lease(client, as(command.key), command);
    default:
      throw new Error(`no RPC for ${command.op}`);
  }
}

/** Evidence that is an answer of the vendor. */
const vendorAnswers: readonly string[] = ["VENDOR_REFUSED", "NOT_EXECUTED"];

async function voidSpend(client: Spending, headers: Headers, command: Request<"void">): Promise<Answer> {
  const request = {
    authorization: authorizationOf(command),
    attemptId: command.attempt,
    evidence: VoidEvidence[command.evidence],
    vendorStatus: vendorAnswers.includes(command.evidence) ? command.vendorStatus : 0,
    vendorReplayed: vendorAnswers.includes(command.evidence) && command.replayed,
    vendorReference: command.reference,
    reason: "history",
    ...(command.look === undefined ? {} : { look: lookMessage(command.look) }),
  };
  return authorizationAnswer((await client.voidSpend(request, headers)).authorization);
}

async function lease(
  client: Spending,
  headers: Headers,
  command: Request<"acquireLease" | "renewLease" | "releaseLease">,
): Promise<Answer> {
  const common = { lease: command.lease, billingPeriod: command.period, holderId: command.holder };
  if (command.op === "acquireLease") {
    const response = await client.acquireBillingLease({ ...common, ttl: durationFromMs(command.ttlMs) }, headers);
    return { ...leaseAnswer(response.billingLease), answer: leaseAnswerName(response.answer) };
  }
  const held = { ...common, fencingToken: command.token };
  if (command.op === "renewLease") {
    const response = await client.renewBillingLease({ ...held, ttl: durationFromMs(command.ttlMs) }, headers);
    return { ...leaseAnswer(response.billingLease), renewed: response.renewed };
  }
  const outcome = command.completed ? LeaseOutcome.COMPLETED : LeaseOutcome.INCOMPLETE;
  const response = await client.releaseBillingLease({ ...held, outcome }, headers);
  return { ...leaseAnswer(response.billingLease), released: response.released };
}

function committedAnswer(response: Awaited<ReturnType<Spending["commitSpend"]>>): Answer {
  return { ...authorizationAnswer(response.authorization), overCommitted: response.overCommitted };
}

type BatchResult<T> =
  | { readonly case: "response"; readonly value: T }
  | { readonly case: "error"; readonly value: Parameters<typeof refusalAnswer>[0] }
  | { readonly case: undefined; readonly value?: undefined };

function batched<T>(result: BatchResult<T>, read: (response: T) => Answer): Answer {
  if (result.case === undefined) return { error: "NO_RESULT" };
  return result.case === "error" ? refusalAnswer(result.value) : read(result.value);
}

/** The answer of a call, or its refusal. A failure without a reason is no answer and ends the history. */
async function answered(call: () => Promise<Answer>): Promise<Answer> {
  try {
    return await call();
  } catch (cause) {
    const error = ConnectError.from(cause);
    const info = error.findDetails(ErrorInfoSchema)[0];
    if (info === undefined || error.code === Code.Internal) throw cause;
    return refusalAnswer(info);
  }
}

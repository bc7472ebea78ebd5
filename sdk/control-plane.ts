import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
import { type Client, Code, createClient, type Transport } from "@connectrpc/connect";
import {
  type AcquireBillingLeaseRequestSchema,
  type AcquireBillingLeaseResponse,
  type AuthorizeSpendRequestSchema,
  type AuthorizeSpendResponse,
  type BindVendorReferenceRequestSchema,
  type CommitSpendRequestSchema,
  type CommitSpendResponse,
  type IncreaseHoldRequestSchema,
  type IncreaseHoldResponse,
  type ReleaseBillingLeaseRequestSchema,
  type ReleaseBillingLeaseResponse,
  type RenewBillingLeaseRequestSchema,
  type RenewBillingLeaseResponse,
  type ReportUnknownRequestSchema,
  SpendControlService,
  type VoidSpendRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import { createLane, type Lane } from "./batch.ts";
import { createRetryBudget, withRetries } from "./retry.ts";
import { requestErrorToFailure, type RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";

type Rpc<Schema extends DescMessage, Answer> = (request: MessageInitShape<Schema>, deadline: number) => Promise<Answer>;
type AuthorizeInit = MessageInitShape<typeof AuthorizeSpendRequestSchema>;
type CommitInit = MessageInitShape<typeof CommitSpendRequestSchema>;

/**
 * The control plane with deadlines and safe retries built in. Every method rejects with an RpcFailure; `deadline` is
 * a reading of the runtime's clock, and no method outlives it.
 */
export interface ControlPlane {
  readonly authorize: Rpc<typeof AuthorizeSpendRequestSchema, AuthorizeSpendResponse>;
  readonly commit: Rpc<typeof CommitSpendRequestSchema, CommitSpendResponse>;
  readonly void: Rpc<typeof VoidSpendRequestSchema, unknown>;
  readonly reportUnknown: Rpc<typeof ReportUnknownRequestSchema, unknown>;
  readonly bind: Rpc<typeof BindVendorReferenceRequestSchema, unknown>;
  readonly increaseHold: Rpc<typeof IncreaseHoldRequestSchema, IncreaseHoldResponse>;
  getAuthorization(name: string, deadline: number): Promise<Authorization | undefined>;
  /** The authorization that a vendor object is bound to or was committed with; undefined if there is none. */
  findAuthorization(object: VendorObject, deadline: number): Promise<Authorization | undefined>;
  readonly acquireLease: Rpc<typeof AcquireBillingLeaseRequestSchema, AcquireBillingLeaseResponse>;
  readonly renewLease: Rpc<typeof RenewBillingLeaseRequestSchema, RenewBillingLeaseResponse>;
  readonly releaseLease: Rpc<typeof ReleaseBillingLeaseRequestSchema, ReleaseBillingLeaseResponse>;
}

/** An object at a vendor, in one of the vendor's accounts. */
export interface VendorObject {
  readonly vendor: string;
  /** Empty for the platform's own account. */
  readonly vendorAccount: string;
  readonly vendorReference: string;
}

// A try that hangs must leave time for another one, on another connection, before the whole deadline.
const TRY_TIMEOUT_MAX_MS = 10_000;

export function createControlPlane(transport: Transport, runtime: Runtime): ControlPlane {
  const client = createClient(SpendControlService, transport);
  const budget = createRetryBudget();
  const authorizeLane = createAuthorizeLane(client, runtime);
  const commitLane = createCommitLane(client, runtime);

  function retried<Answer>(deadline: number, call: (tryDeadline: number) => Promise<Answer>): Promise<Answer> {
    return withRetries({ runtime, budget, deadline, tryTimeoutMaxMs: TRY_TIMEOUT_MAX_MS }, call);
  }
  function unary<Request, Answer>(
    rpc: (request: Request, options: { timeoutMs: number }) => Promise<Answer>,
  ): (request: Request, deadline: number) => Promise<Answer> {
    return (request, deadline) =>
      retried(deadline, (tryDeadline) => rpc(request, { timeoutMs: wholeMs(tryDeadline - runtime.clock.now()) }));
  }
  const get = unary(client.getAuthorization);
  return {
    authorize: (request, deadline) => retried(deadline, (tryDeadline) => authorizeLane.submit(request, tryDeadline)),
    commit: (request, deadline) => retried(deadline, (tryDeadline) => commitLane.submit(request, tryDeadline)),
    void: unary(client.voidSpend),
    reportUnknown: unary(client.reportUnknown),
    bind: unary(client.bindVendorReference),
    getAuthorization: async (name, deadline) =>
      (await get({ lookup: { case: "name", value: name } }, deadline)).authorization,
    async findAuthorization(object, deadline) {
      try {
        return (await get({ lookup: { case: "vendorReference", value: object } }, deadline)).authorization;
      } catch (error) {
        if (toRpcFailure(error).rpcCode === Code.NotFound) return undefined;
        throw error;
      }
    },
    increaseHold: unary(client.increaseHold),
    acquireLease: unary(client.acquireBillingLease),
    renewLease: unary(client.renewBillingLease),
    releaseLease: unary(client.releaseBillingLease),
  };
}

/** gRPC carries a deadline as a whole number; a fraction makes the request malformed. */
function wholeMs(ms: number): number {
  return Math.max(1, Math.ceil(ms));
}

function createAuthorizeLane(
  client: Client<typeof SpendControlService>,
  runtime: Runtime,
): Lane<AuthorizeInit, AuthorizeSpendResponse> {
  return createLane<AuthorizeInit, AuthorizeSpendResponse>({
    name: "holdfast.batch_authorize",
    runtime,
    sendOne: (request, timeoutMs) => client.authorizeSpend(request, { timeoutMs: wholeMs(timeoutMs) }),
    async sendMany(requests, timeoutMs) {
      const { results } = await client.batchAuthorizeSpend(
        { requests: [...requests] },
        { timeoutMs: wholeMs(timeoutMs) },
      );
      return results.map(({ result }) => resultOrFailure(result));
    },
  });
}

function createCommitLane(
  client: Client<typeof SpendControlService>,
  runtime: Runtime,
): Lane<CommitInit, CommitSpendResponse> {
  return createLane<CommitInit, CommitSpendResponse>({
    name: "holdfast.batch_commit",
    runtime,
    sendOne: (request, timeoutMs) => client.commitSpend(request, { timeoutMs: wholeMs(timeoutMs) }),
    async sendMany(requests, timeoutMs) {
      const { results } = await client.batchCommitSpend({ requests: [...requests] }, { timeoutMs: wholeMs(timeoutMs) });
      return results.map(({ result }) => resultOrFailure(result));
    },
  });
}

function resultOrFailure<Answer>(
  result:
    | { case: "response"; value: Answer }
    | { case: "error"; value: Parameters<typeof requestErrorToFailure>[0] }
    | { case: undefined; value?: undefined },
): Answer | RpcFailure {
  switch (result.case) {
    case "response":
      return result.value;
    case "error":
      return requestErrorToFailure(result.value);
    default:
      return toRpcFailure(new Error("the server answered a request of a batch with nothing"));
  }
}

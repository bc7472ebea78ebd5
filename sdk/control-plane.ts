import { create, type DescMessage, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { type Client, Code, createClient, type Transport } from "@connectrpc/connect";
import {
  type AcquireBillingLeaseRequestSchema,
  type AcquireBillingLeaseResponse,
  type AuthorizeSpendRequest,
  AuthorizeSpendRequestSchema,
  type AuthorizeSpendResponse,
  type BindVendorReferenceRequestSchema,
  type CommitSpendRequest,
  CommitSpendRequestSchema,
  type CommitSpendResponse,
  type IncreaseHoldRequestSchema,
  type IncreaseHoldResponse,
  type ListCommittedAuthorizationsRequestSchema,
  type ListCommittedAuthorizationsResponse,
  type ListUnsettledAuthorizationsRequestSchema,
  type ListUnsettledAuthorizationsResponse,
  type ReleaseBillingLeaseRequestSchema,
  type ReleaseBillingLeaseResponse,
  type RenewBillingLeaseRequestSchema,
  type RenewBillingLeaseResponse,
  type ReportReconciliationRequestSchema,
  type ReportUnknownRequestSchema,
  SpendControlService,
  type VoidSpendRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Authorization } from "@holdfast/api/holdfast/v1/spend_pb";
import { createLane, type Lane } from "./batch.ts";
import { type RetryBudget, withRetries } from "./retry.ts";
import { overloadedFailure, requestErrorToFailure, type RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import { createSlots } from "./slots.ts";
import { injectTraceContext, inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** `signal` ends the waiting for a turn and between tries, but not a request that was sent. */
type Rpc<Schema extends DescMessage, Answer> = (
  request: MessageInitShape<Schema>,
  deadline: number,
  signal?: AbortSignal,
) => Promise<Answer>;
type Lookup = { case: "name"; value: string } | { case: "vendorReference"; value: VendorObject };

/**
 * The control plane with deadlines and safe retries built in. Every method rejects with an RpcFailure; `deadline` is
 * a reading of the runtime's clock, and no method outlives it, whatever the transport does. `authorize` rejects at once
 * while too much waits already.
 */
export interface ControlPlane {
  readonly authorize: Rpc<typeof AuthorizeSpendRequestSchema, AuthorizeSpendResponse>;
  readonly commit: Rpc<typeof CommitSpendRequestSchema, CommitSpendResponse>;
  readonly void: Rpc<typeof VoidSpendRequestSchema, unknown>;
  readonly reportUnknown: Rpc<typeof ReportUnknownRequestSchema, unknown>;
  readonly bind: Rpc<typeof BindVendorReferenceRequestSchema, unknown>;
  readonly increaseHold: Rpc<typeof IncreaseHoldRequestSchema, IncreaseHoldResponse>;
  /** An authorization by its name; undefined if there is none. */
  getAuthorization(name: string, deadline: number): Promise<Authorization | undefined>;
  /** The authorization that a vendor object is bound to or was committed with; undefined if there is none. */
  findAuthorization(object: VendorObject, deadline: number): Promise<Authorization | undefined>;
  readonly listUnsettled: Rpc<typeof ListUnsettledAuthorizationsRequestSchema, ListUnsettledAuthorizationsResponse>;
  readonly listCommitted: Rpc<typeof ListCommittedAuthorizationsRequestSchema, ListCommittedAuthorizationsResponse>;
  readonly reportReconciliation: Rpc<typeof ReportReconciliationRequestSchema, unknown>;
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

// Below the server's limit of concurrent calls on one connection, so that what waits, waits here with its deadline.
const UNARY_CONCURRENCY_MAX = 64;

export interface ControlPlaneOptions {
  readonly transport: Transport;
  readonly runtime: Runtime;
  readonly budget: RetryBudget;
  /** Sent with every call; undefined if the transport does that. */
  readonly vaultKey: string | undefined;
  /** How many authorizations may wait for their answer, and how many settlements may wait before none is asked for. */
  readonly maxQueued: number;
  /** How many settlements wait in the background. */
  readonly settlementsWaiting: () => number;
}

interface CallOptions {
  readonly timeoutMs: number;
  readonly headers: Headers;
}

export function createControlPlane(options: ControlPlaneOptions): ControlPlane {
  const { runtime, budget, maxQueued } = options;
  const client = createClient(SpendControlService, options.transport);
  const withHeaders = (timeoutMs: number): CallOptions => ({
    timeoutMs: wholeMs(timeoutMs),
    headers: callHeaders(options.vaultKey),
  });
  const authorizeLane = createAuthorizeLane(client, runtime, withHeaders);
  const commitLane = createCommitLane(client, runtime, withHeaders);
  const slots = createSlots(runtime, UNARY_CONCURRENCY_MAX);
  let authorizing = 0;

  // No budget: a lane that fails makes one request of all its callers' retries, and pauses.
  const inLane = <Request, Answer>(
    lane: Lane<Request, Answer>,
    request: Request,
    deadline: number,
    signal?: AbortSignal,
  ) =>
    withRetries({ runtime, deadline, tryTimeoutMaxMs: TRY_TIMEOUT_MAX_MS, signal }, (tryDeadline) =>
      lane.submit(request, tryDeadline, signal),
    );
  function unary<Request, Answer>(
    rpc: (request: Request, options: CallOptions) => Promise<Answer>,
  ): (request: Request, deadline: number, signal?: AbortSignal) => Promise<Answer> {
    return (request, deadline, signal) =>
      withRetries({ runtime, budget, deadline, tryTimeoutMaxMs: TRY_TIMEOUT_MAX_MS, signal }, (tryDeadline) =>
        slots.run(tryDeadline, () => rpc(request, withHeaders(tryDeadline - runtime.clock.now()))),
      );
  }
  const get = unary(client.getAuthorization);
  const [acquire, renew] = [unary(client.acquireBillingLease), unary(client.renewBillingLease)];
  const release = unary(client.releaseBillingLease);
  async function find(lookup: Lookup, deadline: number): Promise<Authorization | undefined> {
    try {
      return (await get({ lookup }, deadline)).authorization;
    } catch (error) {
      if (toRpcFailure(error).rpcCode === Code.NotFound) return undefined;
      throw error;
    }
  }
  return {
    async authorize(request, deadline, signal) {
      if (authorizing >= maxQueued) throw overloadedFailure(`${authorizing} authorizations wait for an answer`);
      const settling = options.settlementsWaiting();
      if (settling >= maxQueued) throw overloadedFailure(`${settling} settlements wait to be delivered`);
      authorizing += 1;
      try {
        return await inLane(authorizeLane, create(AuthorizeSpendRequestSchema, request), deadline, signal);
      } finally {
        authorizing -= 1;
      }
    },
    commit: (request, deadline, signal) =>
      inLane(commitLane, create(CommitSpendRequestSchema, request), deadline, signal),
    void: unary(client.voidSpend),
    reportUnknown: unary(client.reportUnknown),
    bind: unary(client.bindVendorReference),
    getAuthorization: (name, deadline) => find({ case: "name", value: name }, deadline),
    findAuthorization: (object, deadline) => find({ case: "vendorReference", value: object }, deadline),
    increaseHold: unary(client.increaseHold),
    listUnsettled: unary(client.listUnsettledAuthorizations),
    listCommitted: unary(client.listCommittedAuthorizations),
    reportReconciliation: unary(client.reportReconciliation),
    acquireLease: (request, ...waiting) =>
      inSpan("holdfast.acquire_lease", leaseOf(request), () => acquire(request, ...waiting)),
    renewLease: (request, ...waiting) =>
      inSpan("holdfast.renew_lease", leaseOf(request), () => renew(request, ...waiting)),
    releaseLease: (request, ...waiting) =>
      inSpan("holdfast.release_lease", leaseOf(request), () => release(request, ...waiting)),
  };
}

function leaseOf({ lease = "", billingPeriod = "" }: { readonly lease?: string; readonly billingPeriod?: string }) {
  return { [ATTRIBUTES.lease]: lease, [ATTRIBUTES.billingPeriod]: billingPeriod };
}

function callHeaders(vaultKey: string | undefined): Headers {
  const headers = new Headers();
  if (vaultKey !== undefined) headers.set("Authorization", `Bearer ${vaultKey}`);
  injectTraceContext(headers);
  return headers;
}

/** gRPC carries a deadline as a whole number; a fraction makes the request malformed. */
function wholeMs(ms: number): number {
  return Math.max(1, Math.ceil(ms));
}

function createAuthorizeLane(
  client: Client<typeof SpendControlService>,
  runtime: Runtime,
  callOptions: (timeoutMs: number) => CallOptions,
): Lane<AuthorizeSpendRequest, AuthorizeSpendResponse> {
  return createLane<AuthorizeSpendRequest, AuthorizeSpendResponse>({
    name: "holdfast.batch_authorize",
    runtime,
    bytesOf: (request) => toBinary(AuthorizeSpendRequestSchema, request).length,
    inTrace: (request, traceParent) => ({ ...request, traceParent }),
    sendOne: (request, timeoutMs) => client.authorizeSpend(request, callOptions(timeoutMs)),
    async sendMany(requests, timeoutMs) {
      const { results } = await client.batchAuthorizeSpend({ requests: [...requests] }, callOptions(timeoutMs));
      return results.map(({ result }) => resultOrFailure(result));
    },
  });
}

function createCommitLane(
  client: Client<typeof SpendControlService>,
  runtime: Runtime,
  callOptions: (timeoutMs: number) => CallOptions,
): Lane<CommitSpendRequest, CommitSpendResponse> {
  return createLane<CommitSpendRequest, CommitSpendResponse>({
    name: "holdfast.batch_commit",
    runtime,
    bytesOf: (request) => toBinary(CommitSpendRequestSchema, request).length,
    inTrace: (request, traceParent) => ({ ...request, traceParent }),
    sendOne: (request, timeoutMs) => client.commitSpend(request, callOptions(timeoutMs)),
    async sendMany(requests, timeoutMs) {
      const { results } = await client.batchCommitSpend({ requests: [...requests] }, callOptions(timeoutMs));
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

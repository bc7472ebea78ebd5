import { Code, ConnectError, createRouterTransport, type Transport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { Authorization, DenialRule } from "@holdfast/api/holdfast/v1/spend_pb";
import { createFakeLeases } from "./fake-leases.ts";
import { failure, FakeSpends } from "./fake-spends.ts";

export { failure };

/** A call as the fake saw it: the RPC's name and its request. */
export interface RecordedCall {
  readonly rpc: string;
  readonly request: unknown;
}

export interface FakeControlPlane {
  readonly transport: Transport;
  readonly calls: RecordedCall[];
  names(): string[];
  /** The last generation of the only spend, or of the n-th. */
  authorization(index?: number): Authorization;
  /** Every generation of every spend. */
  authorizations(): Authorization[];
  /** Runs before every RPC; throw a ConnectError (see `failure`) to break it, or return a promise to delay it. */
  intercept: (rpc: string, request: unknown, headers: Headers) => Promise<void> | void;
  /** Whether the answer of an RPC is lost after it was carried out. */
  loseAnswers: (rpc: string) => boolean;
  /** Moves the fake's own clock. */
  advance(ms: number): void;
  /** Denies everything above this many major units. */
  capMajor: number;
  /** Denies everything by this rule, as if the vault key had been revoked. */
  deny: keyof typeof DenialRule | undefined;
}

/** The control plane in memory, for one vault key. */
export function createFakeControlPlane(): FakeControlPlane {
  let skew = 0;
  const now = (): number => Date.now() + skew;
  const leases = createFakeLeases(now);
  const spends = new FakeSpends({
    now,
    holdsLease: leases.holds,
    capMajor: () => fake.capMajor,
    deny: () => fake.deny,
  });
  const transport = createRouterTransport((router) => {
    router.service(SpendControlService, serviceOf(spends, leases, seen));
  });
  const fake: FakeControlPlane = {
    calls: [],
    names: () => fake.calls.map((call) => call.rpc),
    authorization: (index = 0) => spends.last(index),
    authorizations: () => spends.all(),
    intercept: () => undefined,
    loseAnswers: () => false,
    advance(ms) {
      skew += ms;
    },
    capMajor: Number.POSITIVE_INFINITY,
    deny: undefined,
    transport,
  };

  async function seen<Answer>(rpc: string, request: unknown, headers: Headers, run: () => Answer): Promise<Answer> {
    fake.calls.push({ rpc, request });
    await fake.intercept(rpc, request, headers);
    const answer = run();
    if (fake.loseAnswers(rpc)) throw failure(Code.Unavailable, "OUTCOME_UNKNOWN");
    return answer;
  }
  return fake;
}

type Seen = <Answer>(rpc: string, request: unknown, headers: Headers, run: () => Answer) => Promise<Answer>;
type Leases = ReturnType<typeof createFakeLeases>;

function serviceOf(spends: FakeSpends, leases: Leases, seen: Seen) {
  const one =
    <Request, Answer>(rpc: string, run: (request: Request) => Answer) =>
    (request: Request, context: { requestHeader: Headers }) =>
      seen(rpc, request, context.requestHeader, () => run(request));
  const many =
    <Request, Answer>(rpc: string, run: (request: Request) => Answer) =>
    (batch: { requests: Request[] }, context: { requestHeader: Headers }) =>
      seen(rpc, batch, context.requestHeader, () => ({
        results: batch.requests.map((request) => result(() => run(request))),
      }));
  const authorize: FakeSpends["authorize"] = (request) => spends.authorize(request);
  const commit = (request: Parameters<FakeSpends["commit"]>[0]) => ({ authorization: spends.commit(request) });
  return {
    authorizeSpend: one("authorize", authorize),
    batchAuthorizeSpend: many("batchAuthorize", authorize),
    commitSpend: one("commit", commit),
    batchCommitSpend: many("batchCommit", commit),
    voidSpend: one("void", (request: Parameters<FakeSpends["void"]>[0]) => ({ authorization: spends.void(request) })),
    reportUnknown: one("reportUnknown", (request: Parameters<FakeSpends["reportUnknown"]>[0]) => ({
      authorization: spends.reportUnknown(request),
    })),
    bindVendorReference: one("bind", (request: Parameters<FakeSpends["bind"]>[0]) => ({
      authorization: spends.bind(request),
    })),
    increaseHold: one("increaseHold", (request: Parameters<FakeSpends["increaseHold"]>[0]) =>
      spends.increaseHold(request),
    ),
    listUnsettledAuthorizations: one("unsettled", () => spends.unsettled()),
    listCommittedAuthorizations: one("committed", () => spends.committed()),
    reportReconciliation: one("reconciled", (request: Parameters<FakeSpends["reconciled"]>[0]) => ({
      authorization: spends.reconciled(request),
    })),
    getAuthorization: one("get", (request: Parameters<FakeSpends["get"]>[0]) => ({
      authorization: spends.get(request),
    })),
    acquireBillingLease: one("acquireLease", leases.acquire),
    renewBillingLease: one("renewLease", leases.renew),
    releaseBillingLease: one("releaseLease", leases.release),
  };
}

function result<Value>(run: () => Value) {
  try {
    return { result: { case: "response" as const, value: run() } };
  } catch (error) {
    const connectError = ConnectError.from(error);
    const info = connectError.findDetails(ErrorInfoSchema)[0];
    const value = {
      code: connectError.code,
      message: connectError.rawMessage,
      reason: info?.reason ?? "",
      metadata: info?.metadata ?? {},
    };
    return { result: { case: "error" as const, value } };
  }
}

import { createHash } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs, timestampFromMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createRouterTransport, type Transport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import {
  type AcquireBillingLeaseRequest,
  type AuthorizeSpendRequest,
  type AuthorizeSpendResponseSchema,
  type CommitSpendRequest,
  LeaseAnswer,
  LeaseOutcome,
  SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import {
  type Authorization,
  AuthorizationSchema,
  AuthorizationState,
  DenialRule,
  Disposition,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";

type AuthorizeAnswer = MessageInitShape<typeof AuthorizeSpendResponseSchema>;

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
  /** Runs before every RPC; throw a ConnectError (see `failure`) to break it, or return a promise to delay it. */
  intercept: (rpc: string, request: unknown, headers: Headers) => Promise<void> | void;
  /** Moves the fake's own clock. */
  advance(ms: number): void;
  /** Denies everything above this many major units. */
  capMajor: number;
}

interface Entry {
  readonly authorization: Authorization;
  attemptId: string;
  fingerprint: string;
  resendSafeForMs: number;
}

/** An error as the server makes it. */
export function failure(code: Code, reason: string, metadata: Record<string, string> = {}): ConnectError {
  return new ConnectError(reason, code, undefined, [
    { desc: ErrorInfoSchema, value: { reason, domain: "holdfast", metadata } },
  ]);
}

function precondition(reason: string, metadata: Record<string, string> = {}): ConnectError {
  return failure(Code.FailedPrecondition, reason, metadata);
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 32);
}

/** The rules of the control plane in memory, for one vault key, written apart from the server. */
export function createFakeControlPlane(): FakeControlPlane {
  const generations = new Map<string, Entry[]>();
  const leases = new Map<string, { holderId: string; token: bigint; expires: number; completed: boolean }>();
  let skew = 0;
  const now = (): number => Date.now() + skew;
  const fake: FakeControlPlane = {
    calls: [],
    names: () => fake.calls.map((call) => call.rpc),
    authorization(index = 0) {
      const entry = [...generations.values()][index]?.at(-1);
      if (entry === undefined) throw new Error(`no spend ${index}`);
      return entry.authorization;
    },
    intercept: () => undefined,
    advance(ms) {
      skew += ms;
    },
    capMajor: Number.POSITIVE_INFINITY,
    transport: createRouterTransport((router) => {
      router.service(SpendControlService, {
        authorizeSpend: (request, context) =>
          seen("authorize", request, context.requestHeader, () => authorize(request)),
        batchAuthorizeSpend: (batch, context) =>
          seen("batchAuthorize", batch, context.requestHeader, () => ({
            results: batch.requests.map((request) => result(() => authorize(request))),
          })),
        commitSpend: (request, context) =>
          seen("commit", request, context.requestHeader, () => ({ authorization: commit(request) })),
        batchCommitSpend: (batch, context) =>
          seen("batchCommit", batch, context.requestHeader, () => ({
            results: batch.requests.map((request) => result(() => ({ authorization: commit(request) }))),
          })),
        voidSpend: (request, context) =>
          seen("void", request, context.requestHeader, () => {
            const entry = find(request.authorization);
            const { authorization } = entry;
            if (authorization.state === AuthorizationState.VOIDED) return { authorization };
            if (authorization.state === AuthorizationState.COMMITTED) throw precondition("ALREADY_COMMITTED");
            if (entry.attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
            const bound = authorization.vendorReference !== "";
            const replayProof =
              request.vendorStatus === 402 || (request.vendorStatus === 400 && request.vendorReplayed);
            const sentBefore = entry.resendSafeForMs < 0;
            const enough = bound
              ? request.evidence === VoidEvidence.TOMBSTONE && request.vendorReference === authorization.vendorReference
              : request.evidence === VoidEvidence.NEVER_SENT
                ? !sentBefore
                : request.evidence === VoidEvidence.VENDOR_REFUSED && (!sentBefore || replayProof);
            if (!enough) {
              authorization.state = AuthorizationState.IN_DOUBT;
              throw precondition("EVIDENCE_INSUFFICIENT");
            }
            authorization.state = AuthorizationState.VOIDED;
            authorization.voidEvidence = request.evidence;
            return { authorization };
          }),
        reportUnknown: (request, context) =>
          seen("reportUnknown", request, context.requestHeader, () => {
            const entry = find(request.authorization);
            if (entry.attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
            if (entry.authorization.state === AuthorizationState.HELD) {
              entry.authorization.state = AuthorizationState.IN_DOUBT;
            }
            return { authorization: entry.authorization };
          }),
        bindVendorReference: (request, context) =>
          seen("bind", request, context.requestHeader, () => {
            const { authorization, attemptId } = find(request.authorization);
            if (attemptId !== request.attemptId) throw precondition("ATTEMPT_SUPERSEDED");
            if (
              authorization.state !== AuthorizationState.HELD &&
              authorization.state !== AuthorizationState.IN_DOUBT
            ) {
              throw precondition("STATE_NOT_ALLOWED");
            }
            if (authorization.settlement !== Settlement.TWO_STEP) throw precondition("STATE_NOT_ALLOWED");
            if (authorization.vendorReference !== "" && authorization.vendorReference !== request.vendorReference) {
              throw precondition("ALREADY_BOUND", { vendor_reference: authorization.vendorReference });
            }
            authorization.vendorReference = request.vendorReference;
            authorization.vendorState = request.vendorState;
            return { authorization };
          }),
        getAuthorization: (request, context) =>
          seen("get", request, context.requestHeader, () => {
            if (request.lookup.case !== "name") throw new ConnectError("by name only", Code.Unimplemented);
            return { authorization: find(request.lookup.value).authorization };
          }),
        acquireBillingLease: (request, context) =>
          seen("acquireLease", request, context.requestHeader, () => acquire(request)),
        renewBillingLease: (request, context) =>
          seen("renewLease", request, context.requestHeader, () => {
            const lease = leases.get(`${request.lease}:${request.billingPeriod}`);
            if (lease === undefined || lease.token !== request.fencingToken || lease.expires <= now()) {
              return { renewed: false };
            }
            lease.expires = now() + (request.ttl === undefined ? 0 : durationMs(request.ttl));
            return { renewed: true, remaining: durationFromMs(lease.expires - now()) };
          }),
        releaseBillingLease: (request, context) =>
          seen("releaseLease", request, context.requestHeader, () => {
            const lease = leases.get(`${request.lease}:${request.billingPeriod}`);
            if (lease === undefined || lease.token !== request.fencingToken) return { released: false };
            lease.expires = now();
            lease.completed = request.outcome === LeaseOutcome.COMPLETED;
            return { released: true };
          }),
      });
    }),
  };

  async function seen<Answer>(rpc: string, request: unknown, headers: Headers, run: () => Answer): Promise<Answer> {
    fake.calls.push({ rpc, request });
    await fake.intercept(rpc, request, headers);
    return run();
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

  function find(name: string): Entry {
    for (const entries of generations.values()) {
      const entry = entries.find(({ authorization }) => authorization.name === name);
      if (entry !== undefined) return entry;
    }
    throw failure(Code.NotFound, "NOT_FOUND");
  }

  function authorize(request: AuthorizeSpendRequest): AuthorizeAnswer {
    const { spend } = request;
    if (spend?.amount === undefined) throw failure(Code.InvalidArgument, "INVALID_FIELD", { field: "spend" });
    const text = `${spend.customerId}:${spend.billingPeriod}:${spend.purpose}`;
    const entries = generations.get(text) ?? [];
    const entry = entries.at(-1);
    if (entry !== undefined) {
      const answer = repeat(request, entry);
      if (answer !== undefined) return answer;
    }
    if (request.leaseFence !== undefined) {
      const lease = leases.get(`${request.leaseFence.lease}:${request.leaseFence.billingPeriod}`);
      if (lease?.token !== request.leaseFence.fencingToken || lease.expires <= now()) {
        return denied(DenialRule.FENCING_TOKEN, "The billing lease is not held.");
      }
    }
    if (Number(spend.amount.amount) > fake.capMajor) {
      const money = (amount: number) => ({ currency: spend.amount?.currency ?? "", amount: String(amount) });
      return {
        disposition: Disposition.DENIED,
        denial: {
          rule: DenialRule.CAP_HEADROOM,
          message: "The cap has too little headroom.",
          cap: "caps/daily",
          limit: money(fake.capMajor),
          committed: money(0),
          held: money(0),
          headroom: money(fake.capMajor),
          shortBy: money(Number(spend.amount.amount) - fake.capMajor),
          window: "2026-11-30",
          windowEndTime: timestampFromMs(1_796_083_200_000),
        },
      };
    }
    const generation = entries.length + 1;
    const authorization = create(AuthorizationSchema, {
      name: `authorizations/${hash(text)}-${generation}`,
      spend,
      state: AuthorizationState.HELD,
      generation,
      idempotencyKey: generation === 1 ? hash(text) : hash(`${text}\ng${generation}`),
      vendor: request.vendor,
      vendorAccount: request.vendorAccount,
      endpoint: request.endpoint,
      settlement: request.settlement,
      grantTime: timestampFromMs(now()),
    });
    const granted: Entry = {
      authorization,
      attemptId: request.attemptId,
      fingerprint: request.bodyFingerprint,
      resendSafeForMs: request.resendSafeFor === undefined ? 0 : durationMs(request.resendSafeFor),
    };
    generations.set(text, [...entries, granted]);
    return grant(request, granted, false);
  }

  function denied(rule: DenialRule, message: string): AuthorizeAnswer {
    return { disposition: Disposition.DENIED, denial: { rule, message } };
  }

  function grant(request: AuthorizeSpendRequest, entry: Entry, mayHaveBeenSent: boolean): AuthorizeAnswer {
    entry.authorization.state = AuthorizationState.HELD;
    entry.attemptId = request.attemptId;
    // A negative window marks an authorization that somebody may have sent already.
    if (mayHaveBeenSent) entry.resendSafeForMs = -Math.abs(entry.resendSafeForMs || 1);
    const holdMs = request.holdDuration === undefined ? 600_000 : durationMs(request.holdDuration);
    entry.authorization.holdExpireTime = timestampFromMs(now() + holdMs);
    return { disposition: Disposition.GRANTED, authorization: entry.authorization, mayHaveBeenSent };
  }

  function repeat(request: AuthorizeSpendRequest, entry: Entry): AuthorizeAnswer | undefined {
    const { authorization } = entry;
    const differs = authorization.spend?.amount?.amount !== request.spend?.amount?.amount;
    if (authorization.state === AuthorizationState.COMMITTED) {
      const differingFields = differs ? ["spend.amount"] : [];
      return { disposition: Disposition.ALREADY_COMMITTED, authorization, differingFields };
    }
    if (authorization.state === AuthorizationState.VOIDED) {
      const free = authorization.voidEvidence === VoidEvidence.NEVER_SENT;
      if (free || request.retryAfterGeneration === authorization.generation) return undefined;
      return { disposition: Disposition.ALREADY_FAILED, authorization, failedGeneration: authorization.generation };
    }
    if (differs) throw precondition("SPEND_MISMATCH", { fields: "spend.amount" });
    const expires = Number(authorization.holdExpireTime?.seconds ?? 0n) * 1000;
    if (authorization.state === AuthorizationState.HELD && expires > now()) {
      if (entry.attemptId === request.attemptId) {
        return { disposition: Disposition.GRANTED, authorization, mayHaveBeenSent: true };
      }
      return { disposition: Disposition.IN_PROGRESS, authorization, retryAfter: durationFromMs(10) };
    }
    return takeOver(request, entry);
  }

  function takeOver(request: AuthorizeSpendRequest, entry: Entry): AuthorizeAnswer {
    const { authorization } = entry;
    if (authorization.settlement === Settlement.TWO_STEP) return grant(request, entry, true);
    const age = now() - Number(authorization.grantTime?.seconds ?? 0n) * 1000;
    const safe = authorization.settlement === Settlement.RESEND_SAFE && age < Math.abs(entry.resendSafeForMs);
    if (!safe) return { disposition: Disposition.IN_DOUBT, authorization };
    if (entry.fingerprint !== request.bodyFingerprint) {
      return { disposition: Disposition.IN_DOUBT, authorization, differingFields: ["body_fingerprint"] };
    }
    return grant(request, entry, true);
  }

  function commit(request: CommitSpendRequest): Authorization {
    const { authorization } = find(request.authorization);
    if (authorization.state === AuthorizationState.VOIDED) throw precondition("ALREADY_VOIDED");
    if (authorization.state === AuthorizationState.COMMITTED) {
      if (authorization.vendorReference !== request.vendorReference) throw precondition("COMMIT_CONTRADICTS");
      return authorization;
    }
    authorization.state = AuthorizationState.COMMITTED;
    authorization.vendorReference = request.vendorReference;
    if (request.amount !== undefined) authorization.committedAmount = request.amount;
    return authorization;
  }

  function acquire(request: AcquireBillingLeaseRequest) {
    const key = `${request.lease}:${request.billingPeriod}`;
    const lease = leases.get(key) ?? { holderId: "", token: 0n, expires: 0, completed: false };
    leases.set(key, lease);
    const billingLease = () => ({ ...request, holderId: lease.holderId, fencingToken: lease.token });
    const message = (answer: LeaseAnswer) => {
      const { holderId, fencingToken } = billingLease();
      return {
        answer,
        billingLease: { lease: request.lease, billingPeriod: request.billingPeriod, holderId, fencingToken },
        remaining: durationFromMs(Math.max(0, lease.expires - now())),
      };
    };
    if (lease.completed) return message(LeaseAnswer.ALREADY_COMPLETED);
    if (lease.expires > now() && lease.holderId !== request.holderId) return message(LeaseAnswer.HELD_BY_OTHER);
    lease.token += 1n;
    lease.holderId = request.holderId;
    lease.expires = now() + (request.ttl === undefined ? 0 : durationMs(request.ttl));
    return message(LeaseAnswer.ACQUIRED);
  }

  return fake;
}

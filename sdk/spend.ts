import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { AuthorizeSpendResponse } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import {
  type Authorization,
  Direction,
  Disposition,
  DispositionSchema,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import { followerOf, untilAborted } from "./abort.ts";
import type { Background } from "./background.ts";
import type { Calls } from "./call.ts";
import { type CallContext, checkSpend, type LeaseGuard, type SpendOption } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { msToDuration } from "./convert.ts";
import { deniedError } from "./denial.ts";
import {
  HoldfastClosedError,
  type HoldfastError,
  HoldfastUnavailableError,
  SpendAbortedError,
  SpendAlreadyCommittedError,
  SpendAlreadyFailedError,
  SpendInDoubtError,
  SpendInProgressError,
  SpendMismatchError,
} from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { translateFailure } from "./refusal.ts";
import { durationToMs, toRpcFailure } from "./rpc-failure.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";
import type { Settlements } from "./settlement.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";
import { giveBackUnseen } from "./unseen-grant.ts";

/** Everything AuthorizeSpend judges. */
export interface SpendRequest {
  readonly spend: SpendOption;
  readonly money: DecimalMoney;
  readonly vendor: string;
  /** Method and path template, for example "POST /v1/charges". */
  readonly endpoint: string;
  readonly settlement: Settlement;
  readonly vendorAccount?: string;
  readonly bodyFingerprint?: string;
  /** Of what the request is authenticated with, where it may be sent again. */
  readonly credentialFingerprint?: string;
  /** A spend that was asked for with another body is a mismatch, also where it is committed or goes on. */
  readonly sameBodyRequired?: boolean;
  /** Which way the money goes: spent by default. */
  readonly direction?: Direction;
  /** Of money that is given back: the vendor reference of the charge. */
  readonly refundOf?: string;
  /** The caller has read this bound vendor object and goes on with it. */
  readonly continueVendorReference?: string;
}

/** Permission for one attempt. Times are readings of the runtime's clock, measured from before the request. */
export interface Grant {
  readonly spend: SpendOption;
  readonly authorization: string;
  readonly generation: number;
  readonly attemptId: string;
  /** The one key of this generation at the vendor. */
  readonly idempotencyKey: string;
  /** True: only the vendor's answer to a replay says anything about the charge. */
  readonly mayHaveBeenSent: boolean;
  /** The bound vendor object of an earlier attempt, or empty. */
  readonly vendorReference: string;
  /** Nothing may leave after this. */
  readonly holdUntil: number;
  /** Nothing may be sent again in one call after this. */
  readonly resendUntil: number;
  readonly lease: LeaseGuard | undefined;
}

export type Decision =
  | { readonly kind: "granted"; readonly grant: Grant }
  | { readonly kind: "already_committed"; readonly authorization: Authorization }
  /** In progress, and the vendor object is in a known unfinished state: look at it. */
  | { readonly kind: "unfinished"; readonly authorization: Authorization };

export interface AuthorizeSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly context: CallContext;
  readonly calls: Calls;
  readonly background: Background;
  readonly settlements: Settlements;
  readonly holdMs: number;
  readonly resendSafeForMs: number;
}

/** Voided because the vendor said no, and not because somebody gave up. */
const REFUSED: ReadonlySet<VoidEvidence> = new Set([VoidEvidence.VENDOR_REFUSED, VoidEvidence.TOMBSTONE]);

const WAIT_BASE_MS = 250;
const WAIT_CAP_MS = 5_000;

/** One caller's go at a spend. */
interface Attempt {
  readonly attemptId: string;
  readonly lease: LeaseGuard | undefined;
  /** Ends the waiting. */
  readonly signal: AbortSignal | undefined;
  /** A reading of the clock. */
  readonly deadline: number;
}

/**
 * Asks until there is a decision or the deadline (a reading of the clock) is over. Waits while another attempt holds
 * the spend. Throws the typed error for every other answer; nothing may be sent to a vendor then, and what may have
 * been granted without an answer is given back in the background. The signal is that of the running call.
 */
export async function authorize(
  settings: AuthorizeSettings,
  request: SpendRequest,
  deadline: number,
): Promise<Decision> {
  const { spend } = request;
  const { context, runtime } = settings;
  const call = context.call.getStore();
  const lease = context.lease.getStore();
  lease?.asked(spend);
  checkSpend(spend);
  const ambient = context.signal.getStore();
  const signal = call?.signal ?? (ambient === undefined ? undefined : followerOf(ambient));
  const attempt: Attempt = { attemptId: runtime.random.hex128(), lease, signal, deadline };
  const attributes = {
    [ATTRIBUTES.customerId]: spend.customerId,
    [ATTRIBUTES.billingPeriod]: spend.billingPeriod,
    [ATTRIBUTES.purpose]: spend.purpose,
    [ATTRIBUTES.vendor]: request.vendor,
    [ATTRIBUTES.vendorEndpoint]: request.endpoint,
  };
  return inSpan("holdfast.authorize", attributes, async (span) => {
    for (let waits = 0; ; waits += 1) {
      settings.calls.assertOpen();
      throwIfAborted(signal, spend);
      lease?.assertHeld();
      const askedAt = runtime.clock.now();
      const response = await ask(settings, request, attempt);
      span.setAttribute(ATTRIBUTES.disposition, DispositionSchema.value[response.disposition]?.localName ?? "UNKNOWN");
      if (response.authorization !== undefined) {
        span.setAttribute(ATTRIBUTES.authorization, response.authorization.name);
      }
      const decision = decide(settings, request, response, { attemptId: attempt.attemptId, lease, askedAt });
      if (decision !== "wait") {
        if (decision.kind === "already_committed") lease?.settled(decision.authorization.name);
        if (decision.kind !== "granted") return decision;
        if (isAborted(signal)) giveBack(settings, request, response, attempt);
        throwIfAborted(signal, spend);
        if (call !== undefined) call.granted = true;
        return decision;
      }
      const hintMs = response.retryAfter === undefined ? 0 : durationToMs(response.retryAfter);
      const waitMs = Math.max(
        halfJitter(runtime.random, waits, WAIT_BASE_MS, WAIT_CAP_MS),
        Math.min(hintMs, WAIT_CAP_MS),
      );
      if (runtime.clock.now() + waitMs >= deadline) throw inProgress(request, response.authorization);
      await sleep(runtime, waitMs, signal);
    }
  });
}

async function ask(
  settings: AuthorizeSettings,
  request: SpendRequest,
  attempt: Attempt,
): Promise<AuthorizeSpendResponse> {
  const { spend } = request;
  const { signal } = attempt;
  const answer = settings.controlPlane.authorize(toMessage(settings, request, attempt), attempt.deadline, signal);
  if (signal === undefined) return answer.catch((error: unknown) => unanswered(settings, spend, attempt, error));
  let aborted = false;
  const settled = answer.then(
    (response) => {
      if (aborted) giveBack(settings, request, response, attempt);
      return response;
    },
    (error: unknown) => unanswered(settings, spend, attempt, error),
  );
  return untilAborted(signal, settled, () => {
    aborted = true;
    settings.background.track(settled.catch(() => undefined));
    return abortError(signal, spend);
  });
}

/** The typed error; what the attempt may have been granted nevertheless is looked for and given back. */
function unanswered(settings: AuthorizeSettings, spend: SpendOption, attempt: Attempt, error: unknown): never {
  const typed = translateFailure(error, "an authorization", { spend });
  if (typed instanceof HoldfastUnavailableError && !toRpcFailure(error).neverSent) {
    giveBackUnseen(settings, spend, attempt.attemptId);
  }
  throw typed;
}

/** Nobody waits for this answer any more. If it grants, nothing was sent; whether that proves it, the server knows. */
function giveBack(
  settings: AuthorizeSettings,
  request: SpendRequest,
  response: AuthorizeSpendResponse,
  { attemptId, lease }: Attempt,
): void {
  if (response.disposition !== Disposition.GRANTED) return;
  const grant = toGrant(settings, request, response, { attemptId, lease, askedAt: settings.runtime.clock.now() });
  const { background, settlements } = settings;
  background.track(
    grant.vendorReference === ""
      ? settlements.void(grant, { evidence: "never_sent" })
      : settlements.reportUnknown(grant, "the caller gave up before it went on with the bound object"),
  );
}

function isAborted(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

function throwIfAborted(signal: AbortSignal | undefined, spend: SpendOption): void {
  if (signal?.aborted === true) throw abortError(signal, spend);
}

function abortError(signal: AbortSignal, spend: SpendOption): HoldfastError {
  const reason: unknown = signal.reason;
  return reason instanceof HoldfastClosedError ? reason : new SpendAbortedError(false, { spend, cause: reason });
}

function toMessage(
  settings: AuthorizeSettings,
  request: SpendRequest,
  attempt: Attempt,
): Parameters<ControlPlane["authorize"]>[0] {
  const { spend } = request;
  return {
    spend: {
      customerId: spend.customerId,
      billingPeriod: spend.billingPeriod,
      purpose: spend.purpose,
      amount: { currency: request.money.currency, amount: request.money.amount },
    },
    vendor: request.vendor,
    endpoint: request.endpoint,
    attemptId: attempt.attemptId,
    settlement: request.settlement,
    ...(request.settlement === Settlement.RESEND_SAFE ? { resendSafeFor: msToDuration(settings.resendSafeForMs) } : {}),
    holdDuration: msToDuration(settings.holdMs),
    retryAfterGeneration: spend.retryAfterGeneration ?? 0,
    ...(attempt.lease === undefined ? {} : { leaseFence: attempt.lease.fence }),
    vendorAccount: request.vendorAccount ?? "",
    bodyFingerprint: request.bodyFingerprint ?? "",
    credentialFingerprint: request.credentialFingerprint ?? "",
    sameBodyRequired: request.sameBodyRequired ?? false,
    direction: request.direction ?? Direction.SPEND,
    refundOf: request.refundOf ?? "",
    continueVendorReference: request.continueVendorReference ?? "",
  };
}

function inProgress(request: SpendRequest, authorization: Authorization | undefined): SpendInProgressError {
  return new SpendInProgressError({
    spend: request.spend,
    authorization: authorization?.name,
    vendorReference: authorization?.vendorReference,
    vendorState: authorization?.vendorState,
  });
}

function decide(
  settings: AuthorizeSettings,
  request: SpendRequest,
  response: AuthorizeSpendResponse,
  attempt: { attemptId: string; lease: LeaseGuard | undefined; askedAt: number },
): Decision | "wait" {
  const { authorization } = response;
  const context = { spend: request.spend, authorization: authorization?.name };
  switch (response.disposition) {
    case Disposition.GRANTED:
      return { kind: "granted", grant: toGrant(settings, request, response, attempt) };
    case Disposition.ALREADY_COMMITTED:
      if (response.differingFields.length > 0) throw new SpendMismatchError(response.differingFields, context);
      if (authorization === undefined) throw new SpendAlreadyCommittedError(undefined, context);
      return { kind: "already_committed", authorization };
    case Disposition.ALREADY_FAILED:
      if (authorization !== undefined && REFUSED.has(authorization.voidEvidence)) {
        attempt.lease?.settled(authorization.name);
      }
      throw new SpendAlreadyFailedError(response.failedGeneration, context);
    case Disposition.IN_PROGRESS:
      if (authorization !== undefined && authorization.vendorReference !== "" && authorization.vendorState !== "") {
        return { kind: "unfinished", authorization };
      }
      return "wait";
    case Disposition.IN_DOUBT: {
      const drifted = response.differingFields.length > 0;
      const reason = drifted
        ? `an earlier attempt ended without an answer, and this call has another ${response.differingFields.join(", ")}`
        : "an earlier attempt ended without an answer, and sending again is not safe";
      throw new SpendInDoubtError(reason, { ...context, vendorReference: authorization?.vendorReference });
    }
    case Disposition.DENIED:
      if (response.denial === undefined) break;
      throw deniedError(response.denial, attempt.lease, context);
    default:
      break;
  }
  // A newer server, or a broken one. Without an understood grant nothing is sent.
  throw translateFailure(new Error(`disposition ${response.disposition} is not understood`), "usably", context);
}

function toGrant(
  settings: AuthorizeSettings,
  request: SpendRequest,
  response: AuthorizeSpendResponse,
  attempt: { attemptId: string; lease: LeaseGuard | undefined; askedAt: number },
): Grant {
  const { authorization } = response;
  if (authorization === undefined || authorization.idempotencyKey === "") {
    throw translateFailure(new Error("a grant without an authorization"), "usably", { spend: request.spend });
  }
  const grantedAt = authorization.grantTime === undefined ? undefined : timestampMs(authorization.grantTime);
  const holdExpiresAt =
    authorization.holdExpireTime === undefined ? undefined : timestampMs(authorization.holdExpireTime);
  // Both times are the database's. The hold of this attempt was taken when it expires minus its length, so the
  // difference is how old the generation already was: no wall clock of this machine is involved.
  const ageMs =
    grantedAt === undefined || holdExpiresAt === undefined
      ? settings.resendSafeForMs
      : Math.max(0, holdExpiresAt - settings.holdMs - grantedAt);
  return {
    spend: request.spend,
    authorization: authorization.name,
    generation: authorization.generation,
    attemptId: attempt.attemptId,
    idempotencyKey: authorization.idempotencyKey,
    mayHaveBeenSent: response.mayHaveBeenSent,
    vendorReference: authorization.vendorReference,
    holdUntil: attempt.askedAt + settings.holdMs,
    resendUntil: attempt.askedAt + settings.resendSafeForMs - ageMs,
    lease: attempt.lease,
  };
}

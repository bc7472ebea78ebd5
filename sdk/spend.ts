import { timestampMs } from "@bufbuild/protobuf/wkt";
import type { AuthorizeSpendResponse } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import {
  type Authorization,
  Direction,
  Disposition,
  DispositionSchema,
  Settlement,
} from "@holdfast/api/holdfast/v1/spend_pb";
import type { CallContext, LeaseGuard, SpendOption } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { denialFigures, msToDuration } from "./convert.ts";
import {
  SpendAlreadyCommittedError,
  SpendAlreadyFailedError,
  SpendDeniedError,
  SpendInDoubtError,
  SpendInProgressError,
  SpendMismatchError,
} from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { translateFailure } from "./refusal.ts";
import { durationToMs } from "./rpc-failure.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";
import { checkIdentity } from "./stable-key.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

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
  readonly holdMs: number;
  readonly resendSafeForMs: number;
}

const WAIT_BASE_MS = 250;
const WAIT_CAP_MS = 5_000;

/**
 * Asks until there is a decision or the deadline (a reading of the clock) is over. Waits while another attempt holds
 * the spend. Throws the typed error for every other answer; nothing may be sent to a vendor then.
 */
export function authorize(settings: AuthorizeSettings, request: SpendRequest, deadline: number): Promise<Decision> {
  checkIdentity(request.spend);
  const { spend } = request;
  const attributes = {
    [ATTRIBUTES.customerId]: spend.customerId,
    [ATTRIBUTES.billingPeriod]: spend.billingPeriod,
    [ATTRIBUTES.purpose]: spend.purpose,
    [ATTRIBUTES.vendor]: request.vendor,
    [ATTRIBUTES.vendorEndpoint]: request.endpoint,
  };
  return inSpan("holdfast.authorize", attributes, async (span) => {
    const { runtime } = settings;
    const attemptId = runtime.random.hex128();
    const lease = settings.context.lease.getStore();
    for (let waits = 0; ; waits += 1) {
      lease?.assertHeld();
      const askedAt = runtime.clock.now();
      const response = await ask(settings, request, { attemptId, lease, deadline });
      span.setAttribute(ATTRIBUTES.disposition, DispositionSchema.value[response.disposition]?.localName ?? "UNKNOWN");
      if (response.authorization !== undefined) {
        span.setAttribute(ATTRIBUTES.authorization, response.authorization.name);
      }
      const decision = decide(settings, request, response, { attemptId, lease, askedAt });
      if (decision !== "wait") return decision;
      const hintMs = response.retryAfter === undefined ? 0 : durationToMs(response.retryAfter);
      const waitMs = Math.max(
        halfJitter(runtime.random, waits, WAIT_BASE_MS, WAIT_CAP_MS),
        Math.min(hintMs, WAIT_CAP_MS),
      );
      if (runtime.clock.now() + waitMs >= deadline) throw inProgress(request, response.authorization);
      await sleep(runtime, waitMs);
    }
  });
}

async function ask(
  settings: AuthorizeSettings,
  request: SpendRequest,
  attempt: { attemptId: string; lease: LeaseGuard | undefined; deadline: number },
): Promise<AuthorizeSpendResponse> {
  const { spend } = request;
  try {
    return await settings.controlPlane.authorize(
      {
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
        ...(request.settlement === Settlement.RESEND_SAFE
          ? { resendSafeFor: msToDuration(settings.resendSafeForMs) }
          : {}),
        holdDuration: msToDuration(settings.holdMs),
        retryAfterGeneration: spend.retryAfterGeneration ?? 0,
        ...(attempt.lease === undefined ? {} : { leaseFence: attempt.lease.fence }),
        vendorAccount: request.vendorAccount ?? "",
        bodyFingerprint: request.bodyFingerprint ?? "",
        direction: request.direction ?? Direction.SPEND,
        refundOf: request.refundOf ?? "",
        continueVendorReference: request.continueVendorReference ?? "",
      },
      attempt.deadline,
    );
  } catch (error) {
    throw translateFailure(error, "an authorization", { spend });
  }
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
      throw new SpendDeniedError(denialFigures(response.denial), context);
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

import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import {
  type AuthorizeSpendRequest,
  type AuthorizeSpendResponse,
  AuthorizeSpendResponseSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import type { AuthorizeCommand, AuthorizeDecision } from "../domain/spend.ts";
import { drawMessage } from "./cap-message.ts";
import {
  authorizationMessage,
  directionFrom,
  dispositionOf,
  leaseFenceFrom,
  millisecondsFrom,
  moneyFrom,
  settlementFrom,
} from "./convert.ts";
import { denialOf } from "./denial.ts";

const holdForMsDefault = 600_000;

/** Reads a validated request. Throws INVALID_FIELD where two fields do not fit together. */
export function authorizeCommand(
  request: AuthorizeSpendRequest,
  vaultKeyId: string,
  traceId: string,
): AuthorizeCommand {
  const { spend, leaseFence } = request;
  if (spend === undefined) throw invalidField("spend", "is required.");
  const settlement = settlementFrom(request.settlement);
  if (settlement === "RESEND_SAFE" && request.resendSafeFor === undefined) {
    throw invalidField("resend_safe_for", "is required with SETTLEMENT_RESEND_SAFE; at most 23 h.");
  }
  if (settlement !== "RESEND_SAFE" && request.resendSafeFor !== undefined) {
    throw invalidField("resend_safe_for", "is only for SETTLEMENT_RESEND_SAFE; leave it out.");
  }
  const direction = directionFrom(request.direction);
  if (direction !== "REFUND" && request.refundOf !== "") {
    throw invalidField("refund_of", "is only for DIRECTION_REFUND; leave it out.");
  }
  return {
    vaultKeyId,
    spend: { customerId: spend.customerId, billingPeriod: spend.billingPeriod, purpose: spend.purpose },
    amount: moneyFrom(spend.amount, "spend.amount", false),
    vendor: request.vendor,
    vendorAccount: request.vendorAccount,
    endpoint: request.endpoint,
    direction,
    refundOf: request.refundOf,
    settlement,
    resendSafeForMs:
      request.resendSafeFor === undefined ? undefined : millisecondsFrom(request.resendSafeFor, "resend_safe_for"),
    holdForMs:
      request.holdDuration === undefined ? holdForMsDefault : millisecondsFrom(request.holdDuration, "hold_duration"),
    attemptId: request.attemptId,
    bodyFingerprint: request.bodyFingerprint,
    credentialFingerprint: request.credentialFingerprint,
    sameBodyRequired: request.sameBodyRequired,
    retryAfterGeneration: request.retryAfterGeneration,
    continueVendorReference: request.continueVendorReference,
    fence: leaseFence && leaseFenceFrom(leaseFence),
    traceId,
  };
}

/** The answer to a request. Throws SPEND_MISMATCH and GENERATION_NOT_FOUND. */
export function authorizeResponse(command: AuthorizeCommand, decision: AuthorizeDecision): AuthorizeSpendResponse {
  if (decision.disposition === undefined) throw refusal(decision);
  const { authorization, retryAfterMs, rule } = decision;
  return create(AuthorizeSpendResponseSchema, {
    disposition: dispositionOf[decision.disposition],
    mayHaveBeenSent: decision.mayHaveBeenSent,
    differingFields: [...decision.differingFields],
    failedGeneration: decision.failedGeneration ?? 0,
    draws: decision.draws.map((draw) => drawMessage(draw, command.amount)),
    ...(authorization === undefined ? {} : { authorization: authorizationMessage(authorization) }),
    ...(retryAfterMs === undefined ? {} : { retryAfter: durationFromMs(retryAfterMs) }),
    ...(rule === undefined ? {} : { denial: denialOf({ ...command, more: command.amount.micros }, rule, decision) }),
  });
}

function refusal(decision: AuthorizeDecision): HoldfastError {
  if (decision.errorReason === "SPEND_MISMATCH") {
    const fields = decision.differingFields.join(", ");
    return new HoldfastError(
      "SPEND_MISMATCH",
      `This spend is already authorized with other values of ${fields}. Repeat the original request, or use another purpose for another spend.`,
      { metadata: { fields: decision.differingFields.join(",") } },
    );
  }
  return new HoldfastError(
    "GENERATION_NOT_FOUND",
    "retry_after_generation names a generation that does not exist. Leave it out for a spend that was never tried.",
    { metadata: { field: "retry_after_generation" } },
  );
}

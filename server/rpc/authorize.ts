import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Denial, DenialSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type AuthorizeSpendRequest,
  type AuthorizeSpendResponse,
  AuthorizeSpendResponseSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError, invalidField } from "../domain/errors.ts";
import { formatMicros } from "../domain/money.ts";
import type { AuthorizeCommand, AuthorizeDecision, CapFigures, DenialRule } from "../domain/spend.ts";
import {
  authorizationMessage,
  denialRuleOf,
  dispositionOf,
  millisecondsFrom,
  moneyFrom,
  moneyMessage,
  settlementFrom,
  timestampMessage,
} from "./convert.ts";

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
  return {
    vaultKeyId,
    spend: { customerId: spend.customerId, billingPeriod: spend.billingPeriod, purpose: spend.purpose },
    amount: moneyFrom(spend.amount, "spend.amount", false),
    vendor: request.vendor,
    vendorAccount: request.vendorAccount,
    endpoint: request.endpoint,
    settlement,
    resendSafeForMs:
      request.resendSafeFor === undefined ? undefined : millisecondsFrom(request.resendSafeFor, "resend_safe_for"),
    holdForMs:
      request.holdDuration === undefined ? holdForMsDefault : millisecondsFrom(request.holdDuration, "hold_duration"),
    attemptId: request.attemptId,
    bodyFingerprint: request.bodyFingerprint,
    retryAfterGeneration: request.retryAfterGeneration,
    fence:
      leaseFence === undefined
        ? undefined
        : {
            lease: leaseFence.lease,
            billingPeriod: leaseFence.billingPeriod,
            holderId: leaseFence.holderId,
            fencingToken: leaseFence.fencingToken,
          },
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
    ...(authorization === undefined ? {} : { authorization: authorizationMessage(authorization) }),
    ...(retryAfterMs === undefined ? {} : { retryAfter: durationFromMs(retryAfterMs) }),
    ...(rule === undefined ? {} : { denial: denialMessage(command, rule, decision.cap) }),
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

function denialMessage(command: AuthorizeCommand, rule: DenialRule, cap: CapFigures | undefined): Denial {
  if (cap === undefined) return create(DenialSchema, { rule: denialRuleOf[rule], message: describe(command, rule) });
  const money = (micros: bigint) => moneyMessage({ currency: cap.currency, micros });
  const headroom = cap.limit - cap.committed - cap.held;
  const shortBy = command.amount.micros - headroom;
  return create(DenialSchema, {
    rule: denialRuleOf[rule],
    message: describe(command, rule, cap),
    cap: `caps/${cap.capId}`,
    limit: money(cap.limit),
    committed: money(cap.committed),
    held: money(cap.held),
    headroom: money(headroom),
    window: cap.window,
    ...(rule === "CAP_HEADROOM" ? { shortBy: money(shortBy) } : {}),
    ...(cap.windowEnd === undefined ? {} : { windowEndTime: timestampMessage(cap.windowEnd) }),
  });
}

function describe(command: AuthorizeCommand, rule: DenialRule, cap?: CapFigures): string {
  const { spend, amount } = command;
  const asked = `${formatMicros(amount.micros)} ${amount.currency}`;
  const key = `the vault key ${command.vaultKeyId}`;
  const owner = cap === undefined ? key : `the cap caps/${cap.capId}`;
  switch (rule) {
    case "CAP_HEADROOM":
      return `${asked} does not fit into ${owner}. Raise its limit or wait for its window to end.`;
    case "MAX_PER_SPEND":
      return `${asked} is more than ${owner} allows for one spend. Check the amount's decimals, or raise max_per_spend.`;
    case "CURRENCY":
      return `${owner} counts in another currency than ${amount.currency}. Use a vault key or cap of that currency.`;
    case "VAULT_KEY_REVOKED":
      return `${key} is revoked. What it was granted may still be settled; create another key for new spends.`;
    case "VAULT_KEY_EXPIRED":
      return `${key} has expired. Create another key.`;
    case "VENDOR":
      return `${key} is not for the vendor ${command.vendor}. Use a key of that vendor.`;
    case "ENDPOINT":
      return `${key} does not allow ${command.endpoint}. Add it to the key's allowed_endpoints.`;
    case "BILLING_PERIOD":
      return `${key} is not for the billing period ${spend.billingPeriod}. Use the key of that period.`;
    case "PURPOSE":
      return `${key} is not for the purpose ${spend.purpose}. Use a key that allows it.`;
    case "CUSTOMER":
      return `${key} is not for the customer ${spend.customerId}. Use a key that allows it.`;
    case "BILLING_PERIOD_NOT_PINNED":
      return `${owner} counts per billing period, but ${key} pins none, so its caller could invent one. Pin billing_periods on the key.`;
    case "FENCING_TOKEN":
      return "The billing lease has run out or has another holder. Stop this run; the present holder continues.";
  }
}

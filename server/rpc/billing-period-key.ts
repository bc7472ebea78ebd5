import { create } from "@bufbuild/protobuf";
import { CapSchema, CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import type { CreateBillingPeriodKeyRequest } from "@holdfast/api/holdfast/v1/vault_key_pb";
import { billingPeriodLimit } from "../domain/billing-period-key.ts";
import { invalidField } from "../domain/errors.ts";
import { newCap } from "./cap-policy.ts";
import { microsFrom, moneyFrom, moneyMessage } from "./convert.ts";
import type { KeyCreation } from "./vault-key-creation.ts";

/**
 * The vault key of one billing period and its cap, which has the key's id: it pins the period, so that its caller cannot
 * invent another one, and ends with it. Throws INVALID_FIELD.
 */
export function billingPeriodCreation(request: CreateBillingPeriodKeyRequest): KeyCreation {
  const { vaultKeyId, billingPeriod, vendor, allowedEndpoints, purposes, expireTime } = request;
  const expected = moneyFrom(request.expectedTotal, "expected_total", false);
  const limit = billingPeriodLimit(expected, request.margin);
  const max = request.maxPerSpend === undefined ? undefined : moneyFrom(request.maxPerSpend, "max_per_spend", true);
  if (max !== undefined && max.currency !== limit.currency) {
    throw invalidField("max_per_spend.currency", `must be ${limit.currency}, the currency of expected_total.`);
  }
  if (expireTime === undefined) throw invalidField("expire_time", "is required.");
  const cap = create(CapSchema, {
    limit: moneyMessage(limit),
    window: CapWindow.BILLING_PERIOD,
    scope: { vaultKey: `vaultKeys/${vaultKeyId}` },
  });
  return {
    key: {
      vaultKeyId,
      vendor,
      allowedEndpoints,
      billingPeriods: [billingPeriod],
      purposes: purposes.length === 0 ? undefined : [...purposes],
      customers: undefined,
      maxPerSpend: max,
      expireTime: microsFrom(expireTime, "expire_time"),
      attachedCaps: [],
      labels: {},
    },
    caps: [newCap(vaultKeyId, cap)],
    endField: "expire_time",
  };
}

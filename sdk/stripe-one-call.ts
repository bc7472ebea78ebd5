import { type Authorization, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendInDoubtError, SpendInProgressError, VendorUnreachableError } from "./errors.ts";
import { fromStripeAmount } from "./money.ts";
import type { Grant } from "./spend.ts";
import {
  authorizationMetadata,
  type GuardedCall,
  readCommitted,
  readObject,
  refusalStatus,
  sendStep,
  spendRequest,
  stringField,
} from "./stripe-call.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { joinForm, newField } from "./stripe-request.ts";
import { isRecord } from "./stripe-send.ts";

const CHARGE_PATH = "/v1/charges";

/**
 * Charges by one call. Its one key is sent again only while the hold is this attempt's and the vendor surely remembers
 * the key; both are measured from before the grant was asked for and looked at right before each write. Throws a
 * HoldfastError where there is no vendor answer to give.
 */
export async function payByCharge(call: GuardedCall): Promise<StripeAnswer> {
  const decision = await call.authorize(spendRequest(call, Settlement.RESEND_SAFE), call.deadline);
  switch (decision.kind) {
    case "already_committed":
      return readCommitted(call, decision.authorization.vendorReference, decision.authorization.name);
    case "unfinished":
      throw unfinished(call, decision.authorization);
    case "granted":
      return sendCharge(call, decision.grant);
  }
}

// One call binds nothing, so no server has this answer for it; whatever it means, nothing may be sent.
function unfinished(call: GuardedCall, { name, vendorReference, vendorState }: Authorization): SpendInProgressError {
  return new SpendInProgressError({ spend: call.spend, authorization: name, vendorReference, vendorState });
}

async function commitCharge(call: GuardedCall, authorization: string, answer: StripeAnswer, attemptId?: string) {
  const { body } = answer;
  const amount = isRecord(body) ? (body["amount_captured"] ?? body["amount"]) : undefined;
  const money = Number.isSafeInteger(amount)
    ? fromStripeAmount(BigInt(amount as number), stringField(body, "currency"))
    : call.money;
  await call.settlements.commit(authorization, {
    money,
    vendorReference: stringField(body, "id"),
    ...(attemptId === undefined ? {} : { attemptId }),
  });
}

async function sendCharge(call: GuardedCall, grant: Grant): Promise<StripeAnswer> {
  const context = { spend: call.spend, authorization: grant.authorization };
  const fields = [...call.fields, newField("metadata[holdfast_authorization]", authorizationMetadata(grant))];
  const result = await sendStep(call, grant, {
    path: CHARGE_PATH,
    endpoint: call.endpoint,
    body: joinForm(fields),
    key: grant.idempotencyKey,
    replay: grant.mayHaveBeenSent,
    first: true,
    sendUntil: Math.min(grant.holdUntil, grant.resendUntil),
    deadline: call.runtime.clock.now() + call.vendorDeadlineMs,
  });
  if (result.outcome === "too_late") {
    if (!grant.mayHaveBeenSent && (await call.settlements.void(grant, { evidence: "never_sent" }))) {
      throw new VendorUnreachableError(
        "this process was stopped until its hold had run out, and sent nothing",
        context,
      );
    }
    return doubt(call, grant, "the time in which the key may be sent again is over");
  }
  const { exchange, outcome } = result;
  if (outcome === "charged" && exchange.answer !== undefined) return charged(call, grant, exchange.answer);
  if (outcome === "unknown") return doubt(call, grant, "Stripe did not say whether it charged", exchange.error);
  const refused = refusalStatus(exchange);
  if (refused !== undefined && exchange.answer !== undefined) {
    await call.settlements.void(grant, { evidence: "vendor_refused", ...refused });
    return exchange.answer;
  }
  await call.settlements.void(grant, { evidence: "never_sent" });
  throw new VendorUnreachableError("Stripe could not be reached, nothing was sent", {
    ...context,
    cause: exchange.error,
  });
}

async function charged(call: GuardedCall, grant: Grant, answer: StripeAnswer): Promise<StripeAnswer> {
  const id = stringField(answer.body, "id");
  const status = stringField(answer.body, "status");
  if (id === "") return doubt(call, grant, "Stripe's answer names no charge");
  switch (status) {
    case "succeeded":
      await commitCharge(call, grant.authorization, answer, grant.attemptId);
      return answer;
    case "pending":
      return pending(call, grant, answer, id);
    default:
      return doubt(call, grant, `Stripe's charge ${id} is in the state ${status}`);
  }
}

/**
 * A debit takes days, and the saved answer to its creation never changes, so the object itself is looked at. As long
 * as it is open the spend is in doubt, and a later call comes here again.
 */
async function pending(call: GuardedCall, grant: Grant, answer: StripeAnswer, id: string): Promise<StripeAnswer> {
  const deadline = call.runtime.clock.now() + call.vendorDeadlineMs;
  const now = await readObject(call, `${CHARGE_PATH}/${encodeURIComponent(id)}`, "GET /v1/charges/:id", deadline);
  if (now !== undefined && stringField(now.body, "id") === id && stringField(now.body, "status") === "succeeded") {
    await commitCharge(call, grant.authorization, now, grant.attemptId);
    return now;
  }
  await call.settlements.reportUnknown(grant, `the charge ${id} is not at its end at Stripe`);
  return now?.status === 200 ? now : answer;
}

async function doubt(call: GuardedCall, grant: Grant, reason: string, cause?: unknown): Promise<never> {
  await call.settlements.reportUnknown(grant, reason);
  throw new SpendInDoubtError(reason, { spend: call.spend, authorization: grant.authorization, cause });
}

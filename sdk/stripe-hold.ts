import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import type { IncreaseHoldResponse } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { denialFigures } from "./convert.ts";
import { SpendDeniedError } from "./errors.ts";
import { type DecimalMoney, toStripeAmount } from "./money.ts";
import { translateFailure } from "./refusal.ts";
import type { StripeCall } from "./stripe-call.ts";
import { moneyFrom } from "./stripe-call.ts";
import type { ObjectFamily } from "./stripe-object.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { isRecord } from "./stripe-send.ts";
import { text } from "./stripe-object.ts";

/**
 * Makes an authorization hold at least `money`, before the vendor is asked for so much. Throws a SpendDeniedError if
 * the caps have no room for the difference; nothing may be raised at the vendor then.
 */
export async function holdAtLeast(
  call: StripeCall,
  authorization: string,
  held: DecimalMoney,
  money: DecimalMoney,
): Promise<void> {
  if (held.currency === money.currency && toStripeAmount(money) <= toStripeAmount(held)) return;
  let response: IncreaseHoldResponse;
  try {
    response = await call.controlPlane.increaseHold({ authorization, amount: { ...money } }, call.deadline);
  } catch (error) {
    throw translateFailure(error, "whether more may be held", { spend: call.spend, authorization });
  }
  if (response.disposition === Disposition.GRANTED) return;
  if (response.disposition === Disposition.DENIED && response.denial !== undefined) {
    throw new SpendDeniedError(denialFigures(response.denial), { spend: call.spend, authorization });
  }
  throw translateFailure(new Error(`disposition ${response.disposition} is not understood`), "usably", {
    spend: call.spend,
    authorization,
  });
}

/** What an object would charge in all, as money; undefined where it does not say. */
export function totalOf(family: ObjectFamily, answer: StripeAnswer): DecimalMoney | undefined {
  if (!isRecord(answer.body)) return undefined;
  const total = family.total?.(answer.body);
  return total === undefined ? undefined : moneyFrom(total, text(answer.body, "currency"));
}

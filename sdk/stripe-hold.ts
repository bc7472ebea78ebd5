import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import type { IncreaseHoldResponse } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { LeaseGuard } from "./context.ts";
import { deniedError } from "./denial.ts";
import { HoldfastRefusedError } from "./errors.ts";
import { type DecimalMoney, toStripeAmount, moneyFrom } from "./money.ts";
import { translateFailure } from "./refusal.ts";
import type { Grant } from "./spend.ts";
import type { StripeCall } from "./stripe-call.ts";
import type { ObjectFamily } from "./stripe-object.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { isRecord } from "./stripe-send.ts";
import { text } from "./stripe-object.ts";

const ASK_MIN_MS = 2_000;

/** Whose hold is raised, and in whose name. */
export interface Raising {
  readonly authorization: string;
  /** Empty where the bound object is changed without an attempt. */
  readonly attemptId: string;
  /** Of who is about to ask the vendor for more. What the vendor has made dearer already is held for whoever says so. */
  readonly lease?: LeaseGuard | undefined;
}

/**
 * Makes an authorization hold at least `money`, before the vendor is asked for so much. Throws a SpendDeniedError if
 * the caps have no room for the difference or the lease is over; nothing may be raised at the vendor then. Throws a
 * HoldfastRefusedError where another attempt has superseded this one: see `isSuperseded`.
 */
export async function holdAtLeast(
  call: StripeCall,
  { authorization, attemptId, lease }: Raising,
  held: DecimalMoney,
  money: DecimalMoney,
): Promise<void> {
  if (held.currency === money.currency && toStripeAmount(money) <= toStripeAmount(held)) return;
  // The vendor may have taken all of the time to wait for a grant; the question must not be lost to that.
  const deadline = Math.max(call.deadline, call.runtime.clock.now() + ASK_MIN_MS);
  let response: IncreaseHoldResponse;
  try {
    response = await call.controlPlane.increaseHold(
      {
        authorization,
        amount: { ...money },
        attemptId,
        ...(lease === undefined ? {} : { leaseFence: lease.fence }),
      },
      deadline,
    );
  } catch (error) {
    throw translateFailure(error, "whether more may be held", { spend: call.spend, authorization });
  }
  if (response.disposition === Disposition.GRANTED) return;
  if (response.disposition === Disposition.DENIED && response.denial !== undefined) {
    throw deniedError(response.denial, lease, { spend: call.spend, authorization });
  }
  throw translateFailure(new Error(`disposition ${response.disposition} is not understood`), "usably", {
    spend: call.spend,
    authorization,
  });
}

/** Whether a hold was not raised because another attempt is at the spend: what becomes of its object is that one's. */
export function isSuperseded(error: unknown): boolean {
  return error instanceof HoldfastRefusedError && error.reason === "ATTEMPT_SUPERSEDED";
}

/**
 * Like `holdAtLeast`; a denied raise leaves the object as it was: it is followed again, and the caller gets the denial.
 * False where another attempt has superseded this one.
 */
export async function holdOrFollowAgain(
  call: StripeCall,
  grant: Grant,
  held: DecimalMoney,
  money: DecimalMoney,
  state: string,
): Promise<boolean> {
  try {
    await holdAtLeast(call, grant, held, money);
    return true;
  } catch (error) {
    if (isSuperseded(error)) return false;
    await followAgain(call, grant, state);
    throw error;
  }
}

async function followAgain(call: StripeCall, grant: Grant, state: string): Promise<void> {
  const { vendorReference } = grant;
  try {
    await call.settlements.bind(grant, vendorReference, state.replaceAll(/[^a-z_]/g, "_") || "open");
  } catch {
    await call.settlements.reportUnknown(
      grant,
      `the object ${vendorReference} is ${state}, and that could not be written`,
    );
  }
}

/** What an object would charge in all, as money; undefined where it does not say. */
export function totalOf(family: ObjectFamily, answer: StripeAnswer): DecimalMoney | undefined {
  if (!isRecord(answer.body)) return undefined;
  const total = family.total?.(answer.body);
  return total === undefined ? undefined : moneyFrom(total, text(answer.body, "currency"));
}

import { randomBytes } from "node:crypto";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { expect } from "vitest";

export const endpoint = "POST /v1/payment_intents";

/** A request for one dollar by a new attempt. The same customer is the same spend. */
export function dollar(customerId: string, purpose = "subscription") {
  return {
    spend: { customerId, billingPeriod: "2026-11", purpose, amount: { currency: "usd", amount: "1" } },
    vendor: "stripe",
    endpoint,
    settlement: Settlement.SEND_ONCE,
    attemptId: randomBytes(16).toString("hex"),
  };
}

/** What a refused call says of itself. */
export interface Refusal {
  readonly code: Code;
  readonly reason: string;
  /** True if it says when to come back. */
  readonly retryInfo: boolean;
}

export function refusalOf(error: unknown): Refusal {
  const failure = ConnectError.from(error);
  return {
    code: failure.code,
    reason: failure.findDetails(ErrorInfoSchema)[0]?.reason ?? "",
    retryInfo: failure.findDetails(RetryInfoSchema)[0]?.retryDelay !== undefined,
  };
}

/** The refusal of a call that must be refused. */
export async function refused(call: Promise<unknown>): Promise<Refusal> {
  return await call.then(
    () => {
      throw new Error("it was answered");
    },
    (error: unknown) => refusalOf(error),
  );
}

/** Repeats the same call until it is answered. What is refused before must be UNAVAILABLE and say when to come back. */
export async function untilAnswered<Answer>(call: () => Promise<Answer>, seen: Refusal[] = []): Promise<Answer> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      const refusal = refusalOf(error);
      expect(refusal).toMatchObject({ code: Code.Unavailable, retryInfo: true });
      seen.push(refusal);
      // A turn for everything else; the calls themselves take the time.
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

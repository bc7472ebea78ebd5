import { create } from "@bufbuild/protobuf";
import {
  AuthorizeSpendRequestSchema,
  AcquireBillingLeaseRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import { describe, expect, it } from "vitest";
import { withoutJudgedDurations } from "../../server/rpc/judged-durations.ts";
import { validateMessage } from "../../server/rpc/validate.ts";

function asked(seconds: bigint, nanos = 0) {
  return create(AuthorizeSpendRequestSchema, {
    spend: { customerId: "c", billingPeriod: "2026-11", purpose: "p", amount: { currency: "usd", amount: "1.00" } },
    vendor: "stripe",
    endpoint: "POST /v1/charges",
    settlement: Settlement.TWO_STEP,
    attemptId: "a".repeat(32),
    holdDuration: { seconds, nanos },
  });
}

const judge = (message: ReturnType<typeof asked>) => () => validateMessage(AuthorizeSpendRequestSchema, message);

describe("a duration that was judged before", () => {
  it("is still in the message, and no other one passes for it", () => {
    for (let times = 0; times < 3; times += 1) {
      const good = asked(600n);
      expect(judge(good)).not.toThrow();
      expect(good.holdDuration).toMatchObject({ seconds: 600n, nanos: 0 });
      for (const bad of [asked(4n), asked(86_401n), asked(-600n), asked(86_400n, 1), asked(0n, 600)]) {
        const { holdDuration } = bad;
        expect(judge(bad), `${holdDuration?.seconds}`).toThrow(/hold_duration/);
        expect(bad.holdDuration).toBe(holdDuration);
      }
    }
  });

  it("of one field says nothing about another", () => {
    expect(judge(asked(86_400n))).not.toThrow();
    const resend = asked(600n);
    resend.settlement = Settlement.RESEND_SAFE;
    resend.resendSafeFor = create(AuthorizeSpendRequestSchema, { resendSafeFor: { seconds: 86_400n } })
      .resendSafeFor as never;
    expect(judge(resend)).toThrow(/resend_safe_for/);
  });

  it("does not hide what else is wrong", () => {
    expect(judge(asked(600n))).not.toThrow();
    const bad = asked(600n);
    bad.vendor = "NO";
    expect(judge(bad)).toThrow(/vendor/);
  });

  it("is left out only once it was found valid, and not where the message was not", () => {
    const seen: unknown[] = [];
    const look = (valid: boolean) => {
      const message = asked(1_234n);
      withoutJudgedDurations(
        AuthorizeSpendRequestSchema,
        message,
        () => seen.push(message.holdDuration?.seconds),
        () => valid,
      );
    };
    look(false);
    look(true);
    look(true);
    expect(seen).toEqual([1_234n, 1_234n, undefined]);
  });

  it("is judged each time where it is required", () => {
    const lease = create(AcquireBillingLeaseRequestSchema, {
      lease: "l",
      billingPeriod: "2026-11",
      holderId: "a".repeat(32),
    });
    expect(() => validateMessage(AcquireBillingLeaseRequestSchema, lease)).toThrow(/ttl/);
  });
});

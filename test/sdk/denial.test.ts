import { createRouterTransport } from "@connectrpc/connect";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { DenialRule, Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { createHoldfast, SpendDeniedError } from "@holdfast/sdk";
import { describe, expect, it } from "vitest";
import { rejection, SPEND } from "./setup.ts";

const MAIL = { amount: "25.00", currency: "usd", vendor: "resend", endpoint: "POST /emails" };
const usd = (amount: string) => ({ currency: "usd", amount });

async function denied(denial: object): Promise<SpendDeniedError> {
  const transport = createRouterTransport(({ service }) => {
    service(SpendControlService, {
      authorizeSpend: () => ({ disposition: Disposition.DENIED, denial: denial as never }),
    });
  });
  const holdfast = createHoldfast({ vaultKey: "vk_test", transport });
  return (await rejection(holdfast.spend(SPEND, MAIL, () => Promise.reject(new Error("sent"))))) as SpendDeniedError;
}

describe("a denial", () => {
  it("has every figure of the cap in one sentence, and says what was charged by this call", async () => {
    const error = await denied({
      rule: DenialRule.CAP_HEADROOM,
      message: "The cap has too little headroom.",
      cap: "caps/daily",
      limit: usd("11000.00"),
      committed: usd("10900.00"),
      held: usd("90.00"),
      headroom: usd("10.00"),
      shortBy: usd("15.00"),
      window: "2026-11-30",
      windowEndTime: timestampFromDate(new Date("2026-12-01T05:00:00Z")),
    });
    expect(error).toBeInstanceOf(SpendDeniedError);
    expect(error.message).toBe(
      "Denied the spend of customer cust_123, period 2026-11, purpose subscription (CAP_HEADROOM): " +
        "The cap has too little headroom. " +
        "caps/daily has limit 11000.00 usd, committed 10900.00 usd, held 90.00 usd, headroom 10.00 usd, " +
        "short by 15.00 usd in the window 2026-11-30, which ends at 2026-12-01T05:00:00.000Z. " +
        "Nothing was charged by this call; whether an earlier one charged is not said here.",
    );
    expect(error.denial).toMatchObject({ shortBy: usd("15.00"), windowEndTime: new Date("2026-12-01T05:00:00Z") });
  });

  it("by a cap that counts spends has its counts", async () => {
    const error = await denied({
      rule: DenialRule.CAP_HEADROOM,
      message: "One more spend does not fit.",
      cap: "caps/hundred",
      limitCount: 100n,
      committedCount: 98n,
      heldCount: 1n,
      headroomCount: 1n,
      shortByCount: 0n,
      window: "2026-11",
      windowStartTime: timestampFromDate(new Date("2026-11-01T00:00:00Z")),
    });
    expect(error.message).toContain(
      "caps/hundred has limit 100 spends, committed 98 spends, held 1 spend, headroom 1 spend, short by 0 spends " +
        "in the window 2026-11. ",
    );
    expect(error.denial).toMatchObject({ limitCount: 100n, windowStartTime: new Date("2026-11-01T00:00:00Z") });
  });

  it("by a rule without a cap has no figures", async () => {
    const error = await denied({ rule: DenialRule.VAULT_KEY_REVOKED, message: "The vault key is revoked." });
    expect(error.message).toBe(
      "Denied the spend of customer cust_123, period 2026-11, purpose subscription (VAULT_KEY_REVOKED): " +
        "The vault key is revoked. Nothing was charged by this call; whether an earlier one charged is not said here.",
    );
  });

  it("by a cap without an end names no end", async () => {
    const error = await denied({
      rule: DenialRule.CAP_HEADROOM,
      message: "Too little.",
      cap: "caps/all",
      limit: usd("1.00"),
      window: "lifetime",
    });
    expect(error.message).toContain(" caps/all has limit 1.00 usd in the window lifetime. Nothing ");
  });
});

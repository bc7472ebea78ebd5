import { type Duration, timestampDate } from "@bufbuild/protobuf/wkt";
import type { Money } from "@holdfast/api/holdfast/v1/money_pb";
import { type Denial, DenialRuleSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import type { DenialFigures } from "./errors.ts";
import type { DecimalMoney } from "./money.ts";

export function msToDuration(ms: number): Pick<Duration, "seconds" | "nanos"> {
  const whole = Math.floor(ms / 1000);
  return { seconds: BigInt(whole), nanos: Math.round((ms - whole * 1000) * 1_000_000) };
}

export function toDecimalMoney(money: Money | undefined): DecimalMoney | undefined {
  return money === undefined ? undefined : { currency: money.currency, amount: money.amount };
}

export function denialFigures(denial: Denial): DenialFigures {
  return {
    rule: DenialRuleSchema.value[denial.rule]?.localName ?? `RULE_${denial.rule}`,
    explanation: denial.message,
    cap: denial.cap === "" ? undefined : denial.cap,
    limit: toDecimalMoney(denial.limit),
    committed: toDecimalMoney(denial.committed),
    held: toDecimalMoney(denial.held),
    headroom: toDecimalMoney(denial.headroom),
    shortBy: toDecimalMoney(denial.shortBy),
    limitCount: denial.limitCount,
    committedCount: denial.committedCount,
    heldCount: denial.heldCount,
    headroomCount: denial.headroomCount,
    shortByCount: denial.shortByCount,
    window: denial.window === "" ? undefined : denial.window,
    windowStartTime: denial.windowStartTime === undefined ? undefined : timestampDate(denial.windowStartTime),
    windowEndTime: denial.windowEndTime === undefined ? undefined : timestampDate(denial.windowEndTime),
  };
}

import { create } from "@bufbuild/protobuf";
import { type Denial, DenialSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import type { CapFigures } from "../domain/cap.ts";
import type { EngagedKillSwitch } from "../domain/kill-switch.ts";
import { formatMicros, type Money } from "../domain/money.ts";
import type { DenialRule, SpendIdentity } from "../domain/spend.ts";
import { denialRuleOf, moneyMessage, timestampMessage } from "./convert.ts";

/** What was asked for, as far as a denial explains it. An AuthorizeCommand and an Authorization fit. */
export interface Denied {
  readonly vaultKeyId: string;
  readonly spend: SpendIdentity;
  readonly vendor: string;
  readonly endpoint: string;
  /** The whole spend; of an increase, with what it adds. */
  readonly amount: Money;
  /** What the caps should hold more than now: the whole spend, or what an increase adds. */
  readonly more: bigint;
}

/** Explains a denial with what denied: a kill switch, a cap, or the vault key's policy. */
export function denialOf(
  asked: Denied,
  rule: DenialRule,
  decision: { readonly cap: CapFigures | undefined; readonly killSwitch: EngagedKillSwitch | undefined },
): Denial {
  if (decision.killSwitch !== undefined) return killSwitchDenial(asked, decision.killSwitch);
  return denialMessage(asked, rule, decision.cap);
}

/** Explains the denial by a kill switch. Its reason is not shown: an operator's words may be about other customers. */
function killSwitchDenial(asked: Denied, killSwitch: EngagedKillSwitch): Denial {
  const name = `killSwitches/${killSwitch.killSwitchId}`;
  const stopped = {
    WORKSPACE: "every spend of the workspace",
    VENDOR: `every spend at ${asked.vendor}`,
    CUSTOMER: `every spend of the customer ${asked.spend.customerId}`,
  }[killSwitch.targetKind];
  return create(DenialSchema, {
    rule: denialRuleOf.KILL_SWITCH,
    message:
      `The kill switch ${name} stops ${stopped}. What was granted before may still be settled; ` +
      "ask an operator, who can release it with ReleaseKillSwitch, before you try again.",
    killSwitch: name,
  });
}

/** Explains a denial with every figure. */
function denialMessage(asked: Denied, rule: DenialRule, cap: CapFigures | undefined): Denial {
  if (cap === undefined) return create(DenialSchema, { rule: denialRuleOf[rule], message: describe(asked, rule) });
  const { windowStart, windowEnd } = cap;
  return create(DenialSchema, {
    rule: denialRuleOf[rule],
    message: describe(asked, rule, cap),
    cap: `caps/${cap.capId}`,
    window: cap.window,
    ...(cap.currency === undefined ? countsOf(cap, rule) : amountsOf(cap, cap.currency, { rule, more: asked.more })),
    ...(windowStart === undefined ? {} : { windowStartTime: timestampMessage(windowStart) }),
    ...(windowEnd === undefined ? {} : { windowEndTime: timestampMessage(windowEnd) }),
  });
}

function amountsOf(cap: CapFigures, currency: string, asked: { readonly rule: DenialRule; readonly more: bigint }) {
  const money = (micros: bigint) => moneyMessage({ currency, micros });
  const headroom = cap.limit - cap.committed - cap.held;
  return {
    limit: money(cap.limit),
    committed: money(cap.committed),
    held: money(cap.held),
    headroom: money(headroom),
    ...(asked.rule === "CAP_HEADROOM" ? { shortBy: money(asked.more - headroom) } : {}),
  };
}

function countsOf(cap: CapFigures, rule: DenialRule) {
  const headroom = cap.limit - cap.committed - cap.held;
  return {
    limitCount: cap.limit,
    committedCount: cap.committed,
    heldCount: cap.held,
    headroomCount: headroom,
    ...(rule === "CAP_HEADROOM" ? { shortByCount: 1n - headroom } : {}),
  };
}

/** What is missing, and whether waiting can help: what is above the whole limit fits into no window. */
function describeHeadroom({ amount, more }: Denied, cap: CapFigures): string {
  const owner = `the cap caps/${cap.capId}`;
  const figure = (micros: bigint) => `${formatMicros(micros)} ${amount.currency}`;
  if (cap.currency === undefined && cap.limit < 1n) {
    return `No spend can ever fit into ${owner}: its limit is 0 spends. Raise its limit.`;
  }
  if (cap.currency !== undefined && amount.micros > cap.limit) {
    return `${figure(amount.micros)} can never fit into ${owner}: its limit is ${figure(cap.limit)} in all. Ask for less, or raise its limit.`;
  }
  const money = `${figure(more)}${more === amount.micros ? "" : " more"}`;
  const what = cap.currency === undefined ? "One more spend" : money;
  const remedy = cap.windowEnd === undefined ? "Raise its limit." : "Raise its limit or wait for its window to end.";
  return `${what} does not fit into ${owner}. ${remedy}`;
}

function describe(asked: Denied, rule: DenialRule, cap?: CapFigures): string {
  const { spend, amount } = asked;
  const figure = (micros: bigint) => `${formatMicros(micros)} ${amount.currency}`;
  const key = `the vault key ${asked.vaultKeyId}`;
  const owner = cap === undefined ? key : `the cap caps/${cap.capId}`;
  switch (rule) {
    case "CAP_HEADROOM":
      return cap === undefined ? `It does not fit into ${owner}.` : describeHeadroom(asked, cap);
    case "MAX_PER_SPEND":
      return `${figure(amount.micros)} is more than ${owner} allows for one spend. Check the amount's decimals, or raise max_per_spend.`;
    case "CURRENCY":
      return cap?.currency === undefined
        ? `${key} has a max_per_spend in another currency than ${amount.currency}. Use a key of that currency, or change its max_per_spend.`
        : `${owner} counts ${cap.currency} and applies to this spend, so nothing in ${amount.currency} is granted. Spend in ${cap.currency}, or have an operator archive it and create it again with a narrower scope, and one of ${amount.currency} beside it.`;
    case "VAULT_KEY_REVOKED":
      return `${key} is revoked. What it was granted may still be settled; create another key for new spends.`;
    case "VAULT_KEY_SUSPENDED":
      return `${key} is suspended. What it was granted may still be settled; an operator can resume it with ResumeVaultKey.`;
    case "VAULT_KEY_EXPIRED":
      return `${key} has expired. Create another key.`;
    case "VENDOR":
      return `${key} is not for the vendor ${asked.vendor}. Use a key of that vendor.`;
    case "ENDPOINT":
      return `${key} does not allow ${asked.endpoint}. Add it to the key's allowed_endpoints.`;
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
    case "KILL_SWITCH":
      return "A kill switch stops this spend. What was granted before may still be settled; an operator can release it.";
  }
}

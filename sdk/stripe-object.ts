import { isRecord } from "./stripe-send.ts";

type StripeObject = Readonly<Record<string, unknown>>;

/** What a vendor object says about the money of its spend. */
export type Verdict =
  /** Money moved: this much, in Stripe's integer unit. */
  | { readonly kind: "charged"; readonly minor: bigint; readonly currency: string }
  /** An obligation was made whose price Stripe works out later: the hold is what is known of it. */
  | { readonly kind: "obliged" }
  /** Not at its end, and somebody may still finish it. */
  | { readonly kind: "open"; readonly state: string }
  /** At its end, and it will never move money. */
  | { readonly kind: "gone"; readonly state: string }
  /** A state this version does not know. */
  | { readonly kind: "unclear"; readonly state: string };

interface End {
  readonly method: "POST" | "DELETE";
  readonly suffix: string;
  readonly body: string;
}

function endBy(suffix: string, body = ""): () => End {
  return () => ({ method: "POST", suffix, body });
}

/** A kind of vendor object: where it is read, and what it says. */
export interface ObjectFamily {
  /** Path of the collection, for example "/v1/refunds". */
  readonly collection: string;
  /** Query of a read, where more than the object is needed. */
  readonly readQuery?: string;
  /** Query of a list of all of them, where a list leaves some out by itself. */
  readonly listQuery?: Readonly<Record<string, string>>;
  /** There is no list of all objects by the time of their creation. */
  readonly unlisted?: true;
  /** The answer to a write does not say enough: the object is read before it is judged. */
  readonly readBeforeJudging?: boolean;
  judge(object: StripeObject): Verdict;
  /** What the object would charge in all, in Stripe's integer unit; undefined where it does not say. */
  total?(object: StripeObject): bigint | undefined;
  /** The write that ends this open object, so that it never moves money. */
  end?(object: StripeObject): End;
}

export function text(object: StripeObject, name: string): string {
  const value = object[name];
  return typeof value === "string" ? value : "";
}

/** A whole amount of the object, or undefined. Stripe writes numbers in v1 and strings of digits in some of v2. */
export function minor(object: StripeObject, ...names: readonly string[]): bigint | undefined {
  for (const name of names) {
    const value = object[name];
    if (typeof value === "number" && Number.isSafeInteger(value)) return BigInt(value);
    if (typeof value === "string" && /^-?[0-9]{1,15}$/.test(value)) return BigInt(value);
  }
  return undefined;
}

function charged(object: StripeObject, ...names: readonly string[]): Verdict {
  const amount = minor(object, ...names);
  const currency = text(object, "currency");
  if (amount === undefined || currency === "") return { kind: "unclear", state: "without an amount" };
  return { kind: "charged", minor: amount < 0n ? -amount : amount, currency };
}

/** A family whose status alone decides. A status that is in no list is unclear. */
function byStatus(
  collection: string,
  states: { readonly done: readonly string[]; readonly open: readonly string[]; readonly gone: readonly string[] },
  amounts: readonly string[] = ["amount"],
): ObjectFamily {
  return {
    collection,
    judge(object) {
      const status = text(object, "status");
      if (states.done.includes(status)) return charged(object, ...amounts);
      if (states.open.includes(status)) return { kind: "open", state: status };
      if (states.gone.includes(status)) return { kind: "gone", state: status };
      return { kind: "unclear", state: status };
    },
  };
}

/** Of a treasury: listed for one financial account only. */
function ofFinancialAccount(collection: string, states: Parameters<typeof byStatus>[1]): ObjectFamily {
  return { ...byStatus(collection, states), unlisted: true };
}

/** A family whose existence is the movement. */
function byExistence(collection: string, amounts: readonly string[] = ["amount"]): ObjectFamily {
  return { collection, judge: (object) => charged(object, ...amounts) };
}

/** Money of `/v2/`: `amount: { value, currency }`. */
function byV2Status(
  collection: string,
  states: { readonly done: readonly string[]; readonly open: readonly string[]; readonly gone: readonly string[] },
): ObjectFamily {
  const flat = byStatus(collection, states, ["value"]);
  return {
    collection,
    judge: (object) =>
      flat.judge({ ...(isRecord(object["amount"]) ? object["amount"] : {}), status: object["status"] }),
  };
}

const paymentIntent: ObjectFamily = {
  ...byStatus(
    "/v1/payment_intents",
    {
      done: ["succeeded"],
      open: ["requires_payment_method", "requires_confirmation", "requires_action", "processing", "requires_capture"],
      gone: ["canceled"],
    },
    ["amount_received"],
  ),
  total: (object) => minor(object, "amount"),
  end: endBy("/cancel"),
};

const charge: ObjectFamily = {
  collection: "/v1/charges",
  judge(object) {
    switch (text(object, "status")) {
      case "succeeded":
        if (object["captured"] !== false) return charged(object, "amount_captured", "amount");
        // An authorization that was not captured and was let go.
        return object["refunded"] === true
          ? { kind: "gone", state: "released" }
          : { kind: "open", state: "uncaptured" };
      case "pending":
        return { kind: "open", state: "pending" };
      case "failed":
        return { kind: "gone", state: "failed" };
      default:
        return { kind: "unclear", state: text(object, "status") };
    }
  },
  total: (object) => minor(object, "amount"),
};

const invoiceByStatus = byStatus(
  "/v1/invoices",
  { done: ["paid"], open: ["draft", "open", "uncollectible"], gone: ["void"] },
  ["amount_paid"],
);

const invoice: ObjectFamily = {
  ...invoiceByStatus,
  judge(object) {
    if (object["deleted"] === true) return { kind: "gone", state: "deleted" };
    const verdict = invoiceByStatus.judge(object);
    // What was paid outside of Stripe moved nothing here. Older versions of the API have a flag for it.
    const elsewhere = minor(object, "amount_paid_off_stripe") ?? 0n;
    if (verdict.kind === "charged" && (elsewhere > 0n || object["paid_out_of_band"] === true)) {
      const moved = object["paid_out_of_band"] === true ? 0n : verdict.minor - elsewhere;
      return moved > 0n ? { ...verdict, minor: moved } : { kind: "gone", state: "paid_out_of_band" };
    }
    // Voided after a part of it was paid.
    return verdict.kind === "gone" && (minor(object, "amount_paid") ?? 0n) > 0n
      ? charged(object, "amount_paid")
      : verdict;
  },
  total: (object) => minor(object, "amount_remaining", "amount_due"),
  // A draft cannot be voided.
  end: (object) =>
    text(object, "status") === "draft"
      ? { method: "DELETE", suffix: "", body: "" }
      : { method: "POST", suffix: "/void", body: "" },
};

const checkoutSession: ObjectFamily = {
  collection: "/v1/checkout/sessions",
  judge(object) {
    const status = text(object, "status");
    if (status === "open") return { kind: "open", state: "open" };
    if (status === "expired") return { kind: "gone", state: "expired" };
    if (status !== "complete") return { kind: "unclear", state: status };
    // A bank debit is on its way; nothing is due where only a payment method was set up.
    if (text(object, "payment_status") === "unpaid") return { kind: "open", state: "unpaid" };
    return charged({ amount_total: 0, ...withoutNull(object) }, "amount_total");
  },
  total: (object) => minor(object, "amount_total"),
  end: endBy("/expire"),
};

function withoutNull(object: StripeObject): StripeObject {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null));
}

// A link is paid any number of times up to its limit, each time by a Checkout Session of its own; while it is active
// its whole hold stays, and once it is not, the hold is what it may have brought in.
const paymentLink: ObjectFamily = {
  collection: "/v1/payment_links",
  unlisted: true,
  judge: (object) => (object["active"] === false ? { kind: "obliged" } : { kind: "open", state: "active" }),
  end: endBy("", "active=false"),
};

const subscription: ObjectFamily = {
  collection: "/v1/subscriptions",
  readQuery: "expand[]=latest_invoice",
  listQuery: { status: "all" },
  readBeforeJudging: true,
  judge(object) {
    const latest = object["latest_invoice"];
    if (isRecord(latest)) {
      const reason = text(latest, "billing_reason");
      // What a renewal or a change came to says nothing about the money of the creation.
      if (reason !== "" && reason !== "subscription_create") return { kind: "unclear", state: reason };
      const verdict = invoice.judge(latest);
      return verdict.kind === "open" && text(object, "status") === "incomplete_expired"
        ? { kind: "gone", state: "incomplete_expired" }
        : verdict;
    }
    // A trial, or billing that has not begun: nothing is charged by the creation.
    if (latest === null || latest === undefined) return chargedNothing(object);
    return { kind: "unclear", state: text(object, "status") };
  },
};

function chargedNothing(object: StripeObject): Verdict {
  return charged({ amount: 0, currency: text(object, "currency") }, "amount");
}

// It has no status of its own, and its debit is under way as soon as it exists.
const v2InboundTransfer: ObjectFamily = {
  collection: "/v2/money_management/inbound_transfers",
  judge: (object) => charged(isRecord(object["amount"]) ? object["amount"] : {}, "value"),
};

/** Every family the guard can read back and judge, by its name. */
export const FAMILIES = {
  payment_intent: paymentIntent,
  charge,
  invoice,
  checkout_session: checkoutSession,
  payment_link: paymentLink,
  subscription,
  refund: byStatus("/v1/refunds", {
    done: ["succeeded"],
    open: ["pending", "requires_action"],
    gone: ["failed", "canceled"],
  }),
  payout: byStatus("/v1/payouts", { done: ["paid", "pending", "in_transit"], open: [], gone: ["failed", "canceled"] }),
  topup: byStatus("/v1/topups", { done: ["succeeded"], open: ["pending"], gone: ["failed", "canceled", "reversed"] }),
  transfer: byExistence("/v1/transfers"),
  credit_note: byExistence("/v1/credit_notes", ["amount", "total"]),
  inbound_transfer: ofFinancialAccount("/v1/treasury/inbound_transfers", {
    done: ["succeeded"],
    open: ["processing"],
    gone: ["failed", "canceled"],
  }),
  outbound_payment: ofFinancialAccount("/v1/treasury/outbound_payments", {
    done: ["posted"],
    open: ["processing"],
    gone: ["failed", "canceled", "returned"],
  }),
  outbound_transfer: ofFinancialAccount("/v1/treasury/outbound_transfers", {
    done: ["posted"],
    open: ["processing"],
    gone: ["failed", "canceled", "returned"],
  }),
  v2_outbound_payment: byV2Status("/v2/money_management/outbound_payments", {
    done: ["posted"],
    open: ["processing"],
    gone: ["failed", "canceled", "returned"],
  }),
  v2_inbound_transfer: v2InboundTransfer,
  v2_payout_intent: byV2Status("/v2/money_management/payout_intents", {
    done: ["posted"],
    open: ["pending", "processing", "requires_action"],
    gone: ["canceled", "failed"],
  }),
} as const satisfies Readonly<Record<string, ObjectFamily>>;

export type FamilyName = keyof typeof FAMILIES;

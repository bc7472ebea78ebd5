import type { BillingKind, BillingWork } from "../crash/billing-call.ts";
import type { FaultSpec } from "../support/stripe-simulator/fault-spec.ts";

/** Where the authorization of a call stands by what the call itself has done so far. */
export type Natural = "none" | "held" | "bound" | "followed" | "in_doubt" | "committed" | "voided";

/** What has happened at the vendor by then. */
export type AtVendor = "nothing" | "charged" | "refused" | "open";

/** One RPC or one request to the vendor, with where everything stands right before and right after it. */
export interface Step {
  readonly name: string;
  /** The how manieth of that name in the call. */
  readonly nth?: number;
  readonly before: Natural;
  readonly after: Natural;
  readonly vendorBefore: AtVendor;
  readonly vendorAfter: AtVendor;
}

/** One way in which a billing process, or a reconciler, goes through its steps. */
export interface Flow {
  readonly name: string;
  readonly kind: BillingKind;
  readonly work?: BillingWork;
  /** A vendor's trouble that leads this way; it ends before anything is run again. */
  readonly trouble?: Pick<FaultSpec, "mode"> & { readonly at: "create" | "confirm" };
  readonly card?: string;
  /** What was done before, for the calls of a reconciler. */
  readonly subject?: "charged" | "lost" | "lost for days" | "canceled" | "waiting";
  readonly steps: readonly Step[];
}

const create = "POST /v1/payment_intents";
const confirm = `${create}/:id/confirm`;
const charge = "POST /v1/charges";

type Stand = readonly [Natural, AtVendor];

/** Steps in their order, each with where everything stands after it. */
function chain(start: Stand, ...rest: readonly (readonly [string, Natural, AtVendor?, number?])[]): Step[] {
  let [before, vendorBefore] = start;
  return rest.map(([name, after, vendorAfter = vendorBefore, nth = 1]) => {
    const step = { name, before, after, vendorBefore, vendorAfter, nth };
    before = after;
    vendorBefore = vendorAfter;
    return step;
  });
}

const nothing: Stand = ["none", "nothing"];
const bound: Stand = ["bound", "nothing"];
const inDoubt: Stand = ["in_doubt", "nothing"];

export const flows: readonly Flow[] = [
  {
    name: "two steps",
    kind: "two_step",
    steps: chain(
      nothing,
      ["AuthorizeSpend", "held"],
      [create, "held"],
      ["BindVendorReference", "bound"],
      [confirm, "bound", "charged"],
      ["CommitSpend", "committed"],
    ),
  },
  {
    name: "two steps, declined",
    kind: "two_step",
    card: "pm_card_chargeDeclined",
    steps: chain(bound, [confirm, "bound", "refused"], [`${create}/:id/cancel`, "bound"], ["VoidSpend", "voided"]),
  },
  {
    name: "two steps, the bank asks",
    kind: "two_step",
    card: "pm_card_authenticationRequired",
    steps: chain(["bound", "open"], ["BindVendorReference", "followed", "open", 2]),
  },
  {
    name: "raised and captured",
    kind: "two_step",
    work: "raise_and_capture",
    steps: chain(
      // Whoever captures has taken the followed object up again.
      ["bound", "open"],
      ["IncreaseHold", "bound"],
      [`${create}/:id/increment_authorization`, "bound"],
      [`${create}/:id/capture`, "bound", "charged"],
      ["CommitSpend", "committed"],
    ),
  },
  {
    name: "one call",
    kind: "one_call",
    steps: chain(nothing, ["AuthorizeSpend", "held"], [charge, "held", "charged"], ["CommitSpend", "committed"]),
  },
  {
    name: "one call, declined",
    kind: "one_call",
    card: "tok_chargeDeclined",
    steps: chain(["held", "nothing"], [charge, "held", "refused"], ["VoidSpend", "voided"]),
  },
  {
    name: "one call, no answer",
    kind: "one_call",
    trouble: { mode: "html_502_after", at: "create" },
    steps: chain(["held", "charged"], ["ReportUnknown", "in_doubt"]),
  },
  {
    name: "under a lease",
    kind: "two_step",
    work: "under_lease",
    steps: [
      ...chain(nothing, ["AcquireBillingLease", "none"], ["RenewBillingLease", "none"]),
      ...chain(["committed", "charged"], ["ReleaseBillingLease", "committed"]),
    ],
  },
  {
    name: "reconcile a charge",
    kind: "one_call",
    work: "reconcile",
    subject: "charged",
    steps: chain(
      ["in_doubt", "charged"],
      ["ListUnsettledAuthorizations", "in_doubt"],
      ["GET*", "in_doubt"],
      ["CommitSpend", "committed"],
    ),
  },
  {
    name: "reconcile an absence",
    kind: "one_call",
    work: "reconcile",
    subject: "lost",
    steps: chain(inDoubt, ["GET*", "in_doubt"], ["ReportReconciliation", "in_doubt"]),
  },
  {
    name: "reconcile after the quarantine",
    kind: "one_call",
    work: "reconcile",
    subject: "lost for days",
    steps: chain(inDoubt, ["GET*", "in_doubt"], ["VoidSpend", "voided"]),
  },
  {
    name: "reconcile an ended object",
    kind: "two_step",
    work: "reconcile",
    subject: "canceled",
    steps: chain(["in_doubt", "refused"], ["GET*", "in_doubt"], ["VoidSpend", "voided"]),
  },
  {
    name: "reconcile an open object",
    kind: "two_step",
    work: "reconcile",
    subject: "waiting",
    steps: chain(["in_doubt", "open"], ["GET*", "in_doubt"], ["ReportReconciliation", "followed"]),
  },
];

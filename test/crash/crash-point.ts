import type { BillingKind } from "./billing-call.ts";

/** A point in a call at which something is killed. */
export interface CrashPoint {
  readonly kind: BillingKind;
  readonly name: string;
  /** Where the billing process stops by itself. */
  readonly pauseAt?: string;
  /** What keeps the request in flight instead: a row lock in the database, or the way to the vendor. */
  readonly heldBy?: "authorization" | "commit" | "vendor";
}

const create = "POST /v1/payment_intents";
const confirm = "POST /v1/payment_intents/:id/confirm";
const charge = "POST /v1/charges";

function points(kind: BillingKind, named: readonly Omit<CrashPoint, "kind">[]): CrashPoint[] {
  return named.map((point) => ({ kind, ...point }));
}

const beginning = [
  { name: "before authorize", pauseAt: "before AuthorizeSpend" },
  { name: "authorize sent", pauseAt: "before AuthorizeSpend", heldBy: "authorization" },
  { name: "granted", pauseAt: "after AuthorizeSpend" },
] as const;
const end = [
  { name: "commit sent", pauseAt: "before CommitSpend", heldBy: "commit" },
  { name: "committed", pauseAt: "after CommitSpend" },
] as const;

export const crashPoints: readonly CrashPoint[] = [
  ...points("two_step", [
    ...beginning,
    { name: "created", pauseAt: `after ${create}` },
    { name: "bound", pauseAt: "after BindVendorReference" },
    { name: "confirm sent", heldBy: "vendor" },
    { name: "confirm answered", pauseAt: `after ${confirm}` },
    ...end,
  ]),
  ...points("one_call", [
    ...beginning,
    { name: "charge sent", heldBy: "vendor" },
    { name: "charge answered", pauseAt: `after ${charge}` },
    ...end,
  ]),
];

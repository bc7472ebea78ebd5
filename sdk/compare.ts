import { type DecimalMoney, moneyFrom } from "./money.ts";
import { CONTRADICTIONS, isMoreThanHeld, type ReconcileDesk } from "./reconcile-core.ts";
import { markOf, placeOf, readFamilyObject, type Reconcilable } from "./reconcile-look.ts";
import type { StripePage, StripeReader } from "./reconcile-stripe.ts";
import { FAMILIES, type FamilyName, type ObjectFamily, text, type Verdict } from "./stripe-object.ts";

export type DifferenceKind =
  | "UNSETTLED"
  | "MOVEMENT_MISSING"
  | "AMOUNT_DIFFERS"
  | "AUTHORIZATION_MISSING"
  | "CONTRADICTION";

/** Something that one side shows and the other does not, or shows otherwise. */
export interface Difference {
  readonly kind: DifferenceKind;
  /** The last part of the authorization's name; empty where there is none. */
  readonly mark: string;
  readonly vendorReference: string;
  readonly vendorAccount: string;
  /** What Holdfast has. */
  readonly authorized: DecimalMoney | undefined;
  /** What the vendor shows. */
  readonly charged: DecimalMoney | undefined;
  /** One line: what was looked at, and what to do. */
  readonly message: string;
}

/** An authorization as a comparison sees it. */
export interface Comparable extends Reconcilable {
  /** "RUNNING": an attempt may be in the middle of its call. */
  readonly state: "RUNNING" | "FOLLOWED" | "IN_DOUBT" | "COMMITTED" | "VOIDED";
  readonly committed: DecimalMoney | undefined;
}

/** The families whose objects carry our metadata and can be listed by the time of their creation. */
export const LISTED_FAMILIES = [
  "charge",
  "checkout_session",
  "credit_note",
  "invoice",
  "payment_intent",
  "payout",
  "refund",
  "subscription",
  "topup",
  "transfer",
] as const satisfies readonly FamilyName[];

export type ListedFamily = (typeof LISTED_FAMILIES)[number];

/** A span of creation times, in seconds since 1970: from `from` on, before `to`. */
export interface Span {
  readonly from: number;
  readonly to: number;
}

/** One page of the objects of a family that were created in a span. */
export function movementPage(reader: StripeReader, name: ListedFamily, span: Span, account: string, after: string) {
  const family: ObjectFamily = FAMILIES[name];
  const query = {
    ...family.listQuery,
    "created[gte]": String(span.from),
    "created[lt]": String(span.to),
  };
  return reader.page(family.collection, query, account, after);
}

/** Another object of the same page's kind shows the same money under the same mark: Stripe copies metadata to it. */
function isCopy(name: ListedFamily, row: StripePage["rows"][number]): boolean {
  if (name === "charge") return text(row, "payment_intent") !== "" || text(row, "invoice") !== "";
  return name === "checkout_session" && text(row, "payment_link") !== "";
}

export interface Movement {
  readonly mark: string;
  readonly id: string;
  readonly verdict: Extract<Verdict, { kind: "charged" }>;
}

/** An object that could not be read to judge it, and why. */
export interface Unread {
  readonly mark: string;
  readonly id: string;
  readonly why: string;
}

/**
 * The movements of a page that carry our metadata, and what could not be read to judge it. Undefined if nothing more
 * can be read.
 */
export async function movementsOf(
  reader: StripeReader,
  name: ListedFamily,
  page: StripePage,
  account: string,
): Promise<{ readonly movements: readonly Movement[]; readonly unread: readonly Unread[] } | undefined> {
  const family: ObjectFamily = FAMILIES[name];
  const movements: Movement[] = [];
  const unread: Unread[] = [];
  for (const row of page.rows) {
    const mark = markOf(row);
    if (mark === "" || isCopy(name, row)) continue;
    const id = text(row, "id");
    let object = row;
    if (family.readQuery !== undefined) {
      const read = await readFamilyObject(reader, family, id, account);
      if (read.kind === "unreadable") {
        if (reader.spent()) return undefined;
        unread.push({ mark, id, why: read.why });
        continue;
      }
      if (read.kind === "absent") continue;
      object = read.value;
    }
    const verdict = family.judge(object);
    if (verdict.kind === "charged" && verdict.minor > 0n) movements.push({ mark, id, verdict });
  }
  return { movements, unread };
}

/** Something that could not be looked at: nothing is known of it. */
export function notLookedAt(
  {
    mark,
    vendorReference,
    vendorAccount,
    authorized,
  }: Pick<Difference, "mark" | "vendorReference" | "vendorAccount"> & Partial<Pick<Difference, "authorized">>,
  why: string,
): Difference {
  const message = `It could not be read, and was not looked at: ${why}. Compare again, or look at it by hand.`;
  return { kind: "UNSETTLED", mark, vendorReference, vendorAccount, authorized, charged: undefined, message };
}

export type MovementJudgement<Row> =
  /** Both sides show it, as far as a movement can say. `settled` if it was committed just now. */
  | { readonly agrees: true; readonly row: Row | undefined; readonly settled: boolean }
  | { readonly agrees: false; readonly row: Row | undefined; readonly difference: Difference };

export interface MovementSubject<Row> {
  readonly movement: Movement;
  readonly account: string;
  /** What the mark names; undefined if there is no such authorization. */
  readonly row: Row | undefined;
}

/**
 * Compares a movement with the authorization that its mark names. What that does not allow is committed all the same,
 * so that it is recorded and counted as a contradiction.
 */
export async function judgeMovement<Row extends Comparable>(
  desk: Pick<ReconcileDesk<Row>, "commit">,
  { movement, account, row }: MovementSubject<Row>,
): Promise<MovementJudgement<Row>> {
  const { id, mark, verdict } = movement;
  const charged = moneyFrom(verdict.minor, verdict.currency);
  const at = { vendorReference: id, vendorAccount: account, authorized: row?.committed ?? row?.held, charged };
  const differs = (kind: DifferenceKind, message: string): MovementJudgement<Row> => ({
    agrees: false,
    row,
    difference: { kind, mark: kind === "AUTHORIZATION_MISSING" ? "" : mark, ...at, message },
  });
  if (row === undefined || row.vendorAccount !== account) {
    return differs(
      "AUTHORIZATION_MISSING",
      `${id} carries the mark ${mark.slice(0, 64)}, and there is no such authorization for it. Find out who charged it.`,
    );
  }
  if (row.state === "COMMITTED" && row.vendorReference === id) {
    if (isSame(row.committed, charged)) return { agrees: true, row, settled: false };
    return differs("AMOUNT_DIFFERS", `${id} shows another amount than was committed. Find out which one is right.`);
  }
  // The attempt will say so itself.
  if (row.state === "RUNNING") return { agrees: true, row, settled: false };
  if (charged === undefined) return differs("UNSETTLED", `${id} shows an amount that is none.`);
  if (
    (row.state === "FOLLOWED" || row.state === "IN_DOUBT") &&
    row.vendorReference !== id &&
    isMoreThanHeld(row, verdict)
  ) {
    return differs("UNSETTLED", `${id} carries the mark and is dearer than what is held. Settle it by hand.`);
  }
  const refusal = await desk.commit(row, charged, id);
  if (refusal === undefined) return { agrees: true, row, settled: true };
  if (!CONTRADICTIONS.has(refusal)) return { agrees: true, row, settled: false };
  return differs(
    "CONTRADICTION",
    `${id} carries the mark of an authorization that does not allow it (${refusal}). Refund it, or close the contradiction.`,
  );
}

function isSame(one: DecimalMoney | undefined, other: DecimalMoney | undefined): boolean {
  return (
    one !== undefined && other !== undefined && one.currency === other.currency && isEqual(one.amount, other.amount)
  );
}

/** "49.9" and "49.90" are one amount. */
function isEqual(one: string, other: string): boolean {
  const plain = (amount: string) => (amount.includes(".") ? amount.replace(/\.?0+$/, "") : amount);
  return plain(one) === plain(other);
}

export type CommittedJudgement =
  | { readonly kind: "agrees" }
  /** The vendor cannot show what this kind of spend came to. */
  | { readonly kind: "incomparable" }
  | { readonly kind: "unreadable"; readonly why: string }
  | { readonly kind: "differs"; readonly difference: Difference };

/** Compares a committed authorization with the object that it names. */
export async function judgeCommitted(reader: StripeReader, row: Comparable): Promise<CommittedJudgement> {
  const { family } = placeOf(row);
  const { mark, vendorReference, vendorAccount, committed } = row;
  // Of a kind that cannot be read back, the reference is an event's object and our own name.
  if (family === undefined || vendorReference.includes("+")) return { kind: "incomparable" };
  const found = await readFamilyObject(reader, family, vendorReference, vendorAccount);
  const differs = (kind: DifferenceKind, message: string, charged?: DecimalMoney): CommittedJudgement => ({
    kind: "differs",
    difference: { kind, mark, vendorReference, vendorAccount, authorized: committed, charged, message },
  });
  if (found.kind === "unreadable") return { kind: "unreadable", why: found.why };
  if (found.kind === "absent") {
    return differs("MOVEMENT_MISSING", `${vendorReference} is committed, and the vendor has no such object.`);
  }
  const verdict = family.judge(found.value);
  switch (verdict.kind) {
    case "charged": {
      const charged = moneyFrom(verdict.minor, verdict.currency);
      if (isSame(committed, charged)) return { kind: "agrees" };
      return differs("AMOUNT_DIFFERS", `${vendorReference} shows another amount than was committed.`, charged);
    }
    case "gone":
    case "open":
      return differs(
        "MOVEMENT_MISSING",
        `${vendorReference} is committed, and the vendor shows it as ${verdict.state}.`,
      );
    case "obliged":
    case "unclear":
      return { kind: "incomparable" };
  }
}

import type { Money } from "./money.ts";

export type ReconciliationRunState = "PENDING" | "RUNNING" | "DONE" | "FAILED";

/** Where a run goes on. Accounts and families are gone through in the order of their names. */
export type RunCursor =
  /** Settles what is not settled, oldest grant first, after this one. */
  | { readonly step: "SETTLE"; readonly after: RunPosition | null }
  /** Goes through what the vendor shows, page by page. */
  | {
      readonly step: "MOVEMENTS";
      readonly account: string;
      readonly family: string;
      /** The last object of the page before, or empty. */
      readonly after: string;
      /** How often this page could not be read although the vendor answers. */
      readonly tries?: number;
    }
  /** Reads what is committed and was not among the movements, after this one. */
  | { readonly step: "AUTHORIZATIONS"; readonly after: RunPosition | null; readonly incomparable: number }
  | { readonly step: "END" };

export interface RunPosition {
  /** Microseconds since 1970, as digits. */
  readonly grantTime: string;
  readonly spendKey: string;
  readonly generation: number;
}

/** A comparison of both sides. Times are microseconds since 1970 on the database clock. */
export interface ReconciliationRun {
  readonly runId: string;
  readonly vendor: string;
  readonly state: ReconciliationRunState;
  readonly startTime: bigint;
  readonly endTime: bigint;
  readonly createTime: bigint;
  readonly finishTime: bigint | undefined;
  readonly message: string;
  readonly cursor: RunCursor;
  readonly readCount: bigint;
  readonly authorizationCount: bigint;
  readonly committedCount: bigint;
  readonly voidedCount: bigint;
  readonly movementCount: bigint;
  readonly differenceCount: bigint;
}

export type ReconciliationDifferenceKind =
  | "UNSETTLED"
  | "MOVEMENT_MISSING"
  | "AMOUNT_DIFFERS"
  | "AUTHORIZATION_MISSING"
  | "CONTRADICTION";

/** What a run has left over. */
export interface ReconciliationDifference {
  readonly kind: ReconciliationDifferenceKind;
  /** The last part of the authorization's name, or empty. */
  readonly mark: string;
  readonly vendorReference: string;
  readonly vendorAccount: string;
  readonly authorized: Money | undefined;
  readonly charged: Money | undefined;
  readonly message: string;
}

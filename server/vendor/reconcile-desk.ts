import {
  type Comparable,
  type DecimalMoney,
  REFUSALS,
  type ReconcileDesk,
  type Refusal,
  type Report,
} from "@holdfast/sdk/stripe-vendor";
import { HoldfastError } from "../domain/errors.ts";
import { formatMicros, type Money, parseAmount } from "../domain/money.ts";
import { type Actor, type Authorization, type CommitCommand, formatAuthorizationName } from "../domain/spend.ts";
import type { Database } from "../store/database.ts";
import type { GroupCommit } from "../store/group-commit.ts";
import { reportReconciliation } from "../store/reconcile.ts";
import { type CommitResult, type Settled, voidSpend } from "../store/spend.ts";
import { currentTraceId } from "../store/trace-origin.ts";

/** How the audit names what is settled here. */
const actor: Actor = { kind: "server", id: "reconciler" };

/** An authorization, as it is compared with the vendor. */
export interface Row extends Comparable {
  readonly authorization: Authorization;
  /** When it was listed to be looked for, in microseconds; undefined where its absence is not asked about. */
  readonly lookTime: bigint | undefined;
}

interface Listed {
  readonly running?: boolean;
  readonly lookTime?: bigint;
}

export function rowOf(authorization: Authorization, { running = false, lookTime }: Listed = {}): Row {
  const { amount, held, committed, vendorReference, vendorAccount, endpoint, idempotencyKey } = authorization;
  return {
    authorization,
    lookTime,
    mark: formatAuthorizationName(authorization).slice("authorizations/".length),
    endpoint,
    vendorAccount,
    vendorReference: vendorReference ?? "",
    idempotencyKey,
    held: decimal({ currency: amount.currency, micros: held }),
    grantedAtS: Number(authorization.grantTime / 1_000_000n),
    wasAbsent: authorization.reconciliation?.absentSinceTime !== undefined,
    state: running ? "RUNNING" : stateOf(authorization),
    committed: committed === undefined ? undefined : decimal(committed),
  };
}

function stateOf({ state, inDoubtTime }: Authorization): Comparable["state"] {
  if (state !== "HELD") return state;
  return inDoubtTime === undefined ? "FOLLOWED" : "IN_DOUBT";
}

function decimal({ currency, micros }: Money): DecimalMoney {
  return { currency, amount: formatMicros(micros) };
}

/** Money as the vendor showed it. */
export function moneyOf(money: DecimalMoney | undefined): Money | undefined {
  return money === undefined ? undefined : parseAmount(money.currency, money.amount, "amount", true);
}

/** How long an object in a known, unfinished state is followed before it is in doubt: 7 days. */
const followForMs = 7 * 86_400_000;

export interface DeskOptions {
  readonly database: Database;
  readonly workspace: string;
  readonly commits: GroupCommit<CommitCommand, CommitResult>;
  /** The vendor does not answer at all. */
  readonly silent: () => boolean;
  /** The one account that everything was read from; empty if there were several. */
  readonly account: () => string;
}

// What was read is true, also where the server is about to stop.
const neverAborted = new AbortController().signal;

/** Settles in the store, whatever vault key it was granted to. */
export function createServerDesk(options: DeskOptions): ReconcileDesk<Row> {
  const { database, workspace, commits, silent, account } = options;
  const lookOf = ({ lookTime: time }: Row) => (time === undefined ? {} : { look: { time, account: account() } });
  return {
    commit: ({ authorization }, money, vendorReference) =>
      settled(async () => {
        const amount = parseAmount(money.currency, money.amount, "amount", true);
        const command = {
          actor,
          authorization,
          amount,
          vendorReference,
          attemptId: "",
          traceId: currentTraceId() ?? "",
        };
        return await commits.submit(workspace, command, neverAborted);
      }),
    void: (row, proof) =>
      settled(() =>
        voidSpend(database, workspace, {
          actor,
          authorization: row.authorization,
          attemptId: "",
          evidence: proof.evidence,
          vendorStatus: 0,
          vendorReplayed: false,
          vendorReference: proof.evidence === "TOMBSTONE" ? proof.vendorReference : "",
          reason: "",
          traceId: currentTraceId() ?? "",
          ...lookOf(row),
        }),
      ),
    report: async (row, report) => {
      // It stays due: the next look comes as soon as the vendor is back, and the schedule is not used up meanwhile.
      if (isOutage(report, silent()) && row.authorization.reconciliation !== undefined) return undefined;
      const { finding, note, vendorReference = "", vendorState = "" } = report;
      const { authorization } = row;
      return await settled(() =>
        reportReconciliation(database, workspace, {
          actor,
          authorization,
          finding,
          vendorReference,
          vendorState,
          note,
          followForMs,
          traceId: currentTraceId() ?? "",
          ...lookOf(row),
        }),
      );
    },
  };
}

function isOutage({ finding }: Report, silent: boolean): boolean {
  return finding === "UNREADABLE" && silent;
}

/** The reason of a refusal that settles the question elsewhere. Rejects with every other failure. */
async function settled(call: () => Promise<Settled>): Promise<Refusal> {
  try {
    const { errorReason } = await call();
    if (errorReason === undefined || REFUSALS.has(errorReason)) return errorReason;
    throw new Error(`a reconciliation was refused: ${errorReason}`);
  } catch (error) {
    if (error instanceof HoldfastError && REFUSALS.has(error.reason)) return error.reason;
    throw error;
  }
}

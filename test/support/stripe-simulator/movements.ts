import { appendFileSync, existsSync, readFileSync } from "node:fs";
import type { Context } from "./state.ts";

/**
 * What kind of money moved.
 * - From the customer: `charge`, and `capture` of a card that was only authorized before.
 * - To the customer: `refund`; `refund_return` is a refund that failed or was canceled after it had moved.
 * - Out of the account: `payout`, `transfer`, `issuing_approval`; back again `payout_return`, `transfer_reversal`.
 * - Into the account: `topup`, `inbound_transfer`; back again `topup_return`.
 * - Promised to a customer's future invoices: `credit`; taken back `credit_return`.
 */
export type MovementKind =
  | "charge"
  | "capture"
  | "refund"
  | "refund_return"
  | "payout"
  | "payout_return"
  | "transfer"
  | "transfer_reversal"
  | "issuing_approval"
  | "topup"
  | "topup_return"
  | "inbound_transfer"
  | "credit"
  | "credit_return";

/**
 * One real movement of money: the ground truth that every claim about double charges is judged by.
 * `at` is milliseconds on the simulator's clock, `amount` is in the currency's minor unit and not negative.
 * An authorized card, an open invoice and an unpaid page are not movements.
 */
export interface Movement {
  readonly at: number;
  readonly kind: MovementKind;
  /** The id of the object that stands for the movement: a charge's, a refund's, a payout's. */
  readonly id: string;
  readonly payment_intent?: string;
  /** The invoice, checkout session or payment link that led to it. */
  readonly cause?: string;
  readonly amount: number;
  readonly currency: string;
  readonly customer: string | null;
  readonly account: string;
  /** The key of the request that moved the money; null when it came without one, from a browser, or from Stripe itself. */
  readonly idempotency_key: string | null;
  /** The object's, laid over that of its cause: where `holdfast_authorization` is, if anywhere. */
  readonly metadata: Readonly<Record<string, string>>;
}

/**
 * Appends movements to a JSON Lines file at the moment they happen. Written synchronously and before the answer,
 * so that no crash of a client, nor a dropped connection, can lose one.
 */
export class MovementLedger {
  readonly file: string;

  constructor(file: string) {
    this.file = file;
    appendFileSync(file, "");
  }

  append(movement: Movement): void {
    appendFileSync(this.file, `${JSON.stringify(movement)}\n`);
  }
}

/** Writes down that money moves now, in the account and by the request of this context. */
export function recordMovement(
  context: Context,
  movement: Omit<Movement, "at" | "account" | "idempotency_key" | "payment_intent"> & {
    readonly payment_intent?: string | null;
  },
): void {
  const { kind, id, payment_intent: intent, cause, amount, currency, customer, metadata } = movement;
  context.ledger.append({
    at: context.clock.now(),
    kind,
    id,
    ...(intent === null || intent === undefined ? {} : { payment_intent: intent }),
    ...(cause === undefined ? {} : { cause }),
    amount,
    currency,
    customer,
    account: context.account.id,
    idempotency_key: context.origin?.idempotency_key ?? null,
    metadata: { ...metadata },
  });
}

/** All movements in the file, oldest first; none when the file does not exist. */
export function readMovements(file: string): Movement[] {
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, "utf8").split("\n");
  return lines.filter((line) => line !== "").map((line) => JSON.parse(line) as Movement);
}

/**
 * Groups the charges and captures by the spend they belong to, so that a test can say "never more than one".
 * `spendOf` names the spend of a movement, for example its customer and period; undefined leaves it out.
 */
export function chargesPerSpend(
  movements: readonly Movement[],
  spendOf: (movement: Movement) => string | undefined,
): Map<string, Movement[]> {
  const groups = new Map<string, Movement[]>();
  for (const movement of movements) {
    if (movement.kind !== "charge" && movement.kind !== "capture") continue;
    const spend = spendOf(movement);
    if (spend === undefined) continue;
    const group = groups.get(spend);
    if (group === undefined) groups.set(spend, [movement]);
    else group.push(movement);
  }
  return groups;
}

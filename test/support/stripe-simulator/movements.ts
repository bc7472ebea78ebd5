import { appendFileSync, existsSync, readFileSync } from "node:fs";

/**
 * One real movement of money: the ground truth that every claim about double charges is judged by.
 * `at` is milliseconds on the simulator's clock, `amount` is in the currency's minor unit.
 */
export interface Movement {
  readonly at: number;
  readonly kind: "charge" | "refund";
  /** The charge's or refund's id. */
  readonly id: string;
  readonly payment_intent?: string;
  readonly amount: number;
  readonly currency: string;
  readonly customer: string | null;
  readonly account: string;
  /** The key of the request that moved the money; null when it came without one, or from a browser. */
  readonly idempotency_key: string | null;
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

/** All movements in the file, oldest first; none when the file does not exist. */
export function readMovements(file: string): Movement[] {
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, "utf8").split("\n");
  return lines.filter((line) => line !== "").map((line) => JSON.parse(line) as Movement);
}

/**
 * Groups the charges by the spend they belong to, so that a test can say "never more than one".
 * `spendOf` names the spend of a movement, for example its customer and period; undefined leaves it out.
 */
export function chargesPerSpend(
  movements: readonly Movement[],
  spendOf: (movement: Movement) => string | undefined,
): Map<string, Movement[]> {
  const groups = new Map<string, Movement[]>();
  for (const movement of movements) {
    if (movement.kind !== "charge") continue;
    const spend = spendOf(movement);
    if (spend === undefined) continue;
    const group = groups.get(spend);
    if (group === undefined) groups.set(spend, [movement]);
    else group.push(movement);
  }
  return groups;
}

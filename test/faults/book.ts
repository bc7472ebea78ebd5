import { createHash } from "node:crypto";
import type { AnswerLine, AuthorizationRow, Evidence, LedgerMovement, PlannedSpend } from "./evidence.ts";

/** Which movement, authorization and answer belongs to which spend. */
export interface Book {
  readonly nobodys: readonly LedgerMovement[];
  readonly disputed: readonly { readonly movement: LedgerMovement; readonly spends: readonly string[] }[];
  movementsOf(spend: string): readonly LedgerMovement[];
  /** Oldest generation first. */
  authorizationsOf(spend: string): readonly AuthorizationRow[];
  answersOf(spend: string): readonly AnswerLine[];
  spendOf(row: Pick<AuthorizationRow, "spend_key">): PlannedSpend | undefined;
  /** The generation that the movement belongs to. */
  authorizationOf(movement: LedgerMovement): AuthorizationRow | undefined;
}

const keyLength = 32;

export function createBook(evidence: Evidence): Book {
  const bySpendKey = new Map(evidence.spends.map((spend) => [spendKey(spend), spend]));
  const spends = new Map(evidence.spends.map((spend) => [spend.id, spend]));
  const byVendorKey = new Map(evidence.authorizations.map((row) => [row.idempotency_key, row]));
  const byName = new Map(evidence.authorizations.map((row) => [`${row.spend_key}-${row.generation}`, row]));
  const byReference = new Map<string, AuthorizationRow>();
  for (const row of evidence.authorizations) {
    if (row.vendor_reference !== null) byReference.set(row.vendor_reference, row);
  }
  const spendOf: Book["spendOf"] = ({ spend_key }) => bySpendKey.get(spend_key);

  const referenced = ({ id, payment_intent, cause }: LedgerMovement): AuthorizationRow | undefined =>
    [payment_intent, id, cause].map((one) => (one === undefined ? undefined : byReference.get(one))).find((row) => row);

  /**
   * By what the object is bound to, or by the key. What a browser paid has no key: there the mark that the guard left on
   * the object counts, if the authorization is in doubt because nobody could bind the object.
   */
  const authorizationOf: Book["authorizationOf"] = (movement) => {
    const { idempotency_key: key, metadata } = movement;
    if (key !== null) return referenced(movement) ?? byVendorKey.get(key.slice(0, keyLength));
    const marked = byName.get(metadata["holdfast_authorization"] ?? "");
    return (
      referenced(movement) ?? (marked?.state === "IN_DOUBT" && marked.vendor_reference === null ? marked : undefined)
    );
  };

  const movements = new Map<string, LedgerMovement[]>();
  const nobodys: LedgerMovement[] = [];
  const disputed: { movement: LedgerMovement; spends: string[] }[] = [];
  for (const movement of evidence.movements) {
    if ("faults_setup" in movement.metadata) continue;
    const owners = new Set<string>();
    const marked = movement.metadata["faults_spend"];
    if (marked !== undefined && spends.has(marked)) owners.add(marked);
    const row = authorizationOf(movement);
    const owner = row === undefined ? undefined : spendOf(row)?.id;
    if (owner !== undefined) owners.add(owner);
    if (owners.size > 1) disputed.push({ movement, spends: [...owners] });
    if (owners.size === 0) nobodys.push(movement);
    for (const id of owners) append(movements, id, movement);
  }

  const authorizations = new Map<string, AuthorizationRow[]>();
  for (const row of evidence.authorizations) {
    const spend = spendOf(row);
    if (spend !== undefined) append(authorizations, spend.id, row);
  }
  for (const some of authorizations.values()) some.sort((one, other) => one.generation - other.generation);
  const answers = new Map<string, AnswerLine[]>();
  for (const line of evidence.answers) append(answers, line.spend, line);
  return {
    nobodys,
    disputed,
    movementsOf: (spend) => movements.get(spend) ?? [],
    authorizationsOf: (spend) => authorizations.get(spend) ?? [],
    answersOf: (spend) => answers.get(spend) ?? [],
    spendOf,
    authorizationOf,
  };
}

/** The formula that is published for callers in other languages. */
function spendKey({ customerId, billingPeriod, purpose }: PlannedSpend): string {
  const key = digest(`${customerId}:${billingPeriod}:${purpose}`).slice(0, keyLength);
  return digest(billingPeriod).slice(0, 4) + key;
}

function digest(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

function append<Value>(groups: Map<string, Value[]>, name: string, value: Value): void {
  const group = groups.get(name);
  if (group === undefined) groups.set(name, [value]);
  else group.push(value);
}

export function textOf({ kind, id, amount, currency, idempotency_key: key }: LedgerMovement): string {
  return `${kind} ${amount} ${currency} ${id} (key ${key ?? "none"})`;
}

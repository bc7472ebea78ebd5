import type { Book } from "./book.ts";
import type { Difference } from "./checker.ts";
import type { AuthorizationRow, CounterRow, Evidence } from "./evidence.ts";

/** Every counter is what its authorizations come to, and above its limit only for a reason that was written down. */
export function capDifferences(evidence: Evidence, book: Book): Difference[] {
  const counted = countAgain(evidence);
  const excused = new Set(overCommitted(evidence).flatMap((row) => holdNames(evidence, row)));
  const wrong = (what: string): Difference => ({ spend: undefined, what });
  const isAbove = ({ committed_micros, held_micros, limit_micros }: CounterRow): boolean =>
    BigInt(committed_micros) + BigInt(held_micros) > BigInt(limit_micros);
  return [
    ...evidence.counters.flatMap((counter) => {
      const { committed, held } = counted.get(nameOf(counter)) ?? { committed: 0n, held: 0n };
      const isRight = committed === BigInt(counter.committed_micros) && held === BigInt(counter.held_micros);
      const says = `committed ${counter.committed_micros}, held ${counter.held_micros}`;
      return isRight
        ? []
        : [wrong(`the counter ${nameOf(counter)} says ${says}; it should be ${committed} and ${held} micros`)];
    }),
    ...[...evidence.counters.filter(isAbove), ...evidence.excesses]
      .filter((counter) => !excused.has(nameOf(counter)))
      .map((counter) => wrong(`the cap ${nameOf(counter)} is above its limit: ${JSON.stringify(counter)}`)),
    ...ledgerDifferences(evidence, book),
  ];
}

function nameOf(row: { readonly cap_id: string; readonly window_label: string; readonly subject: string }): string {
  return [row.cap_id, row.window_label, row.subject].filter((part) => part !== "").join(" ");
}

function rowName({ spend_key, generation }: { readonly spend_key: string; readonly generation: number }): string {
  return `${spend_key}-${generation}`;
}

function countAgain(evidence: Evidence): Map<string, { committed: bigint; held: bigint }> {
  const rows = new Map(evidence.authorizations.map((row) => [rowName(row), row]));
  const counted = new Map<string, { committed: bigint; held: bigint }>();
  for (const hold of evidence.holds) {
    const row = rows.get(rowName(hold));
    const counter = counted.get(nameOf(hold)) ?? { committed: 0n, held: 0n };
    counted.set(nameOf(hold), counter);
    if (row?.state === "COMMITTED") counter.committed += BigInt(row.committed_micros ?? 0);
    if (row?.state === "HELD" || row?.state === "IN_DOUBT") counter.held += BigInt(row.held_micros);
    for (const contradiction of evidence.contradictions) {
      if (rowName(contradiction) === rowName(hold)) counter.committed += BigInt(contradiction.counted_micros);
    }
  }
  return counted;
}

/** Authorizations of which more was charged than held, or charged beside what was authorized. */
function overCommitted({ authorizations, contradictions }: Evidence): AuthorizationRow[] {
  const contradicted = new Set(contradictions.map(rowName));
  return authorizations.filter(
    (row) => BigInt(row.committed_micros ?? 0) > BigInt(row.held_micros) || contradicted.has(rowName(row)),
  );
}

function holdNames({ holds }: Evidence, row: AuthorizationRow): string[] {
  return holds.filter((hold) => rowName(hold) === rowName(row)).map(nameOf);
}

/** What the ledgers say was charged to a customer is within the customer's cap. */
function ledgerDifferences({ spends, counters }: Evidence, book: Book): Difference[] {
  const moved = new Map<string, bigint>();
  for (const { id, customerId, base } of spends) {
    if (base !== undefined) continue;
    for (const { amount } of book.movementsOf(id)) {
      moved.set(customerId, (moved.get(customerId) ?? 0n) + BigInt(amount) * 10_000n);
    }
  }
  return counters.flatMap(({ subject, limit_micros }) => {
    const micros = moved.get(subject) ?? 0n;
    return micros <= BigInt(limit_micros)
      ? []
      : [{ spend: undefined, what: `${subject} was charged ${micros} micros, above the cap of ${limit_micros}` }];
  });
}

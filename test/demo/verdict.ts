import { type Customer, sumOfCents } from "./customers.ts";
import { endedAs, type GuardedResult } from "./play.ts";
import type { Scenario } from "./scenarios.ts";
import type { VendorCharge } from "./vendor.ts";

/** One line of the table. */
export interface Row {
  readonly title: string;
  readonly customers: number;
  readonly unguardedCharges: number;
  readonly unguardedDuplicates: number;
  readonly guardedCharges: number;
  readonly guardedDuplicates: number;
  readonly denied: number;
  readonly inDoubt: number;
  /** The trouble that the guarded run had: connections cut, and processes killed. */
  readonly cuts: number;
  readonly kills: number;
  /** True if more was charged, or held, than the cap allows. */
  readonly isOverCap: boolean;
  /** What is wrong, in words; empty if the promise held. */
  readonly faults: readonly string[];
}

/** How many charges are more than one per customer. */
export function duplicatesIn(charges: readonly VendorCharge[]): number {
  return charges.length - new Set(charges.map(({ customerId }) => customerId)).size;
}

export function judge(
  scenario: Scenario,
  customers: readonly Customer[],
  unguarded: readonly VendorCharge[],
  guarded: GuardedResult,
): Row {
  const denied = customers.filter((customer) => endedAs(guarded, customer, "denied"));
  const chargedCents = sumOfCents(guarded.charges);
  const unguardedDuplicates = duplicatesIn(unguarded);
  const guardedDuplicates = duplicatesIn(guarded.charges);
  const isOverCap = chargedCents > guarded.capCents || guarded.usedCents > guarded.capCents;
  const faults = [
    ...(guardedDuplicates > 0 ? [`${guardedDuplicates} charges too many in the guarded run`] : []),
    ...(isOverCap ? ["the cap did not hold"] : []),
    ...customerFaults(customers, denied, guarded),
    ...bookFaults(customers, chargedCents, guarded),
    ...proofFaults(scenario, { unguardedDuplicates, denied: denied.length }, guarded),
    ...guarded.problems.map((problem) => `a billing process says: ${problem}`),
  ];
  return {
    title: scenario.title,
    customers: customers.length,
    unguardedCharges: unguarded.length,
    unguardedDuplicates,
    guardedCharges: guarded.charges.length,
    guardedDuplicates,
    denied: denied.length,
    inDoubt: guarded.open.size,
    cuts: guarded.drops,
    kills: guarded.kills,
    isOverCap,
    faults,
  };
}

/** Denied: not charged, and for want of headroom. In doubt: at most once. Everybody else: once, and the right amount. */
function customerFaults(customers: readonly Customer[], denied: readonly Customer[], guarded: GuardedResult): string[] {
  const headroom = guarded.capCents - guarded.usedCents;
  const known = new Set(customers.map(({ id }) => id));
  const strangers = guarded.charges.filter(({ customerId }) => !known.has(customerId));
  return [
    ...strangers.map(({ id }) => `the charge ${id} is nobody's`),
    ...customers.flatMap((customer) => {
      const charges = guarded.charges.filter(({ customerId }) => customerId === customer.id);
      const wrong = charges.some(({ cents }) => cents !== customer.cents) ? [`${customer.id}: a wrong amount`] : [];
      if (guarded.open.has(customer.id)) return wrong;
      if (!denied.includes(customer)) {
        return charges.length === 1 ? wrong : [...wrong, `${customer.id}: charged ${charges.length} times`];
      }
      if (charges.length > 0) return [...wrong, `${customer.id}: denied and charged`];
      return customer.cents > headroom ? wrong : [...wrong, `${customer.id}: denied although it fits`];
    }),
  ];
}

/** What the server has counted is exactly what was charged, and what is still in doubt. */
function bookFaults(customers: readonly Customer[], chargedCents: number, guarded: GuardedResult): string[] {
  const uncharged = customers.filter(
    ({ id }) => guarded.open.has(id) && !guarded.charges.some(({ customerId }) => customerId === id),
  );
  const expected = chargedCents + sumOfCents(uncharged);
  return expected === guarded.usedCents
    ? []
    : [`the server counts ${guarded.usedCents} cents, and ${expected} are charged or in doubt`];
}

/** A scenario in which nothing went wrong would prove nothing. */
function proofFaults(
  scenario: Scenario,
  { unguardedDuplicates, denied }: { unguardedDuplicates: number; denied: number },
  guarded: GuardedResult,
): string[] {
  return [
    ...(unguardedDuplicates === 0 ? ["the unguarded run charged nobody twice, so the failure did not happen"] : []),
    ...(guarded.drops === 0 ? ["no connection was cut"] : []),
    ...(scenario.retrying !== "none" && guarded.retries === 0 ? ["the retrying code never ran anything again"] : []),
    ...(guarded.kills < scenario.processes + 1 ? ["no process was killed and started again"] : []),
    ...(scenario.capPercent < 100 && denied === 0 ? ["the small cap denied nobody"] : []),
  ];
}

import {
  type Comparable,
  type Difference,
  judgeCommitted,
  judgeMovement,
  LISTED_FAMILIES,
  type ListedFamily,
  movementPage,
  movementsOf,
  notLookedAt,
  type Span,
} from "./compare.ts";
import type { ReconcileDifference } from "./reconcile.ts";
import type { ReconcileDesk } from "./reconcile-core.ts";
import { placeOf } from "./reconcile-look.ts";
import type { StripeReader } from "./reconcile-stripe.ts";
import { FAMILIES } from "./stripe-object.ts";

export interface OwnSides {
  readonly desk: ReconcileDesk;
  readonly reader: StripeReader;
  readonly since: Date;
  /** What this vault key was granted since and is committed. */
  readonly committed: readonly Comparable[];
  /** What is still in doubt. */
  readonly inDoubt: readonly Comparable[];
  /** What was looked at before, for the accounts that it uses. */
  readonly known: readonly Comparable[];
  /** An authorization of this vault key; undefined if there is none or it is another's. */
  readonly find: (mark: string) => Promise<Comparable | undefined>;
}

interface Compared {
  readonly differences: readonly ReconcileDifference[];
  /** False if something could not be read. */
  readonly complete: boolean;
}

const MARK = /^[0-9a-f]{36}-[1-9][0-9]{0,6}$/;
// Until when objects are listed: later than any clock shows.
const FAR_S = 4_102_444_800;

/** What the two sides of one vault key do not agree on. Assumes that what can be settled was settled. */
export async function compareBothWays(sides: OwnSides): Promise<Compared> {
  const { since, committed, inDoubt, known, reader } = sides;
  const span = { from: Math.floor(since.getTime() / 1000), to: FAR_S };
  const differences: Difference[] = [];
  const agreed = new Set<string>();
  let complete = true;
  const used = new Set(["", ...[...committed, ...known].map(({ vendorAccount }) => vendorAccount)]);
  for (const account of [...used].toSorted()) {
    for (const name of LISTED_FAMILIES) {
      const read = await compareFamily(sides, { name, account, span, agreed, differences });
      complete &&= read;
    }
  }
  for (const row of committed.filter(({ mark }) => !agreed.has(mark))) {
    const judged = await judgeCommitted(reader, row);
    if (judged.kind === "unreadable") {
      complete = false;
      if (!reader.spent()) differences.push(notLookedAt({ ...row, authorized: row.committed }, judged.why));
    }
    if (judged.kind === "differs") differences.push(judged.difference);
  }
  for (const row of inDoubt.filter(({ grantedAtS }) => grantedAtS >= span.from)) differences.push(unsettled(row));
  return { differences: differences.flatMap(published), complete };
}

interface FamilySide {
  readonly name: ListedFamily;
  readonly account: string;
  readonly span: Span;
  /** Marks of committed authorizations that a movement was found for. */
  readonly agreed: Set<string>;
  readonly differences: Difference[];
}

/** False if not everything could be read. */
async function compareFamily(sides: OwnSides, side: FamilySide): Promise<boolean> {
  const { reader, desk, committed, known } = sides;
  const { name, account, span, agreed, differences } = side;
  const own = new Map(committed.map((row) => [row.mark, row]));
  let complete = true;
  for (let after: string | undefined = ""; after !== undefined; ) {
    const page = await movementPage(reader, name, span, account, after);
    if (page.kind === "unreadable" && (page.status === 400 || page.status === 403)) {
      // A key that may not list a kind, or an account that has none of it, and nothing of it was ever spent.
      return [...committed, ...known].every((row) => placeOf(row).family !== FAMILIES[name]);
    }
    if (page.kind !== "found") return false;
    const read = await movementsOf(reader, name, page.value, account);
    if (read === undefined) return false;
    for (const { mark, id, why } of read.unread) {
      complete = false;
      const row = own.get(mark) ?? (MARK.test(mark) ? await sides.find(mark) : undefined);
      if (row !== undefined) differences.push(notLookedAt({ mark, vendorReference: id, vendorAccount: account }, why));
    }
    for (const movement of read.movements) {
      const { mark } = movement;
      const row = own.get(mark) ?? (MARK.test(mark) ? await sides.find(mark) : undefined);
      // It may be another vault key's.
      if (row === undefined) continue;
      const judged = await judgeMovement(desk, { movement, account, row });
      if (row.state === "COMMITTED" && row.vendorReference === movement.id) agreed.add(mark);
      if (!judged.agrees) differences.push(judged.difference);
    }
    after = page.value.after;
  }
  return complete;
}

function unsettled({ mark, vendorReference, vendorAccount, held }: Comparable): Difference {
  const message = "Still in doubt: Stripe could not answer, or that it shows nothing is no proof yet.";
  return { kind: "UNSETTLED", mark, vendorReference, vendorAccount, authorized: held, charged: undefined, message };
}

function published({ kind, mark, vendorReference, vendorAccount, ...rest }: Difference): ReconcileDifference[] {
  if (kind === "AUTHORIZATION_MISSING") return [];
  return [
    {
      ...rest,
      kind,
      authorization: `authorizations/${mark}`,
      vendorReference: vendorReference === "" ? undefined : vendorReference,
      vendorAccount: vendorAccount === "" ? undefined : vendorAccount,
    },
  ];
}

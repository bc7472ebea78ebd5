import { type Book, createBook, textOf } from "./book.ts";
import { capDifferences } from "./cap-check.ts";
import { answerDifferences } from "./answer-check.ts";
import type { AuthorizationRow, Evidence, LedgerMovement, PlannedSpend } from "./evidence.ts";
import { reasonsOf } from "./reasons.ts";

/** Something that must not be. */
export interface Difference {
  /** The spend it is about, if any. */
  readonly spend: string | undefined;
  readonly what: string;
}

/** An authorization that is not settled, and why. */
export interface OpenAuthorization {
  readonly spend: string;
  readonly authorization: AuthorizationRow;
  /** The vendor's object is in a state that is known, and waited for. */
  readonly isFollowed: boolean;
  readonly reasons: readonly string[];
}

export interface Verdict {
  readonly differences: readonly Difference[];
  readonly open: readonly OpenAuthorization[];
}

/** Compares what the vendors' ledgers, the database and the callers' log say. */
export function check(evidence: Evidence): Verdict {
  const book = createBook(evidence);
  const open = openAuthorizations(evidence, book);
  return {
    open,
    differences: [
      ...strangers(evidence, book),
      ...evidence.spends.flatMap((spend) => spendDifferences(spend, book)),
      ...open.flatMap(({ spend, authorization, reasons }) =>
        reasons.length > 0
          ? []
          : [{ spend, what: `generation ${authorization.generation} is ${authorization.state} for no reason` }],
      ),
      ...doubtDifferences(evidence, book),
      ...givenBackTooMuch(evidence, book),
      ...capDifferences(evidence, book),
      ...answerDifferences(evidence, book),
      ...evidence.defects.map((what) => ({ spend: undefined, what: `a billing process: ${what}` })),
    ],
  };
}

/** Movements and authorizations that belong to no spend that was planned, and those that name two. */
function strangers({ authorizations }: Evidence, book: Book): Difference[] {
  return [
    ...book.nobodys.map((movement) => ({ spend: undefined, what: `nobody asked for ${textOf(movement)}` })),
    ...book.disputed.map(({ movement, spends }) => ({
      spend: spends[0],
      what: `${textOf(movement)} belongs to several spends: ${spends.join(", ")}`,
    })),
    ...authorizations
      .filter((row) => book.spendOf(row) === undefined)
      .map((row) => ({ spend: undefined, what: `nobody asked for the authorization ${row.spend_key}` })),
  ];
}

function spendDifferences(spend: PlannedSpend, book: Book): Difference[] {
  const movements = book.movementsOf(spend.id);
  const authorizations = book.authorizationsOf(spend.id);
  const wrong = (what: string): Difference => ({ spend: spend.id, what });
  return [
    ...(movements.length > 1
      ? [wrong(`moved ${movements.length} times: ${movements.map((one) => textOf(one)).join("; ")}`)]
      : []),
    ...movements.flatMap((movement) => movementDifferences(spend, movement, book).map(wrong)),
    ...authorizations.flatMap((row) => authorizationDifferences(spend, row, book).map(wrong)),
    ...generationDifferences(authorizations).map(wrong),
  ];
}

function movementDifferences(spend: PlannedSpend, movement: LedgerMovement, book: Book): string[] {
  const owner = book.authorizationOf(movement);
  return [
    ...(spend.kinds.includes(movement.kind) ? [] : [`${textOf(movement)} is no ${spend.kinds.join(" or ")}`]),
    ...(movement.amount > spend.amountMax ? [`${textOf(movement)} is more than ${spend.amountMax}`] : []),
    ...(movement.currency === spend.currency ? [] : [`${textOf(movement)} is in another currency`]),
    ...(owner === undefined ? [`${textOf(movement)} has no authorization`] : []),
    ...(owner?.state === "VOIDED" ? [`${textOf(movement)} belongs to a voided generation ${owner.generation}`] : []),
  ];
}

function authorizationDifferences(spend: PlannedSpend, row: AuthorizationRow, book: Book): string[] {
  if (row.state !== "COMMITTED") return [];
  const movements = book.movementsOf(spend.id).filter((movement) => book.authorizationOf(movement) === row);
  const committed = `generation ${row.generation} is committed at ${row.committed_micros} ${row.committed_currency}`;
  const [movement] = movements;
  if (movement === undefined) return spend.isObligation ? [] : [`${committed}, and nothing moved`];
  const micros = BigInt(movement.amount) * 10_000n;
  const fits = spend.isObligation
    ? micros <= BigInt(row.committed_micros ?? 0)
    : micros === BigInt(row.committed_micros ?? 0);
  return fits && movement.currency === row.committed_currency ? [] : [`${committed}, and ${textOf(movement)} moved`];
}

/** A generation comes only after the one before it was proven void. */
function generationDifferences(authorizations: readonly AuthorizationRow[]): string[] {
  return authorizations.flatMap((row, index) => [
    ...(row.generation === index + 1 ? [] : [`generation ${row.generation} follows ${index}`]),
    ...(index < authorizations.length - 1 && row.state !== "VOIDED"
      ? [`generation ${row.generation} is ${row.state}, and there is a later one`]
      : []),
  ]);
}

// The vendor was asked, and did not say what became of it; or it said what the authorization does not allow.
const unanswered: ReadonlySet<string> = new Set(["unclear", "unreadable", "contradiction"]);

/** Nothing that the vendor can answer is in doubt after the last reconciliation. */
function doubtDifferences({ authorizations, reconciled }: Evidence, book: Book): Difference[] {
  const said = new Map(reconciled.map(({ authorization, outcome }) => [authorization, outcome]));
  return authorizations.flatMap((row) => {
    const outcome = said.get(`authorizations/${row.spend_key}-${row.generation}`) ?? "nothing";
    const spend = book.spendOf(row);
    if (row.state !== "IN_DOUBT" || spend?.spendClass === "plain" || unanswered.has(outcome)) return [];
    return [
      {
        spend: spend?.id,
        what: `generation ${row.generation} is in doubt, and the last reconciliation said ${outcome}`,
      },
    ];
  });
}

/** No object gives back more than was paid on it. */
function givenBackTooMuch({ spends, movements }: Evidence, book: Book): Difference[] {
  const bases = new Set(spends.flatMap(({ base }) => (base === undefined ? [] : [base])));
  return [...bases].flatMap((base) => {
    const back = spends
      .filter((spend) => spend.base === base)
      .flatMap(({ id }) => book.movementsOf(id))
      .reduce((sum, { amount }) => sum + amount, 0);
    const paid = movements
      .filter(({ id, payment_intent, cause }) => [id, payment_intent, cause].includes(base))
      .filter(({ kind }) => kind === "charge" || kind === "transfer")
      .reduce((sum, { amount }) => sum + amount, 0);
    return back <= paid ? [] : [{ spend: undefined, what: `${back} were given back of ${base}, which is ${paid}` }];
  });
}

function openAuthorizations(evidence: Evidence, book: Book): OpenAuthorization[] {
  return evidence.authorizations
    .filter(({ state }) => state === "HELD" || state === "IN_DOUBT")
    .map((authorization) => {
      const spend = book.spendOf(authorization)?.id ?? "";
      const isFollowed =
        authorization.state === "HELD" && authorization.is_followed && authorization.vendor_state !== "";
      const followed = isFollowed ? [`the object is ${authorization.vendor_state}`] : [];
      return { spend, authorization, isFollowed, reasons: [...followed, ...reasonsOf(evidence, book, authorization)] };
    });
}

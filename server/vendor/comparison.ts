import {
  type Difference,
  FAMILIES,
  judgeCommitted,
  judgeMovement,
  LISTED_FAMILIES,
  type ListedFamily,
  type Movement,
  movementPage,
  movementsOf,
  notLookedAt,
  placeOf,
  type StripeReader,
} from "@holdfast/sdk/stripe-vendor";
import type {
  ReconciliationDifference,
  ReconciliationRun,
  RunCursor,
  RunPosition,
} from "../domain/reconciliation-run.ts";
import { type Authorization, formatAuthorizationName } from "../domain/spend.ts";
import { readLookTime } from "../store/reconcile.ts";
import {
  type ContradictionKey,
  listAccountsUsed,
  listByKey,
  listClosedContradictions,
  listUnmatched,
  listUnsettledOfVendor,
} from "../store/reconciler.ts";
import {
  advanceReconciliationRun,
  nextReconciliationRun,
  type RunStep,
  sayAboutRun,
} from "../store/reconciliation-run.ts";
import { moneyOf, type Row, rowOf } from "./reconcile-desk.ts";
import { foreignAccount } from "./pass-accounts.ts";
import { type Pass, settleRows } from "./reconcile-pass.ts";

const settlePage = 25;
const committedPage = 20;
const readsPerStep = 250;

/** What a step has come to, or why it has to wait. */
type Stepped = Omit<RunStep, "from"> | { readonly waits: string };

/**
 * Takes the oldest comparison one step further: first everything is settled that can be, then what the vendor shows is
 * compared with us, then what is left of ours with the vendor. False if there is none, or it has to wait.
 */
export async function compareStep(pass: Pass): Promise<boolean> {
  const { database, workspace, vendor } = pass;
  const run = await nextReconciliationRun(database, workspace, vendor);
  if (run === undefined) return false;
  const stepped = await stepOf(pass, run);
  if ("waits" in stepped) {
    if (!pass.refused()) {
      if (stepped.waits !== "") {
        await sayAboutRun(database, workspace, run.runId, `${stepped.waits}; it is tried again.`);
      }
      return false;
    }
    const message = `The vendor does not accept the credential. Rotate it, and start another run.`;
    await advanceReconciliationRun(database, workspace, run.runId, failed(run.cursor, message));
    return false;
  }
  return await advanceReconciliationRun(database, workspace, run.runId, { ...stepped, from: run.cursor });
}

function failed(cursor: RunCursor, message: string): RunStep {
  return { from: cursor, to: cursor, state: "FAILED", message, counts: {} };
}

function stepOf(pass: Pass, run: ReconciliationRun): Promise<Stepped> {
  switch (run.cursor.step) {
    case "SETTLE":
      return settleStep(pass, run, run.cursor.after);
    case "MOVEMENTS":
      return movementStep(pass, run, run.cursor);
    case "AUTHORIZATIONS":
      return committedStep(pass, run, run.cursor);
    case "END":
      return endStep(pass, run, 0);
  }
}

async function settleStep(pass: Pass, run: ReconciliationRun, after: RunPosition | null): Promise<Stepped> {
  const { database, workspace, vendor } = pass;
  const lookTime = await readLookTime(database);
  const rows = await listUnsettledOfVendor(database, workspace, {
    vendor,
    includeNotDue: true,
    after: positionOf(after),
    before: run.endTime,
    limit: settlePage,
  });
  const first: RunCursor = { step: "MOVEMENTS", account: "", family: LISTED_FAMILIES[0], after: "" };
  if (rows.length === 0) return running(first, {});
  const { steps, complete, reads } = await settleRows(
    pass,
    rows.map((row) => rowOf(row, { lookTime })),
  );
  // What used up its reads is left over, and says so; a vendor that is away is waited for.
  if (!complete && pass.silent()) return { waits: "The vendor does not answer" };
  // Another replica has the claim now, or this one stops.
  if (!complete && steps.length === 0) return { waits: "" };
  const done = complete ? rows : rows.slice(0, steps.length);
  const count = (outcome: string) => steps.filter((step) => step.outcome === outcome).length;
  const counts = { reads, committed: count("committed"), voided: count("voided") };
  const last = done.length < settlePage && complete ? undefined : done.at(-1);
  return running(last === undefined ? first : { step: "SETTLE", after: positionAfter(last) }, counts, {
    message: "Settling what is not settled.",
  });
}

type MovementCursor = Extract<RunCursor, { step: "MOVEMENTS" }>;

async function movementStep(pass: Pass, run: ReconciliationRun, cursor: MovementCursor): Promise<Stepped> {
  const { database, workspace } = pass;
  const { account, after } = cursor;
  const family = LISTED_FAMILIES.find((name) => name >= cursor.family) ?? LISTED_FAMILIES[0];
  const used = (await listAccountsUsed(database, workspace, run)).map((one) => ({
    ...one,
    account: pass.connected.of(one.account),
  }));
  const next = cursorAfter(used, account, family);
  if (await pass.connected.isForeign(account)) {
    const missed = notLookedAt({ mark: "", vendorReference: "", vendorAccount: account }, foreignAccount);
    return running(cursorAfter(used, account, LISTED_FAMILIES.at(-1) ?? family), {}, { differences: [stored(missed)] });
  }
  const reader = pass.reader(readsPerStep);
  const page = await movementPage(reader, family, spanOf(run), account, after);
  if (page.kind === "unreadable" && (page.status === 400 || page.status === 403)) {
    const endpoints = used.filter((one) => one.account === account).flatMap((one) => one.endpoints);
    if (endpoints.every((endpoint) => placeOf({ endpoint }).family !== FAMILIES[family])) {
      return running(next, { reads: reader.reads() });
    }
    const message = `The vendor does not let the credential list ${FAMILIES[family].collection}: ${page.why}`;
    return { to: cursor, state: "FAILED", message, counts: { reads: reader.reads() } };
  }
  if (page.kind !== "found")
    return unreadPage(reader, { ...cursor, family }, next, page.kind === "unreadable" ? page.why : "no such list");
  const read = await movementsOf(reader, family, page.value, account);
  if (read === undefined) return { waits: "An object could not be read" };
  const { movements, unread } = read;
  const judged = await judgeMovements(pass, movements, account);
  const missed = unread.map(({ mark, id, why }) =>
    stored(notLookedAt({ mark, vendorReference: id, vendorAccount: account }, why)),
  );
  const counts = {
    reads: reader.reads(),
    movements: movements.length,
    committed: judged.committed,
    authorizations: judged.matches.length,
  };
  const to = page.value.after === undefined ? next : { ...cursor, family, after: page.value.after, tries: 0 };
  const message = `Comparing ${FAMILIES[family].collection}${account === "" ? "" : ` of ${account}`}.`;
  return running(to, counts, {
    message,
    differences: [...judged.differences, ...missed],
    matches: judged.matches,
  });
}

const pageTriesMax = 5;

/** A vendor that is away is waited for; a list that alone is not to be had is left out after some tries, and named. */
function unreadPage(
  reader: StripeReader,
  cursor: MovementCursor & { readonly family: ListedFamily },
  next: RunCursor,
  why: string,
): Stepped {
  if (reader.spent()) return { waits: why };
  const { account, family, tries = 0 } = cursor;
  const counts = { reads: reader.reads() };
  if (tries + 1 < pageTriesMax) return running({ ...cursor, tries: tries + 1 }, counts);
  const missed = notLookedAt({ mark: "", vendorReference: FAMILIES[family].collection, vendorAccount: account }, why);
  return running(next, counts, { differences: [stored(missed)] });
}

function spanOf({ startTime, endTime }: ReconciliationRun) {
  return { from: Number(startTime / 1_000_000n), to: Number((endTime + 999_999n) / 1_000_000n) };
}

/** The next family, or the first one of the next account, or the other side. */
function cursorAfter(used: readonly { readonly account: string }[], account: string, family: ListedFamily): RunCursor {
  const later = LISTED_FAMILIES.find((name) => name > family);
  if (later !== undefined) return { step: "MOVEMENTS", account, family: later, after: "" };
  const next = used
    .map((one) => one.account)
    .toSorted()
    .find((one) => one > account);
  if (next !== undefined) return { step: "MOVEMENTS", account: next, family: LISTED_FAMILIES[0], after: "" };
  return { step: "AUTHORIZATIONS", after: null, incomparable: 0 };
}

const markPattern = /^([0-9a-f]{36})-([1-9][0-9]{0,6})$/;

async function judgeMovements(pass: Pass, movements: readonly Movement[], account: string) {
  const { database, workspace, vendor, desk, figures } = pass;
  const ids = movements.flatMap(({ mark }) => {
    const match = markPattern.exec(mark);
    return match === null ? [] : [{ spendKey: match[1] as string, generation: Number(match[2]) }];
  });
  const found = ids.length === 0 ? [] : await listByKey(database, workspace, ids);
  const rows = new Map(
    found.map((one) => rowOf(one.authorization, { running: one.running })).map((row) => [row.mark, row]),
  );
  const differences: Difference[] = [];
  const matches: { spendKey: string; generation: number }[] = [];
  let committed = 0;
  for (const movement of movements) {
    const named = rows.get(movement.mark);
    // The platform's own account may be named by its id.
    const row =
      named?.authorization.vendor === vendor
        ? { ...named, vendorAccount: pass.connected.of(named.vendorAccount) }
        : undefined;
    const judged = await judgeMovement<Row>(desk, { movement, account, row });
    const settled = judged.agrees && judged.settled;
    if (settled) {
      committed += 1;
      figures.settled(workspace, vendor, "committed");
    }
    if (!judged.agrees) differences.push(judged.difference);
    const same = row?.state === "COMMITTED" && row.vendorReference === movement.id && row.vendorAccount === account;
    if (row !== undefined && (same || settled)) matches.push(row.authorization);
  }
  return { differences: await withoutClosed(pass, differences), matches, committed };
}

/** A contradiction that an operator has dealt with is no difference any more. */
async function withoutClosed(
  { database, workspace, vendor }: Pass,
  differences: readonly Difference[],
): Promise<ReconciliationDifference[]> {
  const references = differences.filter(({ kind }) => kind === "CONTRADICTION").map((one) => one.vendorReference);
  const closed = references.length === 0 ? [] : await listClosedContradictions(database, workspace, vendor, references);
  const keyOf = (one: ContradictionKey) =>
    [one.vendorAccount, one.vendorReference, `${one.spendKey}-${one.generation}`].join("\n");
  const dealtWith = new Set(closed.map(keyOf));
  return differences
    .filter(
      ({ kind, vendorAccount, vendorReference, mark }) =>
        kind !== "CONTRADICTION" || !dealtWith.has([vendorAccount, vendorReference, mark].join("\n")),
    )
    .map(stored);
}

function stored({ authorized, charged, ...rest }: Difference): ReconciliationDifference {
  return { ...rest, authorized: moneyOf(authorized), charged: moneyOf(charged) };
}

type CommittedCursor = Extract<RunCursor, { step: "AUTHORIZATIONS" }>;

async function committedStep(pass: Pass, run: ReconciliationRun, cursor: CommittedCursor): Promise<Stepped> {
  const { database, workspace } = pass;
  const page = { ...run, after: positionOf(cursor.after), limit: committedPage };
  const rows = await listUnmatched(database, workspace, page);
  const last = rows.at(-1);
  if (last === undefined) return endStep(pass, run, cursor.incomparable);
  const reader = pass.reader(readsPerStep);
  const differences: Difference[] = [];
  let { incomparable } = cursor;
  for (const row of rows) {
    const judged = await judgeCommitted(reader, rowOf(row));
    if (judged.kind === "unreadable") {
      if (reader.spent()) return { waits: judged.why };
      const committed = rowOf(row);
      differences.push(notLookedAt({ ...committed, authorized: committed.committed }, judged.why));
    }
    if (judged.kind === "incomparable") incomparable += 1;
    if (judged.kind === "differs") differences.push(judged.difference);
  }
  return running(
    { step: "AUTHORIZATIONS", after: positionAfter(last), incomparable },
    { reads: reader.reads(), authorizations: rows.length },
    { message: "Comparing what is committed.", differences: differences.map(stored) },
  );
}

const endPage = 200;

/** Lists what is still in doubt, and says that everything was compared. */
async function endStep(
  { database, workspace, vendor }: Pass,
  { startTime, endTime }: ReconciliationRun,
  incomparable: number,
): Promise<Stepped> {
  const differences: ReconciliationDifference[] = [];
  let after: Authorization | undefined;
  for (;;) {
    const page = { vendor, includeNotDue: true, after, before: endTime, limit: endPage };
    const rows = await listUnsettledOfVendor(database, workspace, page);
    const inDoubt = rows.filter(({ inDoubtTime, grantTime }) => inDoubtTime !== undefined && grantTime >= startTime);
    differences.push(...inDoubt.map(unsettled));
    after = rows.at(-1);
    if (rows.length < endPage) break;
  }
  const compared = "Everything was compared";
  const message =
    incomparable === 0
      ? `${compared}.`
      : `${compared}, except ${incomparable} of endpoints whose objects cannot be read back.`;
  const counts = { authorizations: differences.length };
  return { to: { step: "END" }, state: "DONE", message, counts, differences };
}

function unsettled(authorization: Authorization): ReconciliationDifference {
  const note = authorization.reconciliation?.note ?? "";
  return {
    kind: "UNSETTLED",
    mark: formatAuthorizationName(authorization).slice("authorizations/".length),
    vendorReference: authorization.vendorReference ?? "",
    vendorAccount: authorization.vendorAccount,
    authorized: { currency: authorization.amount.currency, micros: authorization.held },
    charged: undefined,
    message: `Still in doubt${note === "" ? "" : ` (${note})`}: the vendor could not answer, or its absence is no proof yet.`,
  };
}

function running(
  to: RunCursor,
  counts: RunStep["counts"],
  rest: Partial<Pick<RunStep, "message" | "differences" | "matches">> = {},
): Stepped {
  return { to, state: "RUNNING", message: "Comparing both sides.", counts, ...rest };
}

function positionOf(position: RunPosition | null) {
  return position === null ? undefined : { ...position, grantTime: BigInt(position.grantTime) };
}

function positionAfter({ grantTime, spendKey, generation }: Authorization): RunPosition {
  return { grantTime: grantTime.toString(), spendKey, generation };
}

import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { type Authorization, AuthorizationState, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Comparable } from "./compare.ts";
import { compareBothWays } from "./compare-own.ts";
import type { DecimalMoney } from "./money.ts";
import { checkNumber } from "./option-check.ts";
import { getThrough } from "./reconcile-client.ts";
import { reconcileEach, type ReconcileStep } from "./reconcile-core.ts";
import { comparable, createDesk, type DeskSettings, type ListedRow } from "./reconcile-desk.ts";
import { createStripeReader, type StripeReader } from "./reconcile-stripe.ts";
import { translateFailure } from "./refusal.ts";
import type { StripeLike } from "./stripe.ts";
import { text } from "./stripe-object.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** How far a reconciliation goes, and who learns of it. */
export interface ReconcileOptions {
  /** How many reads of Stripe one run may make. 500 by default: Stripe allots reads by the number of payments. */
  readonly maxReads?: number;
  /** Also look at what need not be asked about yet. False by default. */
  readonly includeNotDue?: boolean;
  /**
   * Also compare both sides from then on: what was granted to this vault key since and is committed, and what Stripe
   * shows since with the marks of this vault key. What is left over is in `differences`.
   */
  readonly since?: Date;
  /** Ends the run; what was settled until then stays settled. */
  readonly signal?: AbortSignal;
  /** Learns of each authorization as it is done. */
  readonly onProgress?: (step: ReconcileStep) => void;
}

export const RECONCILE_OPTIONS = {
  maxReads: true,
  includeNotDue: true,
  since: true,
  signal: true,
  onProgress: true,
} as const satisfies Record<keyof ReconcileOptions, true>;

/** Something that Holdfast and Stripe do not agree on, after everything that could be settled was settled. */
export interface ReconcileDifference {
  /**
   * "UNSETTLED": still in doubt. "MOVEMENT_MISSING": committed, and Stripe does not show it. "AMOUNT_DIFFERS": committed
   * at another amount. "CONTRADICTION": a charge of an authorization that is void or was settled by another one.
   */
  readonly kind: "UNSETTLED" | "MOVEMENT_MISSING" | "AMOUNT_DIFFERS" | "CONTRADICTION";
  /** Resource name, "authorizations/…". */
  readonly authorization: string;
  readonly vendorReference: string | undefined;
  /** A connected account; undefined for the platform's own. */
  readonly vendorAccount: string | undefined;
  /** What is committed, or held. */
  readonly authorized: DecimalMoney | undefined;
  /** What Stripe shows. */
  readonly charged: DecimalMoney | undefined;
  /** One line: what was looked at, and what to do. */
  readonly message: string;
}

/** What a reconciliation did. */
export interface ReconcileReport {
  readonly steps: readonly ReconcileStep[];
  /** How many steps ended in each outcome. */
  readonly counts: Readonly<Record<ReconcileStep["outcome"], number>>;
  /** With `since`: what is left over. Says that both sides agree only together with `complete`. */
  readonly differences: readonly ReconcileDifference[];
  readonly reads: number;
  /** False if the reads were used up, the run was aborted or Stripe did not answer: run it again. */
  readonly complete: boolean;
}

const READS_DEFAULT = 500;
const READS_LIMIT = 100_000;

/**
 * Asks Stripe about everything of this vault key that is not settled, and settles what Stripe can answer: by the bound
 * object, by events with our idempotency key, and by lists with our metadata, each read to its end. Commits what was
 * really charged; gives headroom back only where the object was seen ended, or after the quarantine. Safe to run on
 * several replicas and to stop at any step. Rejects with a HoldfastError if the control plane does not answer.
 */
export function reconcile(
  settings: DeskSettings,
  stripe: StripeLike,
  options: ReconcileOptions = {},
): Promise<ReconcileReport> {
  return inSpan("holdfast.reconcile", { [ATTRIBUTES.vendor]: "stripe" }, () => carryOut(settings, stripe, options));
}

async function carryOut(
  settings: DeskSettings,
  stripe: StripeLike,
  options: ReconcileOptions,
): Promise<ReconcileReport> {
  const { maxReads = READS_DEFAULT, signal, since, onProgress } = options;
  checkNumber("maxReads", maxReads, { min: 1, max: READS_LIMIT, unit: "reads" });
  if (since !== undefined && !(since instanceof Date && Number.isFinite(since.getTime()))) {
    throw new TypeError("since must be a Date: from when on both sides are compared.");
  }
  const reader = createStripeReader({ get: getThrough(stripe), runtime: settings.runtime, maxReads, signal });
  const unsettled = await listUnsettled(settings, options.includeNotDue === true || since !== undefined);
  const desk = createDesk(settings, unsettled.length === 0 ? "" : await accountOf(reader));
  const run = { desk, reader, ...(onProgress === undefined ? {} : { onStep: onProgress }) };
  const { steps, complete } = await reconcileEach(run, unsettled);
  const done = { steps, counts: countsOf(steps), differences: [], reads: reader.reads(), complete };
  if (since === undefined) return done;
  const compared = await compareBothWays({
    desk,
    reader,
    since,
    committed: (await listCommitted(settings, since)).map(comparable),
    inDoubt: (await listUnsettled(settings, true)).filter(({ isDoubted }) => isDoubted),
    known: unsettled,
    find: (mark) => find(settings, mark),
  });
  return {
    ...done,
    differences: compared.differences,
    reads: reader.reads(),
    complete: complete && compared.complete,
  };
}

function countsOf(steps: readonly ReconcileStep[]): ReconcileReport["counts"] {
  const counts = {
    committed: 0,
    voided: 0,
    open: 0,
    absent: 0,
    unreadable: 0,
    unclear: 0,
    contradiction: 0,
    skipped: 0,
  };
  for (const { outcome } of steps) counts[outcome] += 1;
  return counts;
}

/** A two-step that was never bound has confirmed nothing: the control plane voids it by itself. */
function isAsked({ vendor, settlement, vendorReference }: Authorization): boolean {
  return vendor === "stripe" && (settlement !== Settlement.TWO_STEP || vendorReference !== "");
}

function isDoubted({ state, inDoubtTime }: Authorization): boolean {
  return state === AuthorizationState.IN_DOUBT || inDoubtTime !== undefined;
}

/** Whose credential the client has: what another account shows proves nothing. Empty where Stripe does not say so. */
async function accountOf(reader: StripeReader): Promise<string> {
  const found = await reader.object("/v1/account", "");
  const id = found.kind === "found" ? text(found.value, "id") : "";
  return /^[A-Za-z0-9_]{1,128}$/.test(id) ? id : "";
}

interface ListedPage {
  readonly authorizations: readonly Authorization[];
  readonly nextPageToken: string;
}

async function listAll<Page extends ListedPage>(
  { runtime, timeoutMs }: DeskSettings,
  what: string,
  list: (pageToken: string, deadline: number) => Promise<Page>,
): Promise<Page[]> {
  const pages: Page[] = [];
  try {
    for (let pageToken = ""; ; ) {
      const page = await list(pageToken, runtime.clock.now() + timeoutMs);
      pages.push(page);
      pageToken = page.nextPageToken;
      if (pageToken === "") return pages;
    }
  } catch (error) {
    throw translateFailure(error, what, {});
  }
}

interface Unsettled extends ListedRow {
  readonly isDoubted: boolean;
}

async function listUnsettled(settings: DeskSettings, includeNotDue: boolean): Promise<Unsettled[]> {
  const pages = await listAll(settings, "what is not settled", (pageToken, deadline) =>
    settings.controlPlane.listUnsettled({ pageSize: 200, pageToken, includeNotDue }, deadline),
  );
  return pages.flatMap(({ authorizations, lookToken }) =>
    authorizations.filter(isAsked).map((one) => ({ ...comparable(one), lookToken, isDoubted: isDoubted(one) })),
  );
}

async function listCommitted(settings: DeskSettings, since: Date): Promise<Authorization[]> {
  const startTime = timestampFromDate(since);
  const pages = await listAll(settings, "what is committed", (pageToken, deadline) =>
    settings.controlPlane.listCommitted({ startTime, pageSize: 200, pageToken }, deadline),
  );
  return pages.flatMap(({ authorizations }) => authorizations).filter(({ vendor }) => vendor === "stripe");
}

/** Undefined also for what belongs to another vault key. */
async function find({ controlPlane, runtime, timeoutMs }: DeskSettings, mark: string): Promise<Comparable | undefined> {
  const name = `authorizations/${mark}`;
  try {
    const found = await controlPlane.getAuthorization(name, runtime.clock.now() + timeoutMs);
    return found === undefined ? undefined : comparable(found);
  } catch (error) {
    throw translateFailure(error, "what a movement belongs to", { authorization: name });
  }
}

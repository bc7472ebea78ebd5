import { timestampMs } from "@bufbuild/protobuf/wkt";
import {
  type Authorization,
  ReconciliationFinding,
  Settlement,
  VoidEvidence,
} from "@holdfast/api/holdfast/v1/spend_pb";
import type { ControlPlane } from "./control-plane.ts";
import { toDecimalMoney } from "./convert.ts";
import { type DecimalMoney, toStripeAmount } from "./money.ts";
import { checkNumber } from "./option-check.ts";
import { createStripeReader, type Found, type StripeReader } from "./reconcile-stripe.ts";
import { translateFailure } from "./refusal.ts";
import { toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import type { StripeLike } from "./stripe.ts";
import { moneyFrom } from "./stripe-call.ts";
import { findStripeEndpoint } from "./stripe-endpoints.ts";
import { FAMILIES, type ObjectFamily, text, type Verdict } from "./stripe-object.ts";
import { planOf } from "./stripe-plan.ts";
import { isRecord } from "./stripe-send.ts";

export interface ReconcileOptions {
  /** How many reads of Stripe one run may make. 500 by default: Stripe allots reads by the number of payments. */
  readonly maxReads?: number;
  /** Also look at what need not be asked about yet. False by default. */
  readonly includeNotDue?: boolean;
  /** Ends the run; what was settled until then stays settled. */
  readonly signal?: AbortSignal;
  /** Learns of each authorization as it is done. */
  readonly onProgress?: (step: ReconcileStep) => void;
}

export const RECONCILE_OPTIONS = {
  maxReads: true,
  includeNotDue: true,
  signal: true,
  onProgress: true,
} as const satisfies Record<keyof ReconcileOptions, true>;

/** What became of one authorization. */
export interface ReconcileStep {
  /** Resource name, "authorizations/…". */
  readonly authorization: string;
  /**
   * "committed" and "voided" are settled now. "open": the vendor's object is not at its end. "absent": complete lists
   * show nothing, which becomes a proof only after a quarantine of 25 h. "unreadable": Stripe did not answer, or cannot
   * be asked about this kind. "unclear": an operator has to look. "contradiction": a charge that the authorization does
   * not allow was recorded. "skipped": another attempt is at it, or it was settled meanwhile.
   */
  readonly outcome: "committed" | "voided" | "open" | "absent" | "unreadable" | "unclear" | "contradiction" | "skipped";
  readonly vendorReference: string | undefined;
  /** What was charged, where it is committed now. */
  readonly money: DecimalMoney | undefined;
  /** One line: what was looked at. */
  readonly note: string;
}

export interface ReconcileReport {
  readonly steps: readonly ReconcileStep[];
  /** How many steps ended in each outcome. */
  readonly counts: Readonly<Record<ReconcileStep["outcome"], number>>;
  readonly reads: number;
  /** False if the reads were used up, the run was aborted or Stripe did not answer: run it again. */
  readonly complete: boolean;
}

export interface ReconcileSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly timeoutMs: number;
}

const READS_DEFAULT = 500;
const READS_LIMIT = 100_000;

/**
 * Asks Stripe about everything of this vault key that is not settled, and settles what Stripe can answer: by the bound
 * object, by events with our idempotency key, and by lists with our metadata, each read to its end. Commits what was
 * really charged; gives headroom back only where the object was seen ended, or after the quarantine. Safe to run on
 * several replicas and to stop at any step. Rejects with a HoldfastError if the control plane does not answer.
 */
export async function reconcile(
  settings: ReconcileSettings,
  stripe: StripeLike,
  options: ReconcileOptions = {},
): Promise<ReconcileReport> {
  const { maxReads = READS_DEFAULT, signal } = options;
  checkNumber("maxReads", maxReads, { min: 1, max: READS_LIMIT, unit: "reads" });
  const reader = createStripeReader({ stripe, runtime: settings.runtime, maxReads, signal });
  const unsettled = await listUnsettled(settings, options.includeNotDue === true);
  // A two-step that was never bound has confirmed nothing: the control plane voids it by itself.
  const mine = unsettled.filter(
    ({ vendor, settlement, vendorReference }) =>
      vendor === "stripe" && (settlement !== Settlement.TWO_STEP || vendorReference !== ""),
  );
  const run: Run = { settings, reader, lists: new Map() };
  const steps: ReconcileStep[] = [];
  let complete = true;
  for (const authorization of mine) {
    if (reader.spent()) {
      complete = false;
      break;
    }
    const step = await reconcileOne(run, mine, authorization);
    steps.push(step);
    options.onProgress?.(step);
  }
  return { steps, counts: countsOf(steps), reads: reader.reads(), complete };
}

interface Run {
  readonly settings: ReconcileSettings;
  readonly reader: StripeReader;
  /** What was listed already, by account and path. */
  readonly lists: Map<string, Promise<Found<readonly StripeObject[]>>>;
}

type StripeObject = Readonly<Record<string, unknown>>;

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

async function listUnsettled({ controlPlane, runtime, timeoutMs }: ReconcileSettings, includeNotDue: boolean) {
  const all: Authorization[] = [];
  try {
    for (let pageToken = ""; ; ) {
      const deadline = runtime.clock.now() + timeoutMs;
      const page = await controlPlane.listUnsettled({ pageSize: 200, pageToken, includeNotDue }, deadline);
      all.push(...page.authorizations);
      pageToken = page.nextPageToken;
      if (pageToken === "") return all;
    }
  } catch (error) {
    throw translateFailure(error, "what is not settled", {});
  }
}

interface Subject {
  readonly authorization: Authorization;
  readonly family: ObjectFamily | undefined;
  /** Our metadata travels on the object, so that a list shows whose it is. */
  readonly marked: boolean;
}

function subjectOf(authorization: Authorization): Subject {
  const [method = "", path = ""] = authorization.endpoint.split(" ");
  const endpoint = findStripeEndpoint(method, path.replaceAll(":id", "x"));
  const plan = endpoint === undefined ? undefined : planOf(endpoint);
  switch (plan?.flow) {
    case "intent":
      return { authorization, family: FAMILIES.payment_intent, marked: true };
    case "step":
    case "edit":
    case "release":
      return { authorization, family: FAMILIES[plan.family], marked: false };
    case "one_call":
      return {
        authorization,
        family: plan.family === undefined ? undefined : FAMILIES[plan.family],
        marked: plan.metadata,
      };
    default:
      return { authorization, family: undefined, marked: false };
  }
}

async function reconcileOne(run: Run, all: readonly Authorization[], authorization: Authorization) {
  const subject = subjectOf(authorization);
  try {
    const found = await look(run, all, subject);
    return await settle(run, subject, found);
  } catch (error) {
    const { reason } = toRpcFailure(error);
    // Settled by somebody else meanwhile, or an attempt is at it: nothing is lost.
    if (SETTLED_ELSEWHERE.has(reason)) return stepOf(authorization, "skipped", `the control plane answered ${reason}`);
    throw translateFailure(error, "a reconciliation", { authorization: authorization.name });
  }
}

const SETTLED_ELSEWHERE = new Set([
  "ALREADY_COMMITTED",
  "ALREADY_VOIDED",
  "ALREADY_BOUND",
  "STATE_NOT_ALLOWED",
  "ATTEMPT_SUPERSEDED",
  "EVIDENCE_INSUFFICIENT",
]);

interface Look {
  readonly found: Found<StripeObject>;
  readonly note: string;
  /** Only our mark says whose object it is, and whoever may write to Stripe can copy a mark. */
  readonly byMark?: true;
}

/** Finds the authorization's object: by its bound reference, by the event of its key, by its metadata. */
async function look(run: Run, all: readonly Authorization[], subject: Subject): Promise<Look> {
  const { authorization, family } = subject;
  const { vendorReference, vendorAccount } = authorization;
  if (family === undefined) return byEvent(run, all, subject);
  if (vendorReference !== "") {
    const found = await readObject(run, family, vendorReference, vendorAccount);
    return { found, note: `read ${vendorReference}` };
  }
  const event = await byEvent(run, all, subject);
  if (event.found.kind === "found" || !subject.marked) return event;
  return byMetadata(run, all, subject, family);
}

// Stripe's clock is not ours.
const SKEW_S = 600;

function listed(run: Run, path: string, query: Readonly<Record<string, string>>, account: string) {
  const key = `${account} ${path}`;
  const known = run.lists.get(key) ?? run.reader.list(path, query, account);
  run.lists.set(key, known);
  return known;
}

/** From when on the unsettled authorizations of an account can have objects, in seconds. One list serves all of them. */
function since(all: readonly Authorization[], account: string): number {
  const times = all
    .filter(({ vendorAccount }) => vendorAccount === account)
    .map(({ grantTime }) => (grantTime === undefined ? Number.POSITIVE_INFINITY : timestampMs(grantTime) / 1000));
  return Math.floor(Math.min(...times)) - SKEW_S;
}

async function byEvent(run: Run, all: readonly Authorization[], { authorization, family }: Subject): Promise<Look> {
  const { vendorAccount, idempotencyKey } = authorization;
  const from = since(all, vendorAccount);
  const events = await listed(run, "/v1/events", { "created[gte]": String(from) }, vendorAccount);
  if (events.kind !== "found") return { found: { kind: "unreadable", why: whyOf(events) }, note: "events" };
  // One request may have caused events about several objects, such as a subscription's invoice and its charge.
  const object = events.value
    .filter(({ request }) => isRecord(request) && request["idempotency_key"] === idempotencyKey)
    .map(({ data }) => (isRecord(data) && isRecord(data["object"]) ? data["object"] : {}))
    .find((candidate) => family === undefined || isOf(family, candidate));
  if (object === undefined) return { found: { kind: "unreadable", why: "no event shows the key" }, note: "events" };
  const id = text(object, "id");
  if (family === undefined) return { found: { kind: "found", value: object }, note: `an event of ${id}` };
  // The event shows the object as it was; what counts is what it is.
  return { found: await readObject(run, family, id, vendorAccount), note: `an event of ${id}` };
}

/** Whether an object is of the family: "checkout.session" belongs to "/v1/checkout/sessions". */
function isOf(family: ObjectFamily, object: StripeObject): boolean {
  const name = text(object, "object").split(".").at(-1) ?? "";
  return name !== "" && family.collection.endsWith(`/${name}s`);
}

function readObject(run: Run, { collection, readQuery }: ObjectFamily, id: string, account: string) {
  const query = readQuery === undefined ? "" : `?${readQuery}`;
  return run.reader.object(`${collection}/${encodeURIComponent(id)}${query}`, account);
}

async function byMetadata(
  run: Run,
  all: readonly Authorization[],
  { authorization }: Subject,
  family: ObjectFamily,
): Promise<Look> {
  const from = since(all, authorization.vendorAccount);
  const rows = await listed(run, family.collection, { "created[gte]": String(from) }, authorization.vendorAccount);
  const note = `all of ${family.collection} since ${new Date(from * 1000).toISOString()}`;
  if (rows.kind !== "found") return { found: { kind: "unreadable", why: whyOf(rows) }, note };
  const mark = authorization.name.slice("authorizations/".length);
  const ours = rows.value.filter((row) => {
    const metadata = row["metadata"];
    return isRecord(metadata) && metadata["holdfast_authorization"] === mark;
  });
  const [object, ...others] = ours;
  if (others.length > 0) return { found: { kind: "unreadable", why: "several objects carry our mark" }, note };
  if (object === undefined) return { found: { kind: "absent" }, note };
  if (family.readQuery === undefined) return { found: { kind: "found", value: object }, note, byMark: true };
  const found = await readObject(run, family, text(object, "id"), authorization.vendorAccount);
  return { found, note, byMark: true };
}

function whyOf(found: Found<unknown>): string {
  return found.kind === "unreadable" ? found.why : "not there";
}

async function settle(run: Run, subject: Subject, { found, note, byMark }: Look): Promise<ReconcileStep> {
  const { authorization, family } = subject;
  switch (found.kind) {
    case "unreadable":
      await report(run, authorization, ReconciliationFinding.UNREADABLE, `${note}: ${found.why}`);
      return stepOf(authorization, "unreadable", `${note}: ${found.why}`);
    case "absent":
      return absent(run, authorization, note);
    case "found": {
      const id = text(found.value, "id");
      if (family !== undefined) {
        const verdict = family.judge(found.value);
        const doubtful = byMark === true && isMoreThanHeld(authorization, verdict);
        return settleFound(
          run,
          authorization,
          doubtful ? { kind: "unclear", state: "dearer than held" } : verdict,
          id,
          note,
        );
      }
      const reference = `${id}+${authorization.name.slice("authorizations/".length)}`.slice(0, 255);
      return commit(run, authorization, { kind: "obliged" }, reference, note);
    }
  }
}

/** The guard never sends more than it holds, so an object that only a mark ties to the spend may be another's. */
function isMoreThanHeld({ heldAmount, spend }: Authorization, verdict: Verdict): boolean {
  if (verdict.kind !== "charged") return false;
  const held = toDecimalMoney(heldAmount) ?? toDecimalMoney(spend?.amount);
  if (held === undefined || held.currency !== verdict.currency) return true;
  return verdict.minor > toStripeAmount(held);
}

async function settleFound(
  run: Run,
  authorization: Authorization,
  verdict: Verdict,
  id: string,
  note: string,
): Promise<ReconcileStep> {
  const { controlPlane } = run.settings;
  switch (verdict.kind) {
    case "charged":
    case "obliged":
      return commit(run, authorization, verdict, id, note);
    case "open": {
      const vendorState = verdict.state.replaceAll(/[^a-z_]/g, "_").slice(0, 64);
      await report(run, authorization, ReconciliationFinding.OPEN, note, { vendorReference: id, vendorState });
      return stepOf(authorization, "open", `${note}: ${verdict.state}`, id);
    }
    case "gone": {
      const reference = { vendorReference: id, vendorState: "ended" };
      // Only a bound object is a tombstone.
      if (authorization.vendorReference === "") {
        await report(run, authorization, ReconciliationFinding.OPEN, note, reference);
      }
      await controlPlane.void(
        { authorization: authorization.name, evidence: VoidEvidence.TOMBSTONE, vendorReference: id },
        deadlineOf(run),
      );
      return stepOf(authorization, "voided", `${note}: ${verdict.state}`, id);
    }
    case "unclear":
      await report(run, authorization, ReconciliationFinding.UNCLEAR, `${note}: ${id} is ${verdict.state}`);
      return stepOf(authorization, "unclear", `${note}: ${id} is ${verdict.state}`, id);
  }
}

const CONTRADICTIONS = new Set(["COMMIT_CONTRADICTS", "ALREADY_VOIDED", "REFERENCE_ALREADY_COMMITTED"]);

async function commit(
  run: Run,
  authorization: Authorization,
  verdict: Extract<Verdict, { kind: "charged" | "obliged" }>,
  id: string,
  note: string,
): Promise<ReconcileStep> {
  const held = toDecimalMoney(authorization.heldAmount) ?? toDecimalMoney(authorization.spend?.amount);
  const charged = verdict.kind === "charged" ? moneyFrom(verdict.minor, verdict.currency) : held;
  if (charged === undefined) return stepOf(authorization, "unclear", `${note}: an amount that is none`, id);
  try {
    const amount = { currency: charged.currency, amount: charged.amount };
    await run.settings.controlPlane.commit(
      { authorization: authorization.name, amount, vendorReference: id },
      deadlineOf(run),
    );
    return { ...stepOf(authorization, "committed", note, id), money: charged };
  } catch (error) {
    const { reason } = toRpcFailure(error);
    if (!CONTRADICTIONS.has(reason)) throw error;
    return { ...stepOf(authorization, "contradiction", `${note}: ${reason}`, id), money: charged };
  }
}

/** Absence is no proof until the quarantine is over; the control plane knows when that is. */
async function absent(run: Run, authorization: Authorization, note: string): Promise<ReconcileStep> {
  if (authorization.vendorReference !== "") {
    await report(run, authorization, ReconciliationFinding.UNCLEAR, `${note}: the bound object is not there`);
    return stepOf(authorization, "unclear", `${note}: the bound object is not there`);
  }
  const voided = await tryVoidAbsent(run, authorization);
  if (voided) return stepOf(authorization, "voided", `${note}: absent after the quarantine`);
  await report(run, authorization, ReconciliationFinding.ABSENT, note);
  return stepOf(authorization, "absent", note);
}

async function tryVoidAbsent(run: Run, authorization: Authorization): Promise<boolean> {
  // Only a second look can prove it.
  if (authorization.reconciliation?.absentSinceTime === undefined) return false;
  try {
    await run.settings.controlPlane.void(
      { authorization: authorization.name, evidence: VoidEvidence.ABSENT_AFTER_QUARANTINE },
      deadlineOf(run),
    );
    return true;
  } catch (error) {
    if (toRpcFailure(error).reason === "EVIDENCE_INSUFFICIENT") return false;
    throw error;
  }
}

async function report(
  run: Run,
  authorization: Authorization,
  finding: ReconciliationFinding,
  note: string,
  object: { readonly vendorReference?: string; readonly vendorState?: string } = {},
): Promise<void> {
  await run.settings.controlPlane.reportReconciliation(
    { authorization: authorization.name, finding, note: note.replaceAll(/[^ -~]/g, " ").slice(0, 500), ...object },
    deadlineOf(run),
  );
}

function deadlineOf({ settings }: Run): number {
  return settings.runtime.clock.now() + settings.timeoutMs;
}

function stepOf(
  authorization: Authorization,
  outcome: ReconcileStep["outcome"],
  note: string,
  vendorReference?: string,
): ReconcileStep {
  const known = vendorReference ?? (authorization.vendorReference === "" ? undefined : authorization.vendorReference);
  return { authorization: authorization.name, outcome, vendorReference: known, money: undefined, note };
}

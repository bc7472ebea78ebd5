import { SpanStatusCode, trace } from "@opentelemetry/api";
import {
  reconcileEach,
  type ReconcileDesk,
  type ReconcileStep,
  type Runtime,
  type StripeGet,
  type StripeReader,
} from "@holdfast/sdk/stripe-vendor";
import type { CommitCommand } from "../domain/spend.ts";
import { lookedAccount } from "../domain/vendor-credential.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import type { GroupCommit } from "../store/group-commit.ts";
import { readLookTime } from "../store/reconcile.ts";
import { claimVendor, listUnsettledOfVendor, releaseVendor } from "../store/reconciler.ts";
import type { CommitResult } from "../store/spend.ts";
import { credentialOfVendor, noteVendorAnswer, openSecret } from "../store/vendor-credential.ts";
import { attribute } from "../telemetry-attributes.ts";
import { compareStep } from "./comparison.ts";
import type { Pace } from "./pace.ts";
import { createPassAccounts, foreignAccount, type PassAccounts } from "./pass-accounts.ts";
import { createPassReader } from "./pass-reader.ts";
import { createServerDesk, type Row, rowOf } from "./reconcile-desk.ts";
import type { ReconcilerFigures } from "./reconciler-figures.ts";
import type { StripeClient } from "./stripe-client.ts";

/** What reconciling needs beside the workspace and the vendor. */
export interface PassSettings {
  readonly database: Database;
  readonly commits: GroupCommit<CommitCommand, CommitResult>;
  readonly client: StripeClient;
  readonly cipher: CredentialCipher;
  readonly runtime: Runtime;
  /** How many reads one authorization may cost at a time. */
  readonly readsPerAuthorization: number;
  readonly figures: ReconcilerFigures;
  readonly signal: AbortSignal;
  /** Others wait for a turn: this one ends after what it has begun, and goes on with its next turn. */
  readonly yields: () => boolean;
}

/** One replica's turn at one vendor of one workspace. */
export interface Pass extends PassSettings {
  readonly workspace: string;
  readonly vendor: string;
  readonly desk: ReconcileDesk<Row>;
  readonly connected: PassAccounts;
  /** A reader of its own, with its own number of reads. Tells how the vendor answers. */
  readonly reader: (maxReads: number) => StripeReader;
  /** The vendor does not answer at all. */
  readonly silent: () => boolean;
  /** The last answer was that the secret is not known. */
  readonly refused: () => boolean;
  /** Keeps the claim. False if another replica has it, or the server stops. */
  readonly goOn: () => Promise<boolean>;
}

const pageSize = 50;
const stepsPerTurn = 20;
const backoffMs = 2_000;
const backoffMaxMs = 60_000;

/**
 * Takes the claim of a vendor, settles what is due there, goes on with a comparison if one was started, and gives the
 * claim back. Killed at any point, another replica goes on when the claim has run out.
 */
export async function reconcileVendor(
  settings: PassSettings,
  workspace: string,
  vendor: string,
  pace: Pace,
): Promise<void> {
  const { database, runtime } = settings;
  const token = runtime.random.hex128();
  const silentBefore = await claimVendor(database, workspace, vendor, token);
  if (silentBefore === undefined) return;
  await traced(workspace, vendor, () => carryOut(settings, { workspace, vendor, token, pace }, silentBefore));
}

const tracer = trace.getTracer("holdfast");

/** A turn is a trace of its own: nobody's call waits for it. */
function traced(workspace: string, vendor: string, turn: () => Promise<void>): Promise<void> {
  const attributes = { [attribute.workspace]: workspace, [attribute.vendor]: vendor };
  return tracer.startActiveSpan("holdfast.reconcile", { attributes, root: true }, async (span) => {
    try {
      await turn();
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}

/** `silentBefore`: how often the vendor gave no answer until now. */
async function carryOut(settings: PassSettings, turn: Turn, silentBefore: number): Promise<void> {
  const { database, runtime } = settings;
  const { workspace, vendor, token } = turn;
  const pass = await openPass(settings, turn);
  let failed = true;
  try {
    if (pass !== undefined) {
      do await settleDue(pass);
      while (!pass.silent() && (await compare(pass)) && (await pass.goOn()));
    }
    failed = false;
  } finally {
    const silent = pass?.silent() ?? false;
    const backoff = Math.min(backoffMaxMs, backoffMs * 2 ** Math.min(silentBefore, 10));
    const pauseMs = silent ? backoff * (0.5 + runtime.random.next() / 2) : failed || pass === undefined ? backoffMs : 0;
    await releaseVendor(database, workspace, vendor, { token, silent, pauseMs });
  }
}

interface Turn {
  readonly workspace: string;
  readonly vendor: string;
  readonly token: string;
  readonly pace: Pace;
}

/** Undefined where there is no credential any more, or this server's keys do not open it: another replica's may. */
async function openPass(settings: PassSettings, turn: Turn): Promise<Pass | undefined> {
  const { database, cipher, runtime, signal, commits } = settings;
  const { workspace, vendor, token } = turn;
  const stored = await credentialOfVendor(database, workspace, vendor);
  if (stored === undefined || openSecret(cipher, workspace, stored) === undefined) return undefined;
  const goOn = async () => !signal.aborted && (await claimVendor(database, workspace, vendor, token)) !== undefined;
  const connected = createPassAccounts(database, { workspace, vendor, own: stored.credential.vendorAccountId });
  let last: StripeReader | undefined;
  let refused = false;
  const accounts = new Set<string>();
  const asked = getWith(settings, turn, accounts, (accepted) => {
    refused = !accepted;
  });
  const account = () => (accounts.size === 1 ? [...accounts].join("") : "");
  const get: StripeGet = async (path, account) =>
    (await connected.isForeign(account))
      ? { kind: "answer", status: 403, body: { error: { message: foreignAccount } } }
      : await asked(path, connected.of(account));
  const silent = () => last?.silent() ?? false;
  return {
    ...settings,
    workspace,
    vendor,
    connected,
    desk: createServerDesk({ database, workspace, commits, silent, account }),
    reader(maxReads) {
      last = createPassReader({ get, runtime, maxReads, signal });
      return last;
    },
    silent,
    refused: () => refused,
    goOn,
  };
}

/** Reads with the secret as it is stored now: one that was exchanged is in force for the next read. Adds its account. */
function getWith(
  { database, cipher, client, figures, signal }: PassSettings,
  { workspace, vendor, pace }: Turn,
  accounts: Set<string>,
  onAnswer: (accepted: boolean) => void,
): StripeGet {
  let noted: boolean | undefined;
  return async (path, account) => {
    const stored = await credentialOfVendor(database, workspace, vendor);
    const secret = stored === undefined ? undefined : openSecret(cipher, workspace, stored);
    if (stored === undefined || secret === undefined) return { kind: "lost", why: "the credential cannot be opened" };
    accounts.add(lookedAccount(stored.credential));
    await pace(signal);
    const read = await client.get(secret, path, account);
    figures.read(workspace, vendor, read.kind === "lost" ? "lost" : `${Math.floor(read.status / 100)}xx`);
    const accepted = read.kind === "answer" && read.status !== 401;
    onAnswer(read.kind === "lost" || accepted);
    if (read.kind === "answer" && noted !== accepted && (accepted ? read.status === 200 : true)) {
      noted = accepted;
      await noteVendorAnswer(database, workspace, stored.credential.vendorCredentialId, accepted);
    }
    return read;
  };
}

/** Settles what is due, oldest first, page by page. */
async function settleDue(pass: Pass): Promise<void> {
  const { database, workspace, vendor } = pass;
  let after: Row["authorization"] | undefined;
  for (;;) {
    const page = { vendor, includeNotDue: false, after, limit: pageSize };
    const lookTime = await readLookTime(database);
    const rows = await listUnsettledOfVendor(database, workspace, page);
    if (rows.length === 0) return;
    const { complete } = await settleRows(
      pass,
      rows.map((row) => rowOf(row, { lookTime })),
    );
    if (!complete || rows.length < pageSize || pass.yields()) return;
    after = rows.at(-1);
  }
}

/** Settles what the vendor can answer about these, and puts off what it cannot settle. */
export async function settleRows(pass: Pass, rows: readonly Row[]) {
  const { desk, goOn, figures, workspace, vendor, readsPerAuthorization } = pass;
  const reader = pass.reader(readsPerAuthorization * rows.length);
  const unsettled: { readonly row: Row; readonly step: ReconcileStep }[] = [];
  const result = await reconcileEach(
    {
      desk,
      reader,
      goOn,
      onStep(step, row) {
        figures.settled(workspace, vendor, step.outcome);
        if (step.outcome === "skipped" || step.outcome === "contradiction") unsettled.push({ row, step });
      },
    },
    rows,
  );
  // Else it would stay due, and be read again and again. Where it is settled meanwhile, this is refused.
  for (const { row, step } of unsettled) await desk.report(row, { finding: "UNCLEAR", note: printable(step.note) });
  return { ...result, reads: reader.reads() };
}

function printable(text: string): string {
  return text.replaceAll(/[^ -~]/g, " ").slice(0, 500);
}

/** Goes on with the oldest comparison for some steps. True if there is more to do at once. */
async function compare(pass: Pass): Promise<boolean> {
  for (let steps = 0; steps < stepsPerTurn; steps += 1) {
    if (!(await pass.goOn())) return false;
    if (!(await compareStep(pass)) || pass.yields()) return false;
  }
  return true;
}

import { type Runtime, sleep } from "./runtime.ts";
import { isRecord } from "./stripe-send.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

type StripeObject = Readonly<Record<string, unknown>>;

/** What reading the vendor came to. */
export type Found<Value> =
  | { readonly kind: "found"; readonly value: Value }
  /** The vendor has no such object, or a complete list does not show it. */
  | { readonly kind: "absent" }
  /** No answer, or none that is complete: it says nothing. `status` is set where the vendor has refused the question. */
  | { readonly kind: "unreadable"; readonly why: string; readonly status?: number };

/** One answer to a GET, or why there was none. */
export type StripeRead =
  | {
      readonly kind: "answer";
      readonly status: number;
      readonly body: unknown;
      /** What the vendor asks to wait before the next request, in milliseconds. */
      readonly retryAfterMs?: number;
    }
  | { readonly kind: "lost"; readonly why: string };

/** Sends one GET, once. `account` is a connected account, or empty. Never rejects. */
export type StripeGet = (path: string, account: string) => Promise<StripeRead>;

export interface StripeReaderOptions {
  readonly get: StripeGet;
  readonly runtime: Runtime;
  /** How many reads one run may make: Stripe allots reads by the number of payments. */
  readonly maxReads: number;
  readonly signal: AbortSignal | undefined;
}

/** One page of a list, newest first. */
export interface StripePage {
  readonly rows: readonly StripeObject[];
  /** Where the next page begins; undefined on the last one. */
  readonly after: string | undefined;
}

type Query = Readonly<Record<string, string>>;

/** Reads Stripe for a reconciliation: with a limit, with pauses after a rate limit, and never by search. */
export interface StripeReader {
  readonly reads: () => number;
  /** Nothing more can be read in this run: the reads are used up, it was aborted, or Stripe does not answer at all. */
  readonly spent: () => boolean;
  /** Stripe does not answer at all. */
  readonly silent: () => boolean;
  object(path: string, account: string): Promise<Found<StripeObject>>;
  /** Everything of a list, paged to its end. */
  list(path: string, query: Query, account: string): Promise<Found<readonly StripeObject[]>>;
  /** One page of a list; `after` is empty for the first. */
  page(path: string, query: Query, account: string, after: string): Promise<Found<StripePage>>;
}

const TRIES_MAX = 3;
// After so many reads in a row without an answer Stripe is away, and asking about the rest only takes time.
const SILENT_READS_MAX = 2;
const BACKOFF_MS = 1_000;
const BACKOFF_MAX_MS = 60_000;
const PAGE_SIZE = "100";
const PAGES_MAX = 1_000;

/** Statuses that may be another one at the next try. */
function isPassing(status: number): boolean {
  return status < 400 || status >= 500 || status === 429 || status === 409;
}

export function createStripeReader({ get, runtime, maxReads, signal }: StripeReaderOptions): StripeReader {
  let reads = 0;
  let silent = 0;

  async function object(path: string, account: string): Promise<Found<StripeObject>> {
    let why = "";
    for (let tries = 0; tries < TRIES_MAX; tries += 1) {
      if (signal?.aborted === true) return { kind: "unreadable", why: "the run was aborted" };
      if (silent >= SILENT_READS_MAX) return { kind: "unreadable", why: "Stripe does not answer" };
      if (reads >= maxReads) return { kind: "unreadable", why: `the limit of ${maxReads} reads is used up` };
      reads += 1;
      const read = await inSpan("holdfast.vendor_read", { [ATTRIBUTES.vendor]: "stripe" }, async (span) => {
        const answer = await get(path, account);
        if (answer.kind === "answer") span.setAttribute(ATTRIBUTES.vendorStatus, answer.status);
        return answer;
      });
      if (read.kind === "answer") {
        const { status, body } = read;
        if (status === 404) {
          silent = 0;
          return { kind: "absent" };
        }
        if (status === 200 && isRecord(body)) {
          silent = 0;
          return { kind: "found", value: body };
        }
        why = status === 200 ? "no object in the answer" : `${status}${errorMessage(body)}`;
        // A wrong credential or a wrong path does not get better by asking again.
        if (!isPassing(status)) {
          if (status === 401) silent = SILENT_READS_MAX;
          return { kind: "unreadable", why, status };
        }
      } else {
        why = read.why;
      }
      if (tries + 1 < TRIES_MAX) {
        const asked = read.kind === "answer" ? (read.retryAfterMs ?? 0) : 0;
        const backoff = Math.min(BACKOFF_MAX_MS, Math.max(asked, BACKOFF_MS * 2 ** tries));
        await sleep(
          runtime,
          backoff * (asked > 0 ? 1 + runtime.random.next() / 4 : 0.5 + runtime.random.next() / 2),
          signal,
        );
      }
    }
    silent += 1;
    return { kind: "unreadable", why };
  }

  async function page(path: string, query: Query, account: string, after: string): Promise<Found<StripePage>> {
    const search = new URLSearchParams({
      ...query,
      limit: PAGE_SIZE,
      ...(after === "" ? {} : { starting_after: after }),
    });
    const found = await object(`${path}?${search.toString()}`, account);
    if (found.kind !== "found") return found.kind === "absent" ? { kind: "unreadable", why: "no such list" } : found;
    const { data, has_more: more } = found.value;
    if (!Array.isArray(data)) return { kind: "unreadable", why: "no list in the answer" };
    const rows = data.filter(isRecord);
    if (more !== true) return { kind: "found", value: { rows, after: undefined } };
    const last = rows.at(-1)?.["id"];
    if (typeof last !== "string" || last === after) return { kind: "unreadable", why: "a page without an end" };
    return { kind: "found", value: { rows, after: last } };
  }

  return {
    reads: () => reads,
    spent: () => signal?.aborted === true || reads >= maxReads || silent >= SILENT_READS_MAX,
    silent: () => silent >= SILENT_READS_MAX,
    object,
    page,
    async list(path, query, account) {
      const rows: StripeObject[] = [];
      let after: string | undefined = "";
      for (let pages = 0; pages < PAGES_MAX; pages += 1) {
        const found: Found<StripePage> = await page(path, query, account, after);
        if (found.kind !== "found") return found;
        rows.push(...found.value.rows);
        after = found.value.after;
        if (after === undefined) return { kind: "found", value: rows };
      }
      return { kind: "unreadable", why: "the list does not end" };
    },
  };
}

/** What Stripe says about a refusal, without anything that it echoes of a credential. */
function errorMessage(body: unknown): string {
  const error = isRecord(body) && isRecord(body["error"]) ? body["error"] : undefined;
  const message = error?.["message"];
  if (typeof message !== "string") return "";
  return `: ${message.replaceAll(/\b(sk|rk|pk)_[A-Za-z0-9_*]+/g, "…").slice(0, 200)}`;
}

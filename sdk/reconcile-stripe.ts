import { type Runtime, sleep } from "./runtime.ts";
import type { StripeLike } from "./stripe.ts";
import { isRecord } from "./stripe-send.ts";

type StripeObject = Readonly<Record<string, unknown>>;

/** What reading the vendor came to. */
export type Found<Value> =
  | { readonly kind: "found"; readonly value: Value }
  /** The vendor has no such object, or a complete list does not show it. */
  | { readonly kind: "absent" }
  /** No answer, or none that is complete: it says nothing. */
  | { readonly kind: "unreadable"; readonly why: string };

export interface StripeReaderOptions {
  readonly stripe: StripeLike;
  readonly runtime: Runtime;
  /** How many reads one run may make: Stripe allots reads by the number of payments. */
  readonly maxReads: number;
  readonly signal: AbortSignal | undefined;
}

/** Reads Stripe for a reconciliation: with a limit, with pauses after a rate limit, and never by search. */
export interface StripeReader {
  readonly reads: () => number;
  /** Nothing more can be read in this run: the reads are used up, it was aborted, or Stripe does not answer at all. */
  readonly spent: () => boolean;
  object(path: string, account: string): Promise<Found<StripeObject>>;
  /** Everything of a list, paged to its end. */
  list(path: string, query: Readonly<Record<string, string>>, account: string): Promise<Found<readonly StripeObject[]>>;
}

const TRIES_MAX = 3;
// After so many reads in a row without an answer Stripe is away, and asking about the rest only takes time.
const SILENT_READS_MAX = 2;
const BACKOFF_MS = 1_000;
const PAGE_SIZE = "100";
const PAGES_MAX = 1_000;

export function createStripeReader({ stripe, runtime, maxReads, signal }: StripeReaderOptions): StripeReader {
  let reads = 0;
  let silent = 0;

  async function get(path: string, account: string): Promise<Found<StripeObject>> {
    let why = "";
    for (let tries = 0; tries < TRIES_MAX; tries += 1) {
      if (signal?.aborted === true) return { kind: "unreadable", why: "the run was aborted" };
      if (silent >= SILENT_READS_MAX) return { kind: "unreadable", why: "Stripe does not answer" };
      if (reads >= maxReads) return { kind: "unreadable", why: `the limit of ${maxReads} reads is used up` };
      reads += 1;
      try {
        const options = account === "" ? {} : { stripeAccount: account };
        const body = await stripe.rawRequest("GET", path, undefined, options);
        silent = 0;
        return isRecord(body) ? { kind: "found", value: body } : { kind: "unreadable", why: "no object in the answer" };
      } catch (error) {
        const status = statusOf(error);
        if (status === 404) {
          silent = 0;
          return { kind: "absent" };
        }
        why = error instanceof Error ? error.message : String(error);
        // A wrong credential or a wrong path does not get better by asking again.
        if (status !== undefined && status >= 400 && status < 500 && status !== 429 && status !== 409) break;
      }
      if (tries + 1 < TRIES_MAX) {
        await sleep(runtime, BACKOFF_MS * 2 ** tries * (0.5 + runtime.random.next() / 2), signal);
      }
    }
    silent += 1;
    return { kind: "unreadable", why };
  }

  return {
    reads: () => reads,
    spent: () => signal?.aborted === true || reads >= maxReads || silent >= SILENT_READS_MAX,
    object: get,
    async list(path, query, account) {
      const rows: StripeObject[] = [];
      let after = "";
      for (let pages = 0; pages < PAGES_MAX; pages += 1) {
        const search = new URLSearchParams({
          ...query,
          limit: PAGE_SIZE,
          ...(after === "" ? {} : { starting_after: after }),
        });
        const page = await get(`${path}?${search.toString()}`, account);
        if (page.kind !== "found") return page.kind === "absent" ? { kind: "unreadable", why: "no such list" } : page;
        const { data, has_more: more } = page.value;
        if (!Array.isArray(data)) return { kind: "unreadable", why: "no list in the answer" };
        rows.push(...data.filter(isRecord));
        if (more !== true) return { kind: "found", value: rows };
        const last = rows.at(-1)?.["id"];
        if (typeof last !== "string" || last === after) return { kind: "unreadable", why: "a page without an end" };
        after = last;
      }
      return { kind: "unreadable", why: "the list does not end" };
    },
  };
}

function statusOf(error: unknown): number | undefined {
  const status = error instanceof Error && "statusCode" in error ? error.statusCode : undefined;
  return typeof status === "number" ? status : undefined;
}

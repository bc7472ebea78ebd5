import { SpendDeniedError, SpendInDoubtError } from "@holdfast/sdk";
import pRetry from "p-retry";
import {
  catchError,
  defer,
  from,
  lastValueFrom,
  map,
  mergeMap,
  type Observable,
  of,
  retry,
  timer,
  toArray,
} from "rxjs";
import type { BillingJob, BillingReport, Ending } from "./billing-job.ts";
import type { Charging } from "./charging.ts";
import type { Customer } from "./customers.ts";

const retriesMax = 5;
const retryDelayMs = 100;
const problemsMax = 5;

/** Notes how each customer's last try ended. */
export class Endings {
  readonly #endings = new Map<string, Ending>();
  readonly #problems: string[] = [];
  retries = 0;

  charged(customer: Customer): void {
    this.#endings.set(customer.id, "charged");
  }

  failed(customer: Customer, error: unknown): void {
    this.#endings.set(customer.id, endingOf(error));
    if (endingOf(error) === "failed" && this.#problems.length < problemsMax) this.#problems.push(String(error));
  }

  report(): BillingReport {
    return { endings: Object.fromEntries(this.#endings), retries: this.retries, problems: this.#problems };
  }
}

function endingOf(error: unknown): Ending {
  if (error instanceof SpendDeniedError) return "denied";
  return error instanceof SpendInDoubtError ? "in_doubt" : "failed";
}

/** Bills every customer of the job, retried the way the job says. */
export async function billEverybody(job: BillingJob, charging: Charging): Promise<BillingReport> {
  const endings = new Endings();
  switch (job.retrying) {
    case "rxjs":
      await billWithRxjs(job, charging, endings);
      break;
    case "p-retry":
      await billWithPRetry(job, charging, endings);
      break;
    case "none":
      await billOnce(job, charging, endings, { stopAtError: false });
  }
  return endings.report();
}

/** `retry` subscribes again to `defer`, which runs the whole of `charge` again, the making of the key included. */
async function billWithRxjs(job: BillingJob, charging: Charging, endings: Endings): Promise<void> {
  const bill = (customer: Customer): Observable<void> =>
    defer(() => charging.charge(customer)).pipe(
      retry({
        count: retriesMax,
        delay: (error) => {
          if (error instanceof SpendDeniedError) throw error;
          endings.retries += 1;
          return timer(retryDelayMs);
        },
      }),
      map(() => endings.charged(customer)),
      catchError((error: unknown) => of(endings.failed(customer, error))),
    );
  await lastValueFrom(from(job.customers).pipe(mergeMap(bill, job.concurrency), toArray()));
}

/** The run stops at its first error, half-done, and is then run again from the first customer on. */
async function billWithPRetry(job: BillingJob, charging: Charging, endings: Endings): Promise<void> {
  const run = async (attempt: number): Promise<void> => {
    if (attempt > 1) endings.retries += 1;
    // The last run goes through to the end and leaves out who cannot be charged.
    await billOnce(job, charging, endings, { stopAtError: attempt <= retriesMax });
  };
  await pRetry(run, { retries: retriesMax, minTimeout: retryDelayMs, factor: 1 });
}

async function billOnce(
  job: BillingJob,
  charging: Charging,
  endings: Endings,
  options: { readonly stopAtError: boolean },
): Promise<void> {
  const waiting = job.customers.values();
  let stoppedBy: Error | undefined;
  const work = async (): Promise<void> => {
    for (const customer of waiting) {
      if (stoppedBy !== undefined) return;
      try {
        await charging.charge(customer);
        endings.charged(customer);
      } catch (error) {
        endings.failed(customer, error);
        if (options.stopAtError && !(error instanceof SpendDeniedError)) {
          stoppedBy ??= new Error("The run stopped half-done.", { cause: error });
        }
      }
    }
  };
  await Promise.all(Array.from({ length: job.concurrency }, work));
  if (stoppedBy !== undefined) throw stoppedBy;
}

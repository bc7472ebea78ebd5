import pRetry from "p-retry";
import { billOnce } from "./bill-once.ts";
import type { BillingJob } from "./billing-job.ts";
import type { Charging } from "./charging.ts";
import type { Endings } from "./endings.ts";

const retriesMax = 3;
const retryDelayMs = 100;

/** The run stops at its first error, half-done, and is then run again from the first customer on. */
export async function billWithPRetry(job: BillingJob, charging: Charging, endings: Endings): Promise<void> {
  const run = async (attempt: number): Promise<void> => {
    if (attempt > 1) endings.retries += 1;
    // The last run goes through to the end and leaves out who cannot be charged.
    await billOnce(job, charging, endings, { stopAtError: attempt <= retriesMax });
  };
  await pRetry(run, { retries: retriesMax, minTimeout: retryDelayMs, factor: 1 });
}

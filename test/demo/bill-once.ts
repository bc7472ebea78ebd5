import { SpendDeniedError } from "@holdfast/sdk";
import type { BillingJob } from "./billing-job.ts";
import type { Charging } from "./charging.ts";
import type { Endings } from "./endings.ts";

/** Bills every customer once, in the order of the file. With `stopAtError` it throws, half-done, at the first error. */
export async function billOnce(
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

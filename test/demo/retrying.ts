import { billOnce } from "./bill-once.ts";
import type { BillingJob } from "./billing-job.ts";
import type { Charging } from "./charging.ts";
import type { Endings } from "./endings.ts";

/** Bills every customer of the job, retried the way the job says. */
export async function billEverybody(job: BillingJob, charging: Charging, endings: Endings): Promise<void> {
  switch (job.retrying) {
    case "rxjs": {
      const { billWithRxjs } = await import("./retry-with-rxjs.ts");
      await billWithRxjs(job, charging, endings);
      break;
    }
    case "p-retry": {
      const { billWithPRetry } = await import("./retry-with-p-retry.ts");
      await billWithPRetry(job, charging, endings);
      break;
    }
    case "none":
      await billOnce(job, charging, endings, { stopAtError: false });
  }
}

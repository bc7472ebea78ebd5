import { SpendDeniedError } from "@holdfast/sdk";
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
import type { BillingJob } from "./billing-job.ts";
import type { Charging } from "./charging.ts";
import type { Customer } from "./customers.ts";
import type { Endings } from "./endings.ts";

const retriesMax = 5;
const retryDelayMs = 100;

/** `retry` subscribes again to `defer`, which runs the whole of `charge` again, the making of the key included. */
export async function billWithRxjs(job: BillingJob, charging: Charging, endings: Endings): Promise<void> {
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

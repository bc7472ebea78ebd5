import { randomUUID } from "node:crypto";
import { defer, from, lastValueFrom, mergeMap, retry, timer, toArray, catchError, of } from "rxjs";
import Stripe from "stripe";

// A billing job as it must not be written: the idempotency key is made inside the closure that is retried, so every
// attempt is another request to Stripe. Run in several processes at once, as pods are that were started by one timer.
// Arguments: URL of the API, key, amount, retries, customers. Prints one JSON object: what became of each customer.

const [, , url = "", key = "", amount = "", retries = "", ...customers] = process.argv;
const { hostname, port } = new URL(url);
const stripe = new Stripe(key, { host: hostname, port: Number(port), protocol: "http", telemetry: false });

const pay = (customer: string) =>
  defer(() =>
    from(
      stripe.paymentIntents.create(
        { amount: Number(amount), currency: "usd", customer, payment_method: "pm_card_visa", confirm: true },
        { idempotencyKey: randomUUID() },
      ),
    ),
  ).pipe(
    retry({ count: Number(retries), delay: (_error, attempt) => timer(50 * attempt) }),
    mergeMap(({ id, status }) => of([customer, `${status} ${id}`] as const)),
    catchError((error: Stripe.errors.StripeError) => of([customer, `${error.type} ${error.code}`] as const)),
  );

const outcomes = await lastValueFrom(from(customers).pipe(mergeMap(pay, 4), toArray()));
console.log(JSON.stringify(Object.fromEntries(outcomes)));

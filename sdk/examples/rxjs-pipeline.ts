// Bills every customer through an RxJS pipeline, some at a time. `retry` subscribes again to `defer`, which runs the
// whole of the function again. With a key made in there, a retry after the charge would charge again; here it gets the
// payment that exists.
import { type GuardedStripe, SpendAlreadyFailedError, SpendDeniedError } from "@holdfast/sdk";
import { defer, from, mergeMap, type Observable, retry, throwError, timer } from "rxjs";
import Stripe from "stripe";

export interface Customer {
  readonly id: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  /** In cents. */
  readonly amount: number;
}

export interface Receipt {
  readonly customerId: string;
  readonly paymentIntent: string;
}

export interface Pipeline {
  /** `holdfast.stripe(new Stripe(key))`. */
  readonly stripe: GuardedStripe;
  /** For example "2026-11". */
  readonly billingPeriod: string;
  /** Writes the receipt down. May fail, and is then called again with the same receipt. */
  readonly save: (receipt: Receipt) => Promise<void>;
  readonly retryDelayMs?: number;
}

const CONCURRENCY = 8;
const RETRIES_MAX = 5;

/** Emits a receipt per customer; ends with the first error that no retry can heal. */
export function billCustomers(pipeline: Pipeline, customers: Iterable<Customer>): Observable<Receipt> {
  const { retryDelayMs = 1_000 } = pipeline;
  const delay = (error: unknown, retries: number) =>
    isFinal(error) ? throwError(() => error) : timer(retryDelayMs * 2 ** (retries - 1));
  const bill = (customer: Customer): Observable<Receipt> =>
    defer(() => chargeAndSave(pipeline, customer)).pipe(retry({ count: RETRIES_MAX, delay }));
  return from(customers).pipe(mergeMap(bill, CONCURRENCY));
}

async function chargeAndSave({ stripe, billingPeriod, save }: Pipeline, customer: Customer): Promise<Receipt> {
  const { id } = await stripe.paymentIntents.create(
    {
      amount: customer.amount,
      currency: "usd",
      customer: customer.stripeCustomer,
      payment_method: customer.paymentMethod,
      off_session: true,
      confirm: true,
    },
    { spend: { customerId: customer.id, billingPeriod, purpose: "subscription" } },
  );
  const receipt = { customerId: customer.id, paymentIntent: id };
  await save(receipt);
  return receipt;
}

/** A cap says no, the card was declined, or an earlier try of this spend was: asking again changes nothing. */
function isFinal(error: unknown): boolean {
  return (
    error instanceof SpendDeniedError ||
    error instanceof SpendAlreadyFailedError ||
    error instanceof Stripe.errors.StripeCardError
  );
}

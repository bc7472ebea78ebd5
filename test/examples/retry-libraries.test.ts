import { lastValueFrom, toArray } from "rxjs";
import { afterEach, beforeEach, expect, it } from "vitest";
import { runBilling } from "../../sdk/examples/p-retry.ts";
import { billCustomers } from "../../sdk/examples/rxjs-pipeline.ts";
import { BILLING_PERIOD, failingOnce, oneEach, payers, startWorld, type World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const declined = { paymentMethod: "pm_card_chargeDeclined" };

it("an RxJS pipeline whose retry runs the charge again charges each customer once", async () => {
  const database = failingOnce<string>();
  world.simulator.fault({ match: { path: /\/confirm$/ }, mode: "drop_after_execute", times: 2 });
  const pipeline = {
    stripe: world.client().stripe,
    billingPeriod: BILLING_PERIOD,
    save: ({ customerId, paymentIntent }: { customerId: string; paymentIntent: string }) =>
      database.report(customerId, paymentIntent),
    retryDelayMs: 1,
  };
  const receipts = await lastValueFrom(billCustomers(pipeline, payers(12)).pipe(toArray()));
  expect(receipts).toHaveLength(12);
  expect([...database.seen.values()].map((payments) => [payments.length, new Set(payments).size])).toEqual(
    Array.from({ length: 12 }, () => [2, 1]),
  );
  expect(world.charges()).toEqual(oneEach(12));
});

it("an RxJS pipeline does not retry a decline", async () => {
  const saved: unknown[] = [];
  const save = (receipt: unknown): Promise<void> => Promise.resolve(void saved.push(receipt));
  const pipeline = { stripe: world.client().stripe, billingPeriod: BILLING_PERIOD, save, retryDelayMs: 1 };
  const bill = (): Promise<unknown> =>
    lastValueFrom(
      billCustomers(
        pipeline,
        payers(1).map((payer) => ({ ...payer, ...declined })),
      ),
    );
  await expect(bill()).rejects.toMatchObject({ type: "StripeCardError" });
  await expect(bill()).rejects.toMatchObject({ name: "SpendAlreadyFailedError" });
  expect(world.simulator.requests().filter(({ path }) => path.endsWith("/confirm"))).toHaveLength(1);
  expect([saved, world.charges()]).toEqual([[], {}]);
});

it("a billing run that is run again after every error charges each customer once, and goes on after a decline", async () => {
  const database = failingOnce<string>();
  const notPaid: string[] = [];
  const [second, ...others] = payers(4).toReversed();
  if (second === undefined) throw new Error("There are four.");
  await runBilling({
    stripe: world.client().stripe,
    billingPeriod: BILLING_PERIOD,
    invoices: [{ ...second, ...declined }, ...others],
    paid: ({ customerId }, paymentIntent) => database.report(customerId, paymentIntent),
    notPaid: ({ customerId }, error) => Promise.resolve(void notPaid.push(`${customerId} ${error.name}`)),
    retryDelayMs: 1,
  });
  // Three customers fail the run once each, so the first of them is met by four runs.
  expect([...database.seen.values()].map((payments) => payments.length)).toEqual([4, 3, 2]);
  expect(notPaid).toEqual(["cust_4 Error", ...Array.from({ length: 3 }, () => "cust_4 SpendAlreadyFailedError")]);
  expect(world.charges()).toEqual(oneEach(3));
});

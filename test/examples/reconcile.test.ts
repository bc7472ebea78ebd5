import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { afterEach, beforeEach, expect, it } from "vitest";
import { reconcileJob } from "../../sdk/examples/reconcile-job.ts";
import { BILLING_PERIOD, payers, startWorld, type World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const [payer] = payers(1);
if (payer === undefined) throw new Error("There is one.");
const spend = { customerId: payer.customerId, billingPeriod: BILLING_PERIOD, purpose: "subscription" };

async function states(): Promise<AuthorizationState[]> {
  const { authorizations } = await world.server.admin.listAuthorizations({});
  return authorizations.map(({ state }) => state);
}

it("a payment that the customer finished in the browser is committed by the job", async () => {
  const { holdfast, plain, stripe } = world.client();
  const intent = await stripe.paymentIntents.create(
    {
      amount: payer.amount,
      currency: "usd",
      customer: payer.stripeCustomer,
      payment_method: "pm_card_authenticationRequired",
      confirm: true,
    },
    { spend },
  );
  expect(intent.status).toBe("requires_action");
  world.simulator.confirmFromBrowser(intent.id);
  expect(await states()).toEqual([AuthorizationState.HELD]);
  const lines: string[] = [];
  await world.server.clock.advance(120_000);
  expect(await reconcileJob(holdfast, plain, (line) => lines.push(line))).toBe(0);
  expect(lines).toEqual([expect.stringMatching(/^authorizations\/\S+ committed: read pi_/)]);
  expect(await states()).toEqual([AuthorizationState.COMMITTED]);
});

it("says that it did not get through when Stripe does not answer", async () => {
  const { holdfast, plain, stripe } = world.client();
  await stripe.paymentIntents.create(
    { amount: payer.amount, currency: "usd", payment_method: "pm_card_visa", capture_method: "manual", confirm: true },
    { spend },
  );
  await world.server.clock.advance(120_000);
  world.simulator.fault({ mode: "error_500_before", match: { method: "GET" }, times: 100 });
  expect(await reconcileJob(holdfast, plain, () => undefined)).toBe(2);
  expect(await states()).toEqual([AuthorizationState.HELD]);
});

it("sends for somebody when Stripe no longer shows what was committed", async () => {
  const { holdfast, plain, stripe } = world.client();
  const intent = await stripe.paymentIntents.create(
    { amount: payer.amount, currency: "usd", payment_method: "pm_card_visa", confirm: true },
    { spend },
  );
  expect(await reconcileJob(holdfast, plain, () => undefined)).toBe(0);
  await world.server.database.pool.query("update holdfast.authorizations set vendor_reference = 'pi_gone'");
  const lines: string[] = [];
  expect(await reconcileJob(holdfast, plain, (line) => lines.push(line))).toBe(1);
  expect(lines).toContainEqual(expect.stringMatching(/^MOVEMENT_MISSING authorizations\/\S+: pi_gone/));
  expect(lines).toContainEqual(expect.stringContaining(`${intent.id} carries the mark`));
});

import { afterEach, beforeEach, expect, it } from "vitest";
import { chargeActivity, type ChargeInput } from "../../sdk/examples/workflow-activity.ts";
import { BILLING_PERIOD, oneEach, payers, startWorld, type World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await startWorld();
});
afterEach(() => world.close());

const [payer] = payers(1);
if (payer === undefined) throw new Error("There is one.");
const input: ChargeInput = { ...payer, billingPeriod: BILLING_PERIOD };

it("an activity that is executed again, and on two workers at once, charges once and gives one output", async () => {
  world.simulator.fault({ match: { path: /\/confirm$/ }, mode: "drop_after_execute" });
  const workers = [world.client().stripe, world.client().stripe];
  const outputs = await Promise.all(workers.map((stripe) => chargeActivity(stripe, input)));
  outputs.push(await chargeActivity(world.client().stripe, input));
  expect(outputs).toMatchObject([{ outcome: "paid" }, outputs[0], outputs[0]]);
  expect(world.charges()).toEqual(oneEach(1));
});

it("a declined activity gives the same output again, and a workflow may decide to try another card", async () => {
  const bad = { ...input, paymentMethod: "pm_card_chargeDeclined" };
  const declined = { outcome: "declined", failedTry: 1 } as const;
  expect(await chargeActivity(world.client().stripe, bad)).toEqual(declined);
  expect(await chargeActivity(world.client().stripe, bad)).toEqual(declined);
  const second = { ...input, retryAfterTry: declined.failedTry };
  const paid = await chargeActivity(world.client().stripe, second);
  expect(paid).toMatchObject({ outcome: "paid" });
  expect(await chargeActivity(world.client().stripe, second)).toEqual(paid);
  expect(world.charges()).toEqual(oneEach(1));
});

it("a denied activity says why", async () => {
  const output = await chargeActivity(world.client().stripe, { ...input, amount: 200_000 });
  expect(output).toMatchObject({ outcome: "denied", reason: expect.stringContaining("caps/all") as string });
});

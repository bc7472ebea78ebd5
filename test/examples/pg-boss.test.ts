import { PgBoss } from "pg-boss";
import { afterEach, beforeEach, expect, it } from "vitest";
import { CHARGE_QUEUE, type ChargeJob, startChargeWorker } from "../../sdk/examples/pg-boss-job.ts";
import { BILLING_PERIOD, oneEach, payers, startWorld, type World } from "./world.ts";

let world: World;
let boss: PgBoss;
beforeEach(async () => {
  world = await startWorld();
  const { host, port, user, database } = world.server.database.connection;
  boss = new PgBoss({ host, port, user, database, schedule: false, supervise: false });
  await boss.start();
});
afterEach(async () => {
  await boss.stop({ graceful: false });
  await world.close();
});

it("a job that fails after its charge, and a job that was sent twice, charge once", async () => {
  const payments = new Map<string, string[]>();
  let finish: () => void = () => {};
  const finished = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const jobs = payers(3).map((payer): ChargeJob => ({ ...payer, billingPeriod: BILLING_PERIOD }));
  await startChargeWorker({
    boss,
    stripe: world.client().stripe,
    async paid(job, paymentIntent) {
      const known = [...(payments.get(job.customerId) ?? []), paymentIntent];
      payments.set(job.customerId, known);
      // The first delivery of the first job dies after its charge; it is sent twice, so it is delivered three times.
      if (payments.get("cust_1")?.length === 3 && payments.has("cust_3")) finish();
      if (job.customerId === "cust_1" && known.length === 1) throw new Error("The worker was stopped.");
      await Promise.resolve();
    },
  });
  await boss.send(CHARGE_QUEUE, jobs[0]);
  for (const job of jobs) await boss.send(CHARGE_QUEUE, job);
  await finished;
  expect(payments.get("cust_1")).toHaveLength(3);
  expect(new Set(payments.get("cust_1")).size).toBe(1);
  expect(world.charges()).toEqual(oneEach(3));
});

it("a job whose card is declined is done, with a result", async () => {
  await startChargeWorker({ boss, stripe: world.client().stripe, paid: () => Promise.reject(new Error("Not paid.")) });
  const [payer] = payers(1);
  const job = { ...payer, paymentMethod: "pm_card_chargeDeclined", billingPeriod: BILLING_PERIOD };
  const id = (await boss.send(CHARGE_QUEUE, job)) ?? "";
  await expect
    .poll(async () => (await boss.findJobs(CHARGE_QUEUE, { id }))[0]?.output, { timeout: 50_000 })
    .toMatchObject({ outcome: "not paid" });
  expect(world.charges()).toEqual({});
});

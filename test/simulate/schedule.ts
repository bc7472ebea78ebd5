import { actsOn } from "../support/stripe-simulator/acts.ts";
import { runJob } from "./job.ts";
import type { SpendPlan } from "./plan.ts";
import type { Chance } from "./random.ts";
import type { Stage } from "./stage.ts";

const hourMs = 3_600_000;
const disturbedMs = 72 * hourMs;

/** What happens when: jobs, what comes between them, and in the end quiet. */
export function schedule(stage: Stage, chance: Chance): void {
  const { loop, plans } = stage;
  const limit = (): bigint => (stage.total * BigInt(chance.between(80, 180))) / 100n;
  stage.setCap(limit());
  let runsBegun = 0;
  const job = (delay: number, restarts: number, tries: number, some: readonly SpendPlan[], replica = 0): void => {
    loop.at(loop.now() + delay, () => {
      if (replica > 0) stage.trace.add(loop.now(), `the timer fires on replica ${replica + 1} too`);
      else if (runsBegun > 0) stage.trace.add(loop.now(), "the billing run is run again");
      runsBegun += 1;
      const again = (): void => {
        if (restarts > 0) job(chance.spread(1_000, 30 * hourMs), restarts - 1, tries, some);
      };
      stage.start("job", (tools) => runJob(tools, some, tries), again);
    });
  };
  for (let runs = chance.between(1, 3); runs > 0; runs -= 1) {
    // One timer on every replica, and the run that somebody starts again.
    const startsAt = chance.pick([0, chance.spread(1_000, 60 * hourMs), chance.between(23 * hourMs, 71 * hourMs)]);
    const replicas = chance.happens(0.4) ? chance.between(2, 3) : 1;
    for (let replica = 0; replica < replicas; replica += 1) {
      job(startsAt + chance.between(0, 50), 2, chance.between(1, 4), plans, replica);
    }
  }
  scheduleOutside(stage, chance, limit);
  loop.at(disturbedMs, () => {
    stage.calm = true;
    stage.ahead = Math.max(0, stage.ahead);
    stage.network.heal();
    stage.trace.add(loop.now(), "from now on all is well");
  });
  const reconcile = (): void => {
    stage.trace.add(loop.now(), "a reconciler runs");
    stage.start(
      "reconciler",
      async ({ holdfast, plain }) => void (await holdfast.reconcile(plain, { includeNotDue: true })),
      () => undefined,
    );
  };
  const sweep = (): void => {
    stage.trace.add(loop.now(), "the sweeper runs");
    stage.sweep();
  };
  if (chance.happens(0.5)) loop.at(chance.between(1, disturbedMs), reconcile);
  for (const hours of [100, 130, 180, 300]) loop.at(hours * hourMs, reconcile);
  for (let hours = 1; hours < 80; hours += 3) loop.at(hours * hourMs + chance.between(0, hourMs), sweep);
  loop.at(190 * hourMs, () => job(0, 0, 2, plans));
}

/** What others do: the control plane's operators, its machines, and the customers' banks. */
function scheduleOutside(stage: Stage, chance: Chance, limit: () => bigint): void {
  const { loop, disturbance, trace } = stage;
  const some = (probability: number, act: () => void): void => {
    for (let count = 0; count < 3 && chance.happens(probability); count += 1)
      loop.at(chance.spread(1, disturbedMs), act);
  };
  some(disturbance.restart, () => {
    stage.restart();
    stage.downUntil = loop.now() + chance.spread(100, 600_000);
    trace.add(loop.now(), `the control plane restarts, in ${stage.downUntil - loop.now()} ms`);
  });
  some(disturbance.clockJump, () => {
    stage.ahead = chance.between(-1_200_000, 1_200_000);
    trace.add(loop.now(), `the database clock is ${stage.ahead} ms ahead`);
  });
  some(disturbance.capChange, () => stage.setCap(limit()));
  if (chance.happens(disturbance.revoke)) loop.at(chance.spread(1, 2 * disturbedMs), () => stage.revoke());
  const acts = actsOn(stage.vendor.world);
  for (let visits = chance.between(0, 4); visits > 0; visits -= 1) {
    loop.at(chance.spread(1_000, 100 * hourMs), () => {
      stage.vendor.catchUp();
      const account = stage.vendor.world.account("acct_simulator");
      for (const intent of account.paymentIntents.values()) {
        if (intent.status !== "requires_action") continue;
        const passes = chance.happens(0.7);
        trace.add(loop.now(), `the customer ${passes ? "passes" : "fails"} the bank's check of ${intent.id}`);
        if (passes) acts.confirmFromBrowser(intent.id);
        else acts.failFromBrowser(intent.id);
      }
    });
  }
}

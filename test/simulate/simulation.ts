import { createHoldfast } from "@holdfast/sdk";
import Stripe from "stripe";
import { rules as meant } from "../property/model-rules.ts";
import { actsOn } from "../support/stripe-simulator/acts.ts";
import { type ControlPlane, createControlPlane, createSimulatedTransport, DefectError } from "./control-plane.ts";
import { createStandIn } from "./database.ts";
import { type Disturbance, type DisturbanceName, drawDisturbance } from "./disturbance.ts";
import { createEventLoop, type EventLoop } from "./event-loop.ts";
import { createInvariants, type Invariants, Violation } from "./invariants.ts";
import { runJob, type Tools } from "./job.ts";
import { epochMs, onControlledMachine } from "./machine.ts";
import { createNetwork, type Network } from "./network.ts";
import { drawPlans, type SpendPlan } from "./plan.ts";
import type { Planted } from "./planted.ts";
import { type Chance, createChance } from "./random.ts";
import { createTrace, type Trace } from "./trace.ts";
import { createVendor, type Vendor } from "./vendor.ts";
import { createVirtualProcess, type VirtualProcess } from "./virtual-process.ts";

export interface SimulationOptions {
  readonly seed: number;
  /** Disturbances that are left out, to find the fewest that show a violation. */
  readonly without?: ReadonlySet<DisturbanceName>;
  readonly planted?: Planted;
}

export interface SimulationResult {
  readonly seed: number;
  readonly hash: string;
  readonly violation: string | undefined;
  readonly trace: readonly string[];
  readonly figures: Figures;
}

export interface Figures {
  readonly messages: number;
  readonly vendorRequests: number;
  readonly grants: number;
  readonly movements: number;
  /** See `Invariants.late`. */
  readonly lateMovements: number;
  readonly simulatedMs: number;
  readonly unsettled: number;
  readonly processes: number;
}

const hourMs = 3_600_000;
const disturbedMs = 72 * hourMs;
// After the last message that may be held on the way, and after a quarantine that may begin then.
const endMs = 16 * 24 * hourMs;
const vaultKey = "billing";

/** One world, from a seed. Equal options give equal results, and nothing of the machine's time passes for it. */
export async function simulate(options: SimulationOptions): Promise<SimulationResult> {
  const chance = createChance(options.seed);
  const loop = createEventLoop();
  return onControlledMachine(loop, chance.fork(), () => runSimulation(options, chance, loop));
}

async function runSimulation(
  { seed, without = new Set(), planted = {} }: SimulationOptions,
  chance: Chance,
  loop: EventLoop,
): Promise<SimulationResult> {
  const stage = build(chance, loop, drawDisturbance(chance.fork(), without), planted);
  schedule(stage, chance.fork());
  let violation: string | undefined;
  try {
    await loop.run(endMs, () => {
      if (stage.failure !== undefined) throw stage.failure;
      stage.invariants.check();
    });
  } catch (error) {
    if (!(error instanceof Violation) && !(error instanceof DefectError)) throw error;
    violation = error.message;
    stage.trace.add(loop.now(), `VIOLATION ${violation}`);
  }
  const { trace, vendor, invariants } = stage;
  return {
    seed,
    violation,
    hash: trace.hash(),
    trace: trace.lines(),
    figures: {
      messages: stage.network.messages(),
      vendorRequests: vendor.requests.length,
      grants: invariants.grants(),
      movements: vendor.movements.length,
      lateMovements: invariants.late(),
      simulatedMs: loop.now(),
      unsettled: stage.unsettled(),
      processes: stage.processes,
    },
  };
}

interface Stage {
  readonly loop: EventLoop;
  readonly chance: Chance;
  readonly disturbance: Disturbance;
  readonly trace: Trace;
  readonly network: Network;
  readonly vendor: Vendor;
  readonly plans: readonly SpendPlan[];
  readonly invariants: Invariants;
  readonly total: bigint;
  /** The control plane is down until this instant. */
  downUntil: number;
  /** What the database's clock is ahead, in milliseconds. */
  ahead: number;
  calm: boolean;
  processes: number;
  failure: Error | undefined;
  restart(): void;
  sweep(): void;
  setCap(limit: bigint): void;
  revoke(): void;
  unsettled(): number;
  start(label: string, work: (tools: Tools) => Promise<void>, crashed: () => void): VirtualProcess;
}

function build(chance: Chance, loop: EventLoop, disturbance: Disturbance, planted: Planted): Stage {
  const trace = createTrace();
  const plans = drawPlans(chance.fork());
  const vendor = createVendor(loop, chance.fork(), () => (stage.calm ? 0 : disturbance.vendorFault));
  const network = createNetwork(loop, chance.fork(), disturbance, trace);
  let invariants: Invariants | undefined;
  let capLimit = 0n;
  const database = createStandIn({
    rules: planted.rules ?? meant,
    clock: () => epochMs + loop.now() + stage.ahead,
    executed: (statement, answer) => {
      const { error, disposition, state, evidence, rule } = answer;
      trace.add(
        loop.now(),
        `  ${statement}: ${[error, disposition, rule, state, evidence].filter((one) => one != null).join(" ")}`,
      );
      guard(() => invariants?.executed(statement, answer));
    },
    alter: planted.alter,
  });
  const guard = (check: () => void): void => {
    try {
      check();
    } catch (error) {
      stage.failure ??= error as Error;
    }
  };
  invariants = createInvariants({ now: () => loop.now(), plans, vendor, database, capLimit: () => capLimit });
  const watched = invariants;
  let plane: ControlPlane = createControlPlane(database, vaultKey);
  const planeLink = { name: "control plane", isDown: () => loop.now() < stage.downUntil } as const;
  const vendorLink = { name: "vendor", isDown: () => false } as const;
  const total = plans.reduce((sum, plan) => sum + (plan.kind === "refund" ? 0n : BigInt(plan.amount) * 10_000n), 0n);

  function toolsOf(process: VirtualProcess, own: Chance): Tools {
    const keyOf = planted.key;
    const httpClient = vendor.httpClient(
      network,
      vendorLink,
      keyOf === undefined ? undefined : (key) => keyOf(key, own),
    ) as unknown as Stripe.HttpClient;
    const plain = new Stripe("sk_test_1", { host: "vendor", telemetry: false, httpClient });
    const transport = createSimulatedTransport(
      network,
      planeLink,
      () => plane,
      (error) => {
        stage.failure ??= error instanceof DefectError ? error : new DefectError(error);
      },
    );
    const holdfast = createHoldfast({
      baseUrl: "http://127.0.0.1",
      vaultKey: "vk_acme_billing_simulated",
      transport: planted.transport === undefined ? transport : planted.transport(transport),
      clock: process.clock,
      timers: process.timers,
      random: process.random,
      onBackgroundError: (error) => trace.add(loop.now(), `${process.name} in the background: ${text(error)}`),
    });
    return {
      holdfast,
      plain,
      stripe: holdfast.stripe(plain, { onDecline: own.happens(0.3) ? "keep" : "cancel" }),
      chance: own,
      sleep: (ms) => new Promise((resolve) => void process.timers.setTimeout(() => resolve(), ms)),
      told(plan, told) {
        const what = told.id === undefined ? text(told.error) : `${told.id} ${told.status}`;
        trace.add(loop.now(), `${process.name} is told of ${plan.customerId} ${plan.purpose} (${plan.kind}): ${what}`);
        guard(() => watched.told(plan, told));
      },
    };
  }

  const stage: Stage = {
    loop,
    chance,
    disturbance,
    trace,
    network,
    vendor,
    plans,
    invariants,
    total,
    downUntil: 0,
    ahead: 0,
    calm: false,
    processes: 0,
    failure: undefined,
    restart: () => {
      plane = createControlPlane(database, vaultKey);
    },
    sweep: () => database.sweep(),
    setCap(limit) {
      const exists = database.model.world.caps.has("all");
      capLimit = limit;
      database.model.apply(exists ? { op: "updateCap", cap: "all", limit, restores: null } : capOf(limit));
      trace.add(loop.now(), `the cap is ${limit} micros`);
    },
    revoke() {
      database.model.apply({ op: "revokeVaultKey", key: vaultKey });
      trace.add(loop.now(), "the vault key is revoked");
    },
    unsettled: () =>
      [...database.model.world.spends.values()].flat().filter(({ state }) => state === "HELD" || state === "IN_DOUBT")
        .length,
    start(label, work, crashed) {
      stage.processes += 1;
      const own = chance.fork();
      const process = createVirtualProcess(loop, `${label}-${stage.processes}`, own, (one) =>
        disturb(stage, one, crashed),
      );
      process.at(loop.now(), () => {
        void work(toolsOf(process, own)).catch((error: unknown) => {
          trace.add(loop.now(), `${process.name} ended: ${text(error)}`);
          if (label !== "reconciler") stage.failure ??= error as Error;
        });
      });
      return process;
    },
  };
  database.model.apply(keyOfWorld());
  return stage;
}

/** Before an event of a process: it may stop here for seconds to days, or for ever. */
function disturb(stage: Stage, process: VirtualProcess, crashed: () => void): void {
  const { chance, disturbance, loop, trace } = stage;
  if (stage.calm) return;
  if (chance.happens(disturbance.crash)) {
    trace.add(loop.now(), `${process.name} crashes`);
    process.crash();
    crashed();
  } else if (chance.happens(disturbance.freeze)) {
    const ms = chance.spread(1_000, 60 * hourMs);
    trace.add(loop.now(), `${process.name} is frozen for ${Math.round(ms / 1_000)} s`);
    process.freezeUntil(loop.now() + ms);
  }
}

/** What happens when: jobs, what comes between them, and in the end quiet. */
function schedule(stage: Stage, chance: Chance): void {
  const { loop, plans } = stage;
  const limit = (): bigint => (stage.total * BigInt(chance.between(60, 150))) / 100n;
  stage.setCap(limit());
  const job = (delay: number, restarts: number, tries: number, some: readonly SpendPlan[]): void => {
    loop.at(loop.now() + delay, () => {
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
      job(startsAt + chance.between(0, 50), 2, chance.between(1, 4), plans);
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
    stage.start(
      "reconciler",
      async ({ holdfast, plain }) => void (await holdfast.reconcile(plain, { includeNotDue: true })),
      () => undefined,
    );
  };
  if (chance.happens(0.5)) loop.at(chance.between(1, disturbedMs), reconcile);
  for (const hours of [100, 130, 180, 300]) loop.at(hours * hourMs, reconcile);
  for (let hours = 1; hours < 80; hours += 3) loop.at(hours * hourMs + chance.between(0, hourMs), () => stage.sweep());
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
    stage.ahead = chance.between(-600_000, 1_200_000);
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

function capOf(limit: bigint) {
  return {
    op: "createCap",
    cap: "all",
    currency: "usd",
    limit,
    maxPerSpend: null,
    window: "LIFETIME",
    zone: "UTC",
    perCustomer: false,
    direction: "SPEND",
    restores: false,
    scope: {},
  } as const;
}

function keyOfWorld() {
  return {
    op: "createVaultKey",
    key: vaultKey,
    vendor: "stripe",
    endpoints: [
      "POST /v1/charges",
      "POST /v1/refunds",
      "POST /v1/payment_intents",
      "POST /v1/payment_intents/:id/capture",
    ],
    periods: [],
    purposes: [],
    customers: [],
    maxPerSpend: null,
    expireTime: null,
  } as const;
}

function text(error: unknown): string {
  return error instanceof Error ? `${error.name} ${error.message.split("\n")[0]?.slice(0, 160)}` : String(error);
}

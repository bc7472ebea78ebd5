import { createHoldfast } from "@holdfast/sdk";
import Stripe from "stripe";
import type { Answer } from "../property/command.ts";
import { rules as meant } from "../property/model-rules.ts";
import { type ControlPlane, createControlPlane, createSimulatedTransport, DefectError } from "./control-plane.ts";
import { createStandIn, type StandIn } from "./database.ts";
import type { Disturbance } from "./disturbance.ts";
import type { EventLoop } from "./event-loop.ts";
import { createInvariants, type Invariants } from "./invariants.ts";
import type { Tools } from "./job.ts";
import { epochMs } from "./machine.ts";
import { createNetwork, type Network } from "./network.ts";
import { drawPlans, type SpendPlan } from "./plan.ts";
import type { Planted } from "./planted.ts";
import type { Chance } from "./random.ts";
import { createTrace, type Trace } from "./trace.ts";
import { createVendor, type Vendor } from "./vendor.ts";
import { createVirtualProcess, type VirtualProcess } from "./virtual-process.ts";

const hourMs = 3_600_000;
const vaultKey = "billing";

/** One world: who is in it, and what can be done to it. */
export interface Stage {
  readonly loop: EventLoop;
  readonly chance: Chance;
  readonly disturbance: Disturbance;
  readonly trace: Trace;
  readonly network: Network;
  readonly vendor: Vendor;
  readonly plans: readonly SpendPlan[];
  readonly invariants: Invariants;
  /** Of all spends, in micros. */
  readonly total: bigint;
  cap: bigint;
  plane: ControlPlane;
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
  start(label: string, work: (tools: Tools) => Promise<void>, crashed: () => void): void;
}

export function buildStage(chance: Chance, loop: EventLoop, disturbance: Disturbance, planted: Planted): Stage {
  const trace = createTrace();
  const plans = drawPlans(chance.fork());
  const vendor = createVendor(loop, chance.fork(), () => (stage.calm ? 0 : disturbance.vendorFault));
  const network = createNetwork(loop, chance.fork(), disturbance, trace);
  const guard = (check: () => void): void => {
    try {
      check();
    } catch (error) {
      stage.failure ??= error as Error;
    }
  };
  const database = createStandIn({
    rules: planted.rules ?? meant,
    clock: () => epochMs + loop.now() + stage.ahead,
    executed: (statement, answer) => {
      trace.add(loop.now(), `  ${statement}: ${summary(answer)}`);
      guard(() => stage.invariants.executed(statement, answer));
    },
    alter: planted.alter,
  });
  const tools = createToolbox({ chance: chance.fork(), loop, network, vendor, trace, planted, guard }, () => stage);
  const stage: Stage = {
    loop,
    chance,
    disturbance,
    trace,
    network,
    vendor,
    plans,
    invariants: createInvariants({ now: () => loop.now(), plans, vendor, database, capLimit: () => stage.cap }),
    total: plans.reduce((sum, plan) => sum + (plan.kind === "refund" ? 0n : BigInt(plan.amount) * 10_000n), 0n),
    cap: 0n,
    plane: createControlPlane(database, vaultKey),
    downUntil: 0,
    ahead: 0,
    calm: false,
    processes: 0,
    failure: undefined,
    ...operations(database, trace, loop, () => stage),
    start(label, work, crashed) {
      stage.processes += 1;
      const own = chance.fork();
      const name = `${label}-${stage.processes}`;
      const process = createVirtualProcess(loop, name, own, (one) => disturb(stage, one, crashed));
      process.at(loop.now(), () => {
        void work(tools(process, own)).catch((error: unknown) => {
          trace.add(loop.now(), `${name} ended: ${text(error)}`);
          if (label !== "reconciler") stage.failure ??= error as Error;
        });
      });
    },
  };
  database.model.apply(newVaultKey);
  return stage;
}

/** What operators and the server's own timers do. */
function operations(
  database: StandIn,
  trace: Trace,
  loop: EventLoop,
  stage: () => Stage,
): Pick<Stage, "restart" | "sweep" | "setCap" | "revoke" | "unsettled"> {
  const { model } = database;
  return {
    restart() {
      stage().plane = createControlPlane(database, vaultKey);
    },
    sweep: () => database.sweep(),
    setCap(limit) {
      const exists = model.world.caps.has("all");
      stage().cap = limit;
      model.apply(exists ? { op: "updateCap", cap: "all", limit, restores: null, enforcement: null } : newCap(limit));
      trace.add(loop.now(), `the cap is ${limit} micros`);
    },
    revoke() {
      model.apply({ op: "revokeVaultKey", key: vaultKey });
      trace.add(loop.now(), "the vault key is revoked");
    },
    unsettled: () =>
      [...model.world.spends.values()].flat().filter(({ state }) => state === "HELD" || state === "IN_DOUBT").length,
  };
}

interface Surroundings {
  readonly chance: Chance;
  readonly loop: EventLoop;
  readonly network: Network;
  readonly vendor: Vendor;
  readonly trace: Trace;
  readonly planted: Planted;
  readonly guard: (check: () => void) => void;
}

/** Gives each process its clients. */
function createToolbox(
  { chance, loop, network, vendor, trace, planted, guard }: Surroundings,
  stage: () => Stage,
): (process: VirtualProcess, own: Chance) => Tools {
  const keyOf = planted.key;
  const httpClient = vendor.httpClient(
    network,
    { name: "vendor", isDown: () => false },
    keyOf === undefined ? undefined : (key) => keyOf(key, chance),
  ) as unknown as Stripe.HttpClient;
  // One for all processes: it keeps nothing, and every request is that of the process that makes it.
  const plain = new Stripe("sk_test_1", { host: "vendor", telemetry: false, httpClient });
  const sent = createSimulatedTransport(
    network,
    { name: "control plane", isDown: () => loop.now() < stage().downUntil },
    () => stage().plane,
    (error) => {
      stage().failure ??= error instanceof DefectError ? error : new DefectError(error);
    },
  );
  const transport = planted.transport === undefined ? sent : planted.transport(sent);
  return (process, own) => {
    const holdfast = createHoldfast({
      vaultKey: "vk_acme_billing_simulated",
      transport,
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
      note: (what) => trace.add(loop.now(), `${process.name} ${what}`),
      told(plan, told) {
        const what = told.id === undefined ? text(told.error) : `${told.id} ${told.status}`;
        trace.add(loop.now(), `${process.name} is told of ${plan.customerId} ${plan.purpose} (${plan.kind}): ${what}`);
        guard(() => stage().invariants.told(plan, told));
      },
    };
  };
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

function newCap(limit: bigint) {
  return {
    op: "createCap",
    cap: "all",
    currency: "usd",
    limit,
    maxPerSpend: null,
    enforcement: "ENFORCE",
    window: "LIFETIME",
    calendar: { zone: "UTC", startHour: 0, weekStart: 1, anchorDay: 1, anchorMonth: 1 },
    fixed: null,
    attachedOnly: false,
    perCustomer: false,
    direction: "SPEND",
    restores: false,
    scope: {},
  } as const;
}

const newVaultKey = {
  op: "createVaultKey",
  key: vaultKey,
  vendor: "stripe",
  endpoints: [
    "POST /v1/charges",
    "POST /v1/refunds",
    "POST /v1/payment_intents",
    "POST /v1/payment_intents/:id/capture",
    "POST /v1/payment_intents/:id/increment_authorization",
  ],
  periods: [],
  purposes: [],
  customers: [],
  maxPerSpend: null,
  expireTime: null,
  attachedCaps: [],
} as const;

function summary({ error, disposition, rule, state, evidence }: Answer): string {
  return [error, disposition, rule, state, evidence].filter((one) => one !== null && one !== undefined).join(" ");
}

function text(error: unknown): string {
  return error instanceof Error ? `${error.name} ${error.message.split("\n")[0]?.slice(0, 160)}` : String(error);
}

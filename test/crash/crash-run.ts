import { stableKey } from "@holdfast/sdk";
import type { PoolClient } from "pg";
import { setTimeout as delay } from "node:timers/promises";
import { join } from "node:path";
import type { Movement } from "../support/stripe-simulator/movements.ts";
import type { Fault } from "../support/stripe-simulator/faults.ts";
import { type BillingCall, type BillingOutcome, billingPeriod, purpose } from "./billing-call.ts";
import { createBillingClient } from "./billing-client.ts";
import { type CrashPoint, crashPoints } from "./crash-point.ts";
import { type LineProcess, startLineProcess } from "./line-process.ts";
import type { Stage } from "./stage.ts";

export const amount = 490;

/** A billing call that ran into a crash, and what is known about it at the end. */
export interface CrashedCall {
  readonly point: CrashPoint;
  /** What the application saw; undefined if it was killed. */
  readonly first: BillingOutcome | undefined;
  readonly defects: readonly unknown[];
  readonly again: BillingOutcome;
  readonly charges: readonly Movement[];
  /** The state of its last generation. */
  readonly state: string;
}

export interface CrashRun {
  readonly calls: readonly CrashedCall[];
  /** What the cap counted after the crash, before anything was run again. */
  readonly counted: { readonly committed: string; readonly held: string };
  readonly countedAtEnd: { readonly committed: string; readonly held: string };
}

export interface CrashPlan {
  readonly name: string;
  readonly victim: "server" | "postgres" | "billing process";
  /** How much later, on the clocks of the database and the vendor, everything is run again. */
  readonly laterMs: number;
}

interface Running {
  readonly point: CrashPoint;
  readonly call: BillingCall;
  readonly process: LineProcess;
  readonly fault: Fault | undefined;
}

/** Brings one call to each point, kills the victim, starts it again, and makes every call once more. */
export async function runCrash(stage: Stage, plan: CrashPlan): Promise<CrashRun> {
  const running = await Promise.all(crashPoints.map((point) => prepare(stage, plan, point)));
  const locker = await stage.pool.connect();
  locker.on("error", () => {});
  try {
    for (const { process, call } of running) process.tell({ call });
    await Promise.all(running.map(reached));
    await holdInDatabase(stage, locker, running);
    await strike(stage, plan, running, locker);
    const counted = await stage.policy.usage();
    await stage.advance(plan.laterMs);
    const again = await Promise.all(running.map(({ call }) => repeat(call)));
    // What was under way for all that time arrives only now.
    for (const { fault } of running) fault?.release();
    await settled(stage);
    const calls = await Promise.all(running.map((one, index) => look(stage, one, again[index])));
    return { calls, counted, countedAtEnd: await stage.policy.usage() };
  } finally {
    await Promise.all(running.map(({ process }) => process.kill()));
    stage.simulator.clearFaults();
  }
}

async function prepare(stage: Stage, plan: CrashPlan, point: CrashPoint): Promise<Running> {
  const customerId = `${plan.name} ${point.kind} ${point.name}`.replaceAll(" ", "-");
  const key = stableKey(customerId, billingPeriod, purpose);
  const fault =
    point.heldBy === "vendor"
      ? stage.simulator.fault({
          mode: "hold_in_transit",
          match: { key: point.kind === "two_step" ? `${key}-confirm-1` : key },
        })
      : undefined;
  const process = startLineProcess(join(import.meta.dirname, "billing-process.ts"));
  await process.said((line) => line["ready"] === true);
  const call: BillingCall = {
    id: point.name,
    kind: point.kind,
    baseUrl: stage.url,
    vaultKey: stage.policy.vaultKey,
    stripePort: stage.simulator.port,
    customerId,
    amount,
    timeoutMs: 120_000,
    vendorDeadlineMs: 60_000,
    holdMs: 300_000,
    ...(point.pauseAt === undefined ? {} : { pauseAt: point.pauseAt }),
  };
  return { point, call, process, fault };
}

async function reached({ point, process, fault }: Running): Promise<unknown> {
  return fault === undefined ? await process.said((line) => line["at"] === point.pauseAt) : await fault.arrivals();
}

/** Lets the calls go on into a lock, so that their requests are in the middle of the database. */
async function holdInDatabase(stage: Stage, locker: PoolClient, running: readonly Running[]): Promise<void> {
  const held = running.filter(({ point }) => point.heldBy === "authorization" || point.heldBy === "commit");
  await locker.query("begin");
  await locker.query("select from holdfast.workspaces for no key update");
  await locker.query("select from holdfast.authorizations where customer_id = any ($1) for update", [
    held.map(({ call }) => call.customerId),
  ]);
  for (const { process, call } of held) process.tell({ go: call.id });
  for (const what of ["authorize_batch", "commit_batch"]) await waitsForLock(stage, what);
}

async function waitsForLock(stage: Stage, what: string): Promise<void> {
  for (;;) {
    const { rowCount } = await stage.pool.query(
      "select from pg_stat_activity where wait_event_type = 'Lock' and query like '/* ' || $1 || ' */%'",
      [what],
    );
    if (rowCount !== 0) return;
    await delay(20);
  }
}

async function strike(stage: Stage, plan: CrashPlan, running: readonly Running[], locker: PoolClient): Promise<void> {
  if (plan.victim === "billing process") {
    await Promise.all(running.map(({ process }) => process.kill()));
    await locker.query("rollback");
    locker.release();
    return;
  }
  if (plan.victim === "server") await stage.killServer();
  else stage.killPostgres();
  for (const { process, call, fault } of running) {
    process.tell({ go: call.id });
    fault?.release();
  }
  // The lock goes with its connection.
  locker.release(true);
  if (plan.victim === "server") await stage.startServer();
  await stage.answers();
  await Promise.all(running.map(({ process }) => process.said((line) => line["closed"] === true)));
}

async function repeat(call: BillingCall): Promise<BillingOutcome> {
  const { holdfast, charge } = createBillingClient(call);
  const outcome = await charge();
  await holdfast.close();
  return outcome;
}

/** Every request that the vendor has received is answered. */
async function settled({ simulator }: Stage): Promise<void> {
  const open = () => simulator.requests().some(({ status, fault }) => status === null && fault === "hold_in_transit");
  while (open()) await delay(20);
}

async function look(stage: Stage, { point, call, process }: Running, again?: BillingOutcome): Promise<CrashedCall> {
  if (again === undefined) throw new Error("not run again");
  const { rows } = await stage.pool.query<{ state: string }>(
    "select state from holdfast.authorizations where customer_id = $1 order by generation desc limit 1",
    [call.customerId],
  );
  return {
    point,
    first: process.lines.find((line) => "outcome" in line)?.["outcome"] as BillingOutcome | undefined,
    defects: process.lines.filter((line) => "defect" in line),
    again,
    charges: stage.simulator.movements().filter(({ customer }) => customer === call.customerId),
    state: rows[0]?.state ?? "",
  };
}

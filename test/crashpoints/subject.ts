import { stableKey } from "@holdfast/sdk";
import type { Timers } from "../../sdk/runtime.ts";
import { type BillingCall, billingPeriod, type BillingOutcome, purpose } from "../crash/billing-call.ts";
import { type BillingClient, createBillingClient } from "../crash/billing-client.ts";
import type { Fault } from "../support/stripe-simulator/faults.ts";
import type { Cell } from "./cell.ts";
import { amount, type CrashWorld, holdMs, minute } from "./world.ts";

/** A cell with a spend of its own. */
export interface Subject {
  readonly cell: Cell;
  readonly call: BillingCall;
  readonly faults: Fault[];
  /** What went otherwise than it must. */
  readonly violations: string[];
  /** What was not as the cell says when it was struck, so that nothing is shown about the cell. */
  readonly missed: string[];
  /** Every answer that a caller got, the last one last. */
  readonly outcomes: BillingOutcome[];
}

export interface Row {
  readonly generation: number;
  readonly state: string;
  readonly vendor_reference: string | null;
  readonly vendor_state: string;
  readonly settlement: string;
  readonly committed_micros: string | null;
  readonly hold_over: boolean;
  readonly name: string;
}

let subjects = 0;

/** `baseUrl` is that of the server that is struck; everybody else asks another one. */
export async function createSubject(world: CrashWorld, cell: Cell, baseUrl = world.stage.url): Promise<Subject> {
  subjects += 1;
  const { flow, step, edge, state, server } = cell;
  const customerId = `cell-${subjects}`;
  const call: BillingCall = {
    id: customerId,
    kind: flow.kind,
    baseUrl,
    vaultKey: hasOwnKey(cell) ? await world.newVaultKey() : world.vaultKey,
    stripePort: world.stage.simulator.port,
    customerId,
    amount,
    timeoutMs: 2 * minute,
    vendorDeadlineMs: flow.trouble === undefined ? minute : 300,
    holdMs,
    clockFile: world.clockFile,
    pauseAt: `${server === undefined ? edge : "before"} ${step.name}`,
    pauseNth: step.nth ?? 1,
    ...(flow.work === undefined ? {} : { work: flow.work }),
    ...(flow.card === undefined ? {} : { card: flow.card }),
    ...(state === "own generation 2" ? { retryAfterGeneration: 1 } : {}),
  };
  return { cell, call, faults: [], violations: [], missed: [], outcomes: [] };
}

/** A reconciler looks at everything of its vault key, and must not settle what other cells wait for. */
export function hasOwnKey({ flow, route }: Cell): boolean {
  if (flow.work === "reconcile" || "impossible" in route) return flow.work === "reconcile";
  return [...route.acts, ...route.afterwards].includes("reconcile");
}

/** The vendor's key of a step of a generation. */
export function vendorKey({ call }: Subject, at: "create" | "confirm", generation = 1): string {
  const key = stableKey(call.customerId, billingPeriod, purpose, generation);
  return at === "create" ? key : `${key}-confirm-1`;
}

export async function rowsOf(world: CrashWorld, { call }: Subject): Promise<readonly Row[]> {
  const { rows } = await world.stage.pool.query<Row>(
    `select generation, state, vendor_reference, vendor_state, settlement, committed_micros,
       hold_expire_time <= holdfast.clock() as hold_over, spend_key || '-' || generation as name
     from holdfast.authorizations where customer_id = $1 order by generation`,
    [call.customerId],
  );
  return rows;
}

// Nobody waits for an attempt that is never heard of again, and it does nothing by itself.
const noTimers: Timers = { setTimeout: () => undefined, clearTimeout: () => undefined };

/** Another attempt at the same spend, from somewhere else: to its end, or until it is never heard of again. */
export async function another(
  world: CrashWorld,
  subject: Subject,
  options: Partial<BillingCall> & { readonly until?: "granted" | "bound" } = {},
): Promise<BillingOutcome | undefined> {
  const { until, ...rest } = options;
  const { pauseAt: _at, clockFile: _file, work: _work, ...call } = subject.call;
  const work =
    call.kind === "two_step" && subject.cell.flow.work === "raise_and_capture" ? "raise_and_capture" : "charge";
  const stopped = Promise.withResolvers<undefined>();
  const stopAt = until === "bound" ? "after BindVendorReference" : "after AuthorizeSpend";
  const client = createBillingClient(
    // In its own time: only the call that is struck is in a hurry.
    { ...call, baseUrl: world.stage.url, work, vendorDeadlineMs: minute, ...rest },
    async (point) => {
      if (until === undefined || point !== stopAt) return;
      stopped.resolve(undefined);
      await new Promise(() => undefined);
    },
    until === undefined ? undefined : { clock: { now: () => performance.now() }, timers: noTimers },
    { sessionManager: world.sessions },
  );
  const outcome = await Promise.race([client.charge(), stopped.promise]);
  if (outcome !== undefined) await client.holdfast.close();
  return outcome;
}

/** A client for what is not a charge. */
export function desk(world: CrashWorld, { call }: Subject): BillingClient {
  const { pauseAt: _at, clockFile: _file, ...rest } = call;
  return createBillingClient({ ...rest, baseUrl: world.stage.url }, undefined, undefined, {
    sessionManager: world.sessions,
  });
}

export function dropFaults({ faults }: Subject): void {
  for (const fault of faults.splice(0)) fault.remove();
}

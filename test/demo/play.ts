import { AuthorizationState } from "@holdfast/api/holdfast/v1/spend_pb";
import { CapWindow } from "@holdfast/api/holdfast/v1/cap_pb";
import type { BillingJob, BillingReport, Ending, GuardOptions } from "./billing-job.ts";
import { type RunEnd, runBilling } from "./billing-runs.ts";
import { type Customer, sumOfCents, toDollars } from "./customers.ts";
import type { DropPlan, Scenario } from "./scenarios.ts";
import type { Drops, Vendor, VendorCharge } from "./vendor.ts";
import type { World } from "./world.ts";

export const billingPeriod = "2026-11";
export const holdMs = 5_000;
const timeoutMs = 20_000;
/** On the second day nothing is cut or killed, and a slow machine is no reason to give up on Stripe. */
const patience = { holdMs: 600_000, vendorDeadlineMs: 60_000, timeoutMs: 120_000 };
const minuteMs = 60_000;
export const laterMs = 25 * 60 * minuteMs;

export interface Play {
  readonly scenario: Scenario;
  readonly customers: readonly Customer[];
  readonly plantRandomKeys: boolean;
}

/** What the guarded runs of a scenario came to, from the vendor's own charges and the server's own books. */
export interface GuardedResult {
  readonly charges: readonly VendorCharge[];
  readonly capCents: number;
  /** Committed, held and in doubt, as the server counts them. */
  readonly usedCents: number;
  /** Customers whose spend is open at the end: held, or in doubt. */
  readonly open: ReadonlySet<string>;
  /** How the last run ended for each customer, seen from every process of it. */
  readonly endings: readonly BillingReport["endings"][];
  readonly retries: number;
  readonly drops: number;
  readonly kills: number;
  readonly problems: readonly string[];
}

/** The failure alone, without a kill and without a second day: the plain client would charge everybody again. */
export async function playUnguarded(world: World, play: Play): Promise<readonly VendorCharge[]> {
  const { scenario } = play;
  const vendor = world[scenario.vendor];
  return await newCharges(vendor, async () => {
    await vendor.dropConnections({ ...dropsOf(play, scenario.drops.unguarded), isTwoStep: false });
    await runBilling(world.processes, jobsOf(play, vendor));
    await vendor.endDrops();
  });
}

/**
 * Day one: connections are cut, a process is killed between charge and commit and started again, and then all of
 * them are killed. 25 hours later everything is run once more, from the first customer on.
 */
export async function playGuarded(world: World, play: Play): Promise<GuardedResult> {
  const { scenario, customers } = play;
  const vendor = world[scenario.vendor];
  const capCents = Math.floor((sumOfCents(customers) * scenario.capPercent) / 100);
  const guard = await openVaultKey(world, scenario, capCents);
  const ends: RunEnd[] = [];
  let drops = 0;
  const charges = await newCharges(vendor, async () => {
    await vendor.dropConnections({
      ...dropsOf(play, scenario.drops.guarded),
      isTwoStep: scenario.call === "payment_intent",
    });
    ends.push(...(await dayOne(world, jobsOf(play, vendor, guard))));
    drops = await vendor.endDrops();
    await world.advance(laterMs);
    ends.push(...(await runBilling(world.processes, jobsOf(play, vendor, { ...guard, ...patience }))));
  });
  const last = ends.slice(-scenario.processes).map(({ report }) => report);
  return {
    charges,
    capCents,
    ...(await booksOf(world, scenario)),
    endings: last.map(({ endings }) => endings),
    retries: ends.reduce((sum, { report }) => sum + report.retries, 0),
    drops,
    kills: ends.filter(({ kind }) => kind === "killed").length,
    problems: last.flatMap(({ problems }) => problems),
  };
}

async function dayOne(world: World, jobs: readonly BillingJob[]): Promise<readonly RunEnd[]> {
  const [first, ...others] = jobs;
  if (first === undefined) return [];
  const part = (job: BillingJob, percent: number): BillingJob => ({
    ...job,
    stopAfterCharges: Math.max(1, Math.floor((job.customers.length * percent) / 100)),
  });
  if (others.length === 0) {
    const killed = await runBilling(world.processes, [part(first, 25)]);
    await world.advance(minuteMs);
    return [...killed, ...(await runBilling(world.processes, [part(first, 25)]))];
  }
  // The others run on while the killed one is started again; in the end all have been killed.
  const restarted = async (): Promise<readonly RunEnd[]> => [
    ...(await runBilling(world.processes, [part(first, 5)])),
    ...(await runBilling(world.processes, [part(first, 10)])),
  ];
  const all = await Promise.all([
    restarted(),
    runBilling(
      world.processes,
      others.map((job) => part(job, 20)),
    ),
  ]);
  return all.flat();
}

function jobsOf({ scenario, customers, plantRandomKeys }: Play, vendor: Vendor, guard?: GuardOptions): BillingJob[] {
  const job: BillingJob = {
    retrying: scenario.retrying,
    call: scenario.call,
    stripePort: vendor.port,
    billingPeriod,
    purpose: scenario.id,
    customers,
    concurrency: scenario.concurrency,
    plantRandomKeys: plantRandomKeys && guard !== undefined,
    ...(guard === undefined ? {} : { guard }),
  };
  return Array.from({ length: scenario.processes }, () => job);
}

function dropsOf({ scenario, customers }: Play, { everyPercent, times }: DropPlan): Omit<Drops, "isTwoStep"> {
  return { call: scenario.call, everyNth: Math.max(2, Math.floor((customers.length * everyPercent) / 100)), times };
}

/** The charges that `work` brought about. */
async function newCharges(vendor: Vendor, work: () => Promise<void>): Promise<readonly VendorCharge[]> {
  const before = new Set((await vendor.charges()).map(({ id }) => id));
  await work();
  return (await vendor.charges()).filter(({ id }) => !before.has(id));
}

function idOf(scenario: Scenario): string {
  return scenario.id.replaceAll("-", "");
}

/** A key that may charge for this period and purpose only, and a cap on it for the period. */
async function openVaultKey(world: World, scenario: Scenario, capCents: number): Promise<GuardOptions> {
  const vaultKey = `vaultKeys/${idOf(scenario)}`;
  const { token } = await world.admin.createVaultKey({
    vaultKeyId: idOf(scenario),
    vaultKey: {
      vendor: "stripe",
      allowedEndpoints: [scenario.call === "charge" ? "POST /v1/charges" : "POST /v1/payment_intents"],
      billingPeriods: [billingPeriod],
      purposes: [scenario.id],
    },
  });
  await world.admin.createCap({
    capId: scenario.id,
    cap: {
      limit: { currency: "usd", amount: toDollars(capCents) },
      window: CapWindow.BILLING_PERIOD,
      scope: { vaultKey },
    },
  });
  return {
    baseUrl: world.serverUrl,
    vaultKey: token,
    holdMs,
    vendorDeadlineMs: scenario.vendorDeadlineMs,
    timeoutMs,
  };
}

async function booksOf(world: World, scenario: Scenario): Promise<Pick<GuardedResult, "open" | "usedCents">> {
  const { usage } = await world.admin.getCap({ name: `caps/${scenario.id}`, window: billingPeriod });
  const { authorizations, nextPageToken } = await world.admin.listAuthorizations({
    pageSize: 200,
    vaultKey: `vaultKeys/${idOf(scenario)}`,
    states: [AuthorizationState.HELD, AuthorizationState.IN_DOUBT],
  });
  if (nextPageToken !== "") throw new Error("More spends are open than the demo has customers.");
  return {
    open: new Set(authorizations.map(({ spend }) => spend?.customerId ?? "")),
    usedCents: toCents(usage?.committed?.amount) + toCents(usage?.held?.amount),
  };
}

function toCents(amount = "0"): number {
  const [whole = "0", fraction = ""] = amount.split(".");
  return Number(whole + fraction.padEnd(2, "0").slice(0, 2));
}

/** True if every process of the last run was told so. */
export function endedAs(result: GuardedResult, customer: Customer, ending: Ending): boolean {
  return result.endings.every((endings) => endings[customer.id] === ending);
}

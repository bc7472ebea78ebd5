import type { Call, Retrying } from "./billing-job.ts";

/** One way to charge twice, and how the guarded run is made harder than the unguarded one. */
export interface Scenario {
  /** Also the purpose of its spends, so that no scenario meets the spends of another. */
  readonly id: string;
  readonly title: string;
  readonly retrying: Retrying;
  readonly call: Call;
  readonly vendor: "simulator" | "mock";
  /** How many processes the timer fires. */
  readonly processes: number;
  /** The cap in percent of what all customers owe together. Below 100 the last ones must be denied. */
  readonly capPercent: number;
  /** Customers that one process bills at a time. */
  readonly concurrency: number;
  /** How long the SDK tries to get the vendor's answer: below 250 it never asks again by itself. */
  readonly vendorDeadlineMs: number;
  /** How often connections are cut after a charge was accepted. */
  readonly drops: { readonly unguarded: DropPlan; readonly guarded: DropPlan };
}

/** One connection after each such part of the customers, in percent, that many times. */
export interface DropPlan {
  readonly everyPercent: number;
  readonly times: number;
}

const noDrops = { everyPercent: 100, times: 0 };

const rxjs = {
  retrying: "rxjs",
  processes: 1,
  concurrency: 4,
  vendorDeadlineMs: 240,
  drops: { unguarded: { everyPercent: 8, times: 10 }, guarded: { everyPercent: 6, times: 8 } },
} as const;

const pRetry = {
  retrying: "p-retry",
  processes: 1,
  concurrency: 4,
  vendorDeadlineMs: 240,
  drops: { unguarded: { everyPercent: 30, times: 2 }, guarded: { everyPercent: 12, times: 2 } },
} as const;

const threeProcesses = {
  retrying: "none",
  processes: 3,
  concurrency: 8,
  vendorDeadlineMs: 1_500,
  drops: { unguarded: noDrops, guarded: { everyPercent: 5, times: 5 } },
} as const;

const twoSteps = { call: "payment_intent", vendor: "simulator" } as const;
const oneCall = { call: "charge", vendor: "simulator" } as const;

export const scenarios: readonly Scenario[] = [
  { id: "rxjs-two-steps", title: "RxJS retry, two steps", ...rxjs, ...twoSteps, capPercent: 110 },
  { id: "rxjs-one-call", title: "RxJS retry, one call", ...rxjs, ...oneCall, capPercent: 92 },
  {
    id: "rxjs-one-call-mock",
    title: "RxJS retry, one call, second fake",
    ...rxjs,
    ...oneCall,
    vendor: "mock",
    capPercent: 110,
  },
  { id: "p-retry-two-steps", title: "p-retry, two steps", ...pRetry, ...twoSteps, capPercent: 92 },
  { id: "p-retry-one-call", title: "p-retry, one call", ...pRetry, ...oneCall, capPercent: 110 },
  { id: "processes-two-steps", title: "three processes, two steps", ...threeProcesses, ...twoSteps, capPercent: 92 },
  { id: "processes-one-call", title: "three processes, one call", ...threeProcesses, ...oneCall, capPercent: 110 },
];

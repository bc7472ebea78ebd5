import { parseArgs } from "node:util";
import { type DisturbanceName, disturbanceNames } from "./disturbance.ts";
import { plantedBugs } from "./planted.ts";
import { simulate, type SimulationResult } from "./simulation.ts";

const what = `Holdfast in one process and in virtual time. Real: the SDK (createHoldfast, guard, reconcile), stripe-node, the
server's validation, handlers, group commit, store and errors, the Stripe simulator's routes and rules. Stand-in: for
Postgres and its SQL functions the reference model of test/property. What keeps the two equal is that the random
histories of test/property apply every command to this same model and, over RPCs, to the real SQL, and compare every
answer and every row. Of the database only what lists and reads rows is written for the simulation alone
(database.ts). Left out: locks, isolation and fsync, which test/store, test/crash and test/crashpoints try; sockets,
tokens, billing leases, the freeze of a process between two awaits that wait for nothing outside.`;

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "200" },
    seed: { type: "string", default: "1" },
    planted: { type: "string" },
    trace: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

/** The ways in which charges double, and what runs from timers, by what the trace says then. */
const schedules: readonly (readonly [string, RegExp])[] = [
  ["a retry runs the making of the key again", / runs the closure of .* again/],
  ["a billing run is run again", /the billing run is run again$/],
  ["a timer fires on every replica", /the timer fires on replica/],
  ["a composed request is released a day later", / POST .*arrives at the vendor, composed \d+ h ago$/],
  ["holdfast.reconcile", /a reconciler runs$/],
  ["the sweeper", /the sweeper runs$/],
];

/** What a run must have met to say anything, by what its trace says then. */
const events: readonly (readonly [string, RegExp])[] = [
  ["lost", /: (answer )?lost$/],
  ["twice on the way", /twice on the way/],
  ["server down", / is down$/],
  ["frozen", / is frozen for /],
  ["crashed", / crashes$/],
  ["committed", / commit_batch: COMMITTED/],
  ["voided", / void_spend: VOIDED/],
  ["reported unknown", / report_unknown: IN_DOUBT/],
  ["reconciled", / report_reconciliation: /],
  ["held higher", / increase_hold: GRANTED/],
  ["denied", / DENIED /],
  ["in progress", / IN_PROGRESS /],
  ["in doubt", /authorize_batch: IN_DOUBT/],
  ["already committed", /ALREADY_COMMITTED/],
  ["already failed", /ALREADY_FAILED/],
  ["checked by the bank", /the customer (passes|fails)/],
  ["revoked", /is revoked$/],
  ["cap changed", /the cap is /],
  ["clock jumped", /database clock is /],
];

/** Of so many seeds, each kind of thing has to happen in some. */
const completeSeedsMin = 500;

async function main(): Promise<number> {
  const seeds = Number(values.seeds);
  const first = Number(values.seed);
  const planted = values.planted === undefined ? undefined : plantedBugs[values.planted as keyof typeof plantedBugs];
  if (!Number.isInteger(seeds) || !Number.isInteger(first) || (values.planted !== undefined && planted === undefined)) {
    console.error("simulate: --seeds and --seed are whole numbers, --planted one of the names in --help");
    return 2;
  }
  console.log(what);
  const sums = {
    messages: 0,
    vendorRequests: 0,
    grants: 0,
    movements: 0,
    lateMovements: 0,
    simulatedMs: 0,
    unsettled: 0,
    processes: 0,
  };
  const began = performance.now();
  const reached = new Map<string, number>();
  let violations = 0;
  let firstHash = "";
  for (let seed = first; seed < first + seeds; seed += 1) {
    const result = await simulate({ seed, ...(planted === undefined ? {} : { planted }) });
    for (const name of Object.keys(sums) as (keyof typeof sums)[]) sums[name] += result.figures[name];
    for (const [name, sign] of [...schedules, ...events]) {
      const count = result.trace.filter((line) => sign.test(line)).length;
      reached.set(name, (reached.get(name) ?? 0) + count);
    }
    if (seed === first) firstHash = result.hash;
    console.log(`seed ${seed} trace ${result.hash}`);
    if (values.trace) console.log(result.trace.join("\n"));
    if (result.violation === undefined) continue;
    violations += 1;
    await explain(result, planted);
  }
  const seconds = (performance.now() - began) / 1_000;
  console.log(
    `${(sums.simulatedMs / 31_557_600_000).toFixed(1)} simulated years in ${seconds.toFixed(1)} s: ${sums.processes} processes, ` +
      `${sums.messages} requests, ${sums.vendorRequests} of them arrived at the vendor, ${sums.grants} grants, ` +
      `${sums.movements} movements, ${sums.unsettled} spends unsettled at the end; ` +
      `${sums.lateMovements} movements by one-call requests that had been a day on the way (one sent a day late would be a violation)`,
  );
  const countsOf = (some: typeof events) => some.map(([name]) => `${name} ${reached.get(name) ?? 0}`).join(", ");
  console.log(`schedules: ${countsOf(schedules)}`);
  console.log(`met: ${countsOf(events)}`);
  const missing = [...schedules, ...events].filter(([name]) => (reached.get(name) ?? 0) === 0).map(([name]) => name);
  const isIncomplete = seeds >= completeSeedsMin && missing.length > 0;
  if (isIncomplete) console.log(`INCOMPLETE: in ${seeds} seeds this never happened: ${missing.join(", ")}`);
  const again = await simulate({ seed: first, ...(planted === undefined ? {} : { planted }) });
  const isRepeatable = again.hash === firstHash;
  console.log(`seed ${first} again: trace ${again.hash}, ${isRepeatable ? "the same" : `NOT ${firstHash}`}`);
  console.log(`simulate: ${seeds} seeds, ${violations} violations`);
  return violations === 0 && !isIncomplete && isRepeatable ? 0 : 1;
}

/** Leaves out disturbance after disturbance for as long as there is a violation, and prints the shortest trace found. */
async function explain(found: SimulationResult, planted: Parameters<typeof simulate>[0]["planted"]): Promise<void> {
  let shortest = found;
  const without = new Set<DisturbanceName>();
  for (const name of disturbanceNames) {
    without.add(name);
    const tried = await simulate({ seed: found.seed, without, ...(planted === undefined ? {} : { planted }) });
    if (tried.violation === undefined) without.delete(name);
    else if (tried.trace.length <= shortest.trace.length) shortest = tried;
  }
  const left = disturbanceNames.filter((name) => !without.has(name));
  console.log(`VIOLATION with seed ${found.seed}: ${found.violation}`);
  console.log(`the shortest of its traces, with no other disturbances than ${left.join(", ") || "none"}:`);
  console.log(shortest.trace.map((line) => `  ${line}`).join("\n"));
}

if (values.help) {
  console.log(`${what}\n
  --seeds N       how many worlds; 200 by default
  --seed S        the first of them; 1 by default
  --planted NAME  with a defect: ${Object.keys(plantedBugs).join(", ")}
  --trace         print every trace`);
} else {
  process.exitCode = await main();
}

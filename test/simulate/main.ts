import { parseArgs } from "node:util";
import { type DisturbanceName, disturbanceNames } from "./disturbance.ts";
import { plantedBugs } from "./planted.ts";
import { simulate, type SimulationResult } from "./simulation.ts";

const what = `Holdfast in one process and in virtual time. Real: the SDK (createHoldfast, guard, reconcile), stripe-node, the
server's validation, handlers, group commit, store and errors, the Stripe simulator's routes and rules. Stand-in: for
Postgres and its SQL functions the reference model of test/property, which the differential histories keep equal to
them. Left out: sockets, tokens, billing leases, the freeze of a process between two awaits that wait for nothing outside.`;

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "200" },
    seed: { type: "string", default: "1" },
    planted: { type: "string" },
    trace: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

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
  for (let seed = first; seed < first + seeds; seed += 1) {
    const result = await simulate({ seed, ...(planted === undefined ? {} : { planted }) });
    for (const name of Object.keys(sums) as (keyof typeof sums)[]) sums[name] += result.figures[name];
    for (const [name, sign] of events) {
      const count = result.trace.filter((line) => sign.test(line)).length;
      reached.set(name, (reached.get(name) ?? 0) + count);
    }
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
  console.log([...reached].map(([name, count]) => `${name} ${count}`).join(", "));
  console.log(`simulate: ${seeds} seeds, ${violations} violations`);
  return violations === 0 ? 0 : 1;
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

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

if (values.help) {
  console.log(`${what}\n
  --seeds N       how many worlds; 200 by default
  --seed S        the first of them; 1 by default
  --planted NAME  with a defect: ${Object.keys(plantedBugs).join(", ")}
  --trace         print every trace`);
} else {
  process.exitCode = await main();
}

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
  let violations = 0;
  for (let seed = first; seed < first + seeds; seed += 1) {
    const result = await simulate({ seed, ...(planted === undefined ? {} : { planted }) });
    for (const name of Object.keys(sums) as (keyof typeof sums)[]) sums[name] += result.figures[name];
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
      `${sums.lateMovements} movements by one-call requests that were a day on the way, 0 by requests sent a day late`,
  );
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

import { parseArgs } from "node:util";
import { type Customer, readCustomers, sumOfCents, toDollars } from "./customers.ts";
import { billingPeriod, holdMs, type Play, playGuarded, playUnguarded } from "./play.ts";
import { type Scenario, scenarios } from "./scenarios.ts";
import { tableOf } from "./table.ts";
import { judge, type Row } from "./verdict.ts";
import { startWorld, type World } from "./world.ts";

const usage = `usage: npm run demo -- [--quick] [--plant-random-keys]

  --quick               40 customers instead of 200
  --plant-random-keys   break the guard on purpose, by another key on every request to Stripe; must exit with 1`;

const legend = `extra: charges beyond one per customer.
in doubt: the process was killed before it knew whether Stripe had charged, and 25 hours later the
same key could charge again. Such a customer is not charged, and keeps its part of the cap until
that is settled. In two steps there is none: the bound PaymentIntent can be continued at any age.
`;

const print = (text: string): void => void process.stdout.write(`${text}\n`);

function headerOf(customers: readonly Customer[]): string {
  const deadlines = [...new Set(scenarios.map(({ vendorDeadlineMs }) => vendorDeadlineMs))].join(" or ");
  return `
Holdfast demo: ${customers.length} customers (customers.csv) owe ${toDollars(sumOfCents(customers))} USD for ${billingPeriod}.
No real money moves: Stripe is a simulator here, or stripe-stateful-mock, a fake that others wrote.

Three ways in which billing code charges twice:
  1. RxJS retry       runs the code again that makes the idempotency key: a new key, a second charge
  2. p-retry          runs a whole billing run again that had stopped half-done
  3. three processes  one timer fires on every replica

Each is first run unguarded: the plain Stripe client with a random key per call. Then guarded by the
Holdfast SDK, in two steps (paymentIntents.create with confirm) and in one call (charges.create).
The guarded runs get more trouble: connections are cut after Stripe has accepted the charge; a
process is killed (SIGKILL) between charge and commit and started again; then everything is killed;
and the whole run is repeated 25 hours later, when Stripe has forgotten its keys. For that the
clocks of the database and of the simulator are moved together. Some caps are too small for all
customers: the last ones are denied.

A line per scenario follows: connections cut and processes killed in its guarded run, and charges
beyond one per customer, unguarded and guarded. Then the same as a table.

On day one a hold lasts ${holdMs / 1000} s (default 10 min); Stripe has ${deadlines} ms (default 30 s).
`;
}

async function playAll(world: World, options: Omit<Play, "scenario">): Promise<readonly Row[]> {
  const rows: Row[] = [];
  for (const [index, scenario] of scenarios.entries()) {
    const start = performance.now();
    const row = await playOne(world, { scenario, ...options });
    rows.push(row);
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    print(`${index + 1}/${scenarios.length} ${progressOf(scenario, row)} (${seconds} s)`);
    for (const fault of row.faults.slice(0, 10)) print(`    WRONG: ${fault}`);
  }
  return rows;
}

async function playOne(world: World, play: Play): Promise<Row> {
  const unguarded = await playUnguarded(world, play);
  const guarded = await playGuarded(world, play);
  return judge(play.scenario, play.customers, unguarded, guarded);
}

function progressOf({ title }: Scenario, row: Row): string {
  const duplicates = `duplicates ${row.unguardedDuplicates} unguarded, ${row.guardedDuplicates} guarded`;
  return `${title}: ${row.cuts} cuts, ${row.kills} kills; ${duplicates}`;
}

/** Prints the table and the last line. Returns the exit code. */
function conclude(rows: readonly Row[]): number {
  print(`\n${tableOf(rows)}\n`);
  print(legend);
  const duplicates = rows.reduce((sum, row) => sum + row.guardedDuplicates, 0);
  const overCap = rows.filter(({ isOverCap }) => isOverCap).length;
  print(`demo: ${rows.length} guarded scenarios, ${duplicates} duplicate charges, ${overCap} over cap`);
  return rows.some(({ faults }) => faults.length > 0) ? 1 : 0;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      quick: { type: "boolean", default: false },
      "plant-random-keys": { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    print(usage);
    return 0;
  }
  const customers = readCustomers(values.quick ? 40 : 200);
  print(headerOf(customers));
  const { ready, close } = await startWorld();
  const interrupted = new Promise<number>((resolve) => {
    for (const [signal, code] of [
      ["SIGINT", 130],
      ["SIGTERM", 143],
    ] as const)
      process.on(signal, () => resolve(code));
  });
  const played = (async () => {
    const world = await ready;
    return conclude(await playAll(world, { customers, plantRandomKeys: values["plant-random-keys"] }));
  })();
  // When the world is closed under it, what it says does not matter any more.
  played.catch(() => {});
  try {
    return await Promise.race([played, interrupted]);
  } finally {
    await close();
  }
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`demo: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  process.exit(1);
}

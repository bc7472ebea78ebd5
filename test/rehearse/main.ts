import { parseArgs } from "node:util";
import { missingPgBouncer } from "../support/pgbouncer.ts";
import { faultsOf, rehearse } from "./rehearse.ts";

const usage = `usage: npm run rehearse -- [--spends 200] [--callers 8] [--drain 10000]

Three servers on one Postgres under the load of the SDK, first directly, then through PgBouncer in transaction mode: a
rolling restart, a rollout with a migration while old and new servers run, and one whose migration takes it away again.
Exit code 1 if a call failed, the books differ, or a server took longer than --drain milliseconds to stop.`;

const print = (line: string): void => void process.stdout.write(`${line}\n`);

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      spends: { type: "string", default: "200" },
      callers: { type: "string", default: "8" },
      drain: { type: "string", default: "10000" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    print(usage);
    return 0;
  }
  let faults = 0;
  for (const way of ["direct", "PgBouncer"] as const) {
    if (way === "PgBouncer" && missingPgBouncer !== undefined) {
      print(`PgBouncer: skipped, ${missingPgBouncer}`);
      continue;
    }
    print(`${way}:`);
    const [spends, callers] = [Number(values.spends), Number(values.callers)];
    const rehearsal = await rehearse({ way, spends, callers, tell: (line) => print(`  ${line}`) });
    const found = faultsOf(rehearsal, Number(values.drain));
    const slowest = Math.max(...rehearsal.steps.map(({ drainMs }) => drainMs));
    print(`  ${rehearsal.spent} spends, ${rehearsal.failures.length} failed, slowest stop ${Math.round(slowest)} ms`);
    for (const fault of found) print(`  FAILED  ${fault}`);
    faults += found.length;
  }
  return faults === 0 ? 0 : 1;
}

process.exitCode = await main();

import { randomInt } from "node:crypto";
import { parseArgs } from "node:util";
import { check } from "./checker.ts";
import { spendClasses } from "./evidence.ts";
import { historyOf, openList, tableOf, troubleList } from "./report.ts";
import { run } from "./run.ts";
import { plants } from "./worker-call.ts";

const usage = `usage: npm run faults -- [--operations 2000] [--seed N] [--minutes N] [--only class,…] [--plant bug,…]

Three billing processes spend through the SDK at one server and a simulated Stripe, while requests and connections
fail, processes are killed and days pass. Then an independent check compares the vendors' ledgers, the database and
what the callers were told. Exit code 1 if anything differs.

  --minutes   begin nothing new after so many minutes; 30 by default
  --only      only these classes: ${spendClasses.join(", ")}
  --plant     bugs of the billing processes, one each, which must be found: ${plants.join(", ")}`;

const print = (text: string): void => void process.stdout.write(`${text}\n`);

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      operations: { type: "string", default: "2000" },
      seed: { type: "string", default: String(randomInt(2 ** 31)) },
      minutes: { type: "string", default: "30" },
      only: { type: "string" },
      plant: { type: "string" },
      help: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    print(usage);
    return 0;
  }
  const planted = (values.plant?.split(",") ?? []).map((name) => {
    const plant = plants.find((one) => one === name);
    if (plant === undefined) throw new Error(`--plant takes ${plants.join(", ")}`);
    return plant;
  });
  const names = values.only?.split(",");
  const only = spendClasses.filter((name) => names?.includes(name) ?? true);
  if (only.length !== (names ?? spendClasses).length) throw new Error(`--only takes ${spendClasses.join(", ")}`);
  const seed = Number(values.seed);
  print(`faults: seed ${seed}, about ${values.operations} operations, three processes`);
  const interrupted = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => interrupted.abort());
  const evidence = await run({
    signal: interrupted.signal,
    seed,
    only,
    operations: Number(values.operations),
    timeMaxMs: Number(values.minutes) * 60_000,
    onProgress: print,
    plants: planted,
  });
  const verdict = check(evidence);
  print(`\n${tableOf(evidence, verdict)}\n\n${troubleList(evidence)}`);
  if (verdict.open.length > 0) print(`\nnot settled, and the first reason of each:\n${openList(verdict)}`);
  for (const { spend, what } of verdict.differences.slice(0, 20)) {
    print(`\nDIFFERENCE: ${what}`);
    if (spend !== undefined) print(historyOf(evidence, spend));
  }
  const { length } = verdict.differences;
  print(`\nfaults: seed ${seed}, ${evidence.answers.length} operations, ${length} differences`);
  return length === 0 ? 0 : 1;
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`faults: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  process.exit(1);
}

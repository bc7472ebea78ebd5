import { parseArgs } from "node:util";
import type { Bench } from "./bench.ts";
import { engineBench } from "./engine/engine.ts";
import { growthBench } from "./engine/growth.ts";
import { overloadBench } from "./engine/overload.ts";
import { rpcBench } from "./engine/rpc.ts";
import { serversBench } from "./engine/servers.ts";
import { sustainedBench } from "./engine/sustained.ts";
import { proxyBench } from "./proxy/proxy.ts";

/** Every bench, by the name that the command line takes. */
const benches: Readonly<Record<string, Bench>> = {
  engine: engineBench,
  rpc: rpcBench,
  servers: serversBench,
  growth: growthBench,
  overload: overloadBench,
  sustained: sustainedBench,
  proxy: proxyBench,
};

const usage = `npm run bench -- [NAME …] [--quick] [--json] [--against FOLDER] [--profile FOLDER]

${Object.entries(benches)
  .map(([name, { about }]) => `  ${name.padEnd(10)}${about}`)
  .join("\n")}

  A ratio's name picks the bench that gives it. Without a name all of them run.

  --quick           a few calls of everything, for a machine that only has to show that it works
  --json            one JSON document instead of lines
  --against FOLDER  another checkout, whose server runs in the same rounds
  --profile FOLDER  leaves CPU profiles of the servers there
`;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    quick: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
    against: { type: "string" },
    profile: { type: "string" },
    help: { type: "boolean", default: false },
  },
});
/** The bench of that name, or the one that gives the ratio of that name. */
function benchFor(name: string): string | undefined {
  if (Object.hasOwn(benches, name)) return name;
  return Object.entries(benches).find(([, { gives }]) => gives.includes(name))?.[0];
}

const asked = positionals.length === 0 ? Object.keys(benches) : positionals;
const unknown = asked.filter((name) => benchFor(name) === undefined);
const names = new Set(asked.flatMap((name) => benchFor(name) ?? []));
if (values.help || unknown.length > 0) {
  if (unknown.length > 0) process.stderr.write(`There is no bench ${unknown.join(", ")}.\n\n`);
  process.stdout.write(usage);
  process.exit(unknown.length > 0 ? 2 : 0);
}

const results: Record<string, unknown> = {};
for (const name of names) {
  const result = await benches[name]?.run({
    quick: values.quick,
    profileFolder: values.profile,
    against: values.against,
    progress: (text) => void process.stderr.write(`${name}: ${text}\n`),
  });
  if (result === undefined) continue;
  results[name] = result;
  if (values.json) continue;
  for (const line of result.table) process.stdout.write(`${line}\n`);
  for (const [ratio, value] of Object.entries(result.ratios))
    process.stdout.write(`ratio ${ratio} ${value.toFixed(2)}\n`);
  for (const ratio of result.absent ?? []) process.stdout.write(`ratio ${ratio} absent\n`);
  for (const [name, value] of Object.entries(result.against ?? {}))
    process.stdout.write(`against ${name} ${value.toFixed(2)}\n`);
}
if (values.json) process.stdout.write(`${JSON.stringify(results)}\n`);

import { parseArgs } from "node:util";
import { stripeDialect } from "../../server/proxy/stripe-dialect.ts";
import { fuzz } from "./fuzz.ts";

/** `npm run fuzz:proxy -- --requests 1000000 --seed 7` reads more requests than the test does. */
const { values } = parseArgs({
  options: { requests: { type: "string", default: "200000" }, seed: { type: "string", default: "1" } },
});
const begun = performance.now();
const { requests, accepted, refused, outside, findings } = fuzz({
  requests: Number(values.requests),
  seed: Number(values.seed),
  dialect: stripeDialect,
});
for (const { number, what, request } of findings) {
  process.stdout.write(`request ${number}: ${what}\n  ${JSON.stringify(request)}\n`);
}
const codes = [...refused].toSorted(([, a], [, b]) => b - a).map(([code, count]) => `${count} ${code}`);
process.stdout.write(`${accepted} accepted; refused: ${codes.join(", ")}\n`);
process.stdout.write(`${((performance.now() - begun) / 1_000).toFixed(1)} s, seed ${values.seed}\n`);
process.stdout.write(`fuzz: ${requests} requests, ${outside} outside policy\n`);
process.exitCode = outside === 0 ? 0 : 1;

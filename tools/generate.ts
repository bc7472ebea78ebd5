// Makes every generated file anew: third_party/buf, gen, the SDK's endpoint table and reference, the proxy's table
// of parameters, server/store/schema.sql.
// The result is committed; .ci/run fails when it differs.
import { spawnSync } from "node:child_process";

const steps: readonly (readonly [string, ...string[]])[] = [
  [process.execPath, "tools/print-validate-proto.ts"],
  ["buf", "generate"],
  [process.execPath, "tools/generate-stripe-endpoints.ts"],
  [process.execPath, "--conditions=holdfast-source", "tools/generate-stripe-parameters.ts"],
  [process.execPath, "tools/generate-api-reference.ts"],
  [process.execPath, "--conditions=holdfast-source", "tools/dump-schema.ts"],
];

const PATH = `node_modules/.bin:${process.env["PATH"] ?? ""}`;
for (const [program, ...args] of steps) {
  const { status, error } = spawnSync(program, args, { stdio: "inherit", env: { ...process.env, PATH } });
  if (status !== 0) {
    process.stderr.write(`${program} ${args.join(" ")} failed${error === undefined ? "" : `: ${error.message}`}\n`);
    process.exit(1);
  }
}

// Builds the published packages, packs them, checks their shape, installs them into an empty folder, type-checks a
// program against them there and runs it. Prints how large an installation is.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const root = resolve(import.meta.dirname, "..");
const bin = join(root, "node_modules", ".bin");
const { devDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
  devDependencies: Record<string, string>;
};
const peers = ["stripe", "@types/node"].map((name) => `${name}@${devDependencies[name]}`);

function run(program: string, args: readonly string[], cwd = root): string {
  const result = spawnSync(program, args, { cwd, encoding: "utf8", env: { ...process.env, NODE_OPTIONS: "" } });
  if (result.status === 0) return result.stdout;
  process.stderr.write(`${program} ${args.join(" ")} failed\n${result.stdout}${result.stderr}\n`);
  process.exit(1);
}

function sizeOf(folder: string): number {
  let bytes = 0;
  for (const entry of readdirSync(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) bytes += sizeOf(path);
    else if (entry.isFile()) bytes += statSync(path).size;
  }
  return bytes;
}

const program = `
import Stripe from "stripe";
import { createHoldfast, stableKey } from "@holdfast/sdk";
const key: string = stableKey("cust_123", "2026-11", "ratpack-billing");
if (key !== "8ee6c974a09685f4291fef983a1129f5") throw new Error(key);
const holdfast = createHoldfast({ baseUrl: "http://127.0.0.1:1", vaultKey: "vk_default_check_x" });
const stripe: Stripe = holdfast.stripe(new Stripe("sk_test_x"));
if (typeof stripe.paymentIntents.create !== "function") throw new Error("not a Stripe client");
await holdfast.close();
console.log("ok");
`;

const folder = mkdtempSync(join(tmpdir(), "holdfast-packages-"));
try {
  for (const name of ["gen", "sdk"]) {
    rmSync(join(root, name, "dist"), { recursive: true, force: true });
    run(join(bin, "tsc"), ["-p", `${name}/tsconfig.build.json`]);
    run(join(bin, "publint"), [name, "--strict"]);
  }
  run("npm", ["pack", "--silent", "--pack-destination", folder, "-w", "gen", "-w", "sdk"]);
  const tarballs = readdirSync(folder).map((name) => join(folder, name));
  const sdkTarball = tarballs.find((path) => path.includes("holdfast-sdk")) ?? "";
  run(join(bin, "attw"), [sdkTarball, "--profile", "esm-only"]);

  const user = join(folder, "user");
  run("mkdir", ["-p", user]);
  writeFileSync(join(user, "package.json"), '{ "type": "module", "private": true }\n');
  writeFileSync(join(user, "program.ts"), program);
  run("npm", ["install", "--ignore-scripts", "--no-audit", "--no-fund", ...tarballs], user);
  const modules = join(user, "node_modules");
  const bytes = sizeOf(modules) - sizeOf(join(modules, "stripe"));
  run("npm", ["install", "--ignore-scripts", "--no-audit", "--no-fund", ...peers], user);
  run(join(bin, "tsc"), ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2024", "program.ts"], user);
  run(process.execPath, ["program.ts"], user);
  process.stdout.write(`packages: an installation without stripe is ${(bytes / 1e6).toFixed(1)} MB\n`);
} finally {
  rmSync(folder, { recursive: true, force: true });
  for (const name of ["gen", "sdk"]) rmSync(join(root, name, "dist"), { recursive: true, force: true });
}

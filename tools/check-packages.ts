// Packs what is published, checks its shape, installs it into an empty folder as a user would, type-checks a program
// against it there and runs it: on every Node line and every Stripe major that the SDK allows. Prints the sizes.
import { cp, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { build } from "vite";
import { type ConsumerWorld, startConsumerWorld } from "./consumer-world.ts";
import { installNodeVersions } from "./node-versions.ts";
import { type PackedPackage, packPackages, readManifest } from "./pack-packages.ts";
import { packageShapeProblems } from "./package-shape.ts";
import { runProgram } from "./run-program.ts";

const root = resolve(import.meta.dirname, "..");
const bin = join(root, "node_modules", ".bin");
const manifest = await readManifest(root);
const devDependencies = manifest["devDependencies"] as Readonly<Record<string, string>>;

/** One of each major that the peer range of the SDK allows; the last one is the newest. */
const stripeVersions = ["18.5.0", "19.3.1", "20.4.1", "21.0.1", "22.6.2", devDependencies["stripe"] ?? ""];
/** What most users compile with, beside the compiler of this repository. */
const olderTypescript = "5.9.3";
/** The oldest one that the SDK allows. */
const olderOpentelemetry = "1.9.0";

/** What a bundle of only `stableKey` may weigh, in bytes: it must not bring the client along. */
const stableKeyBundleMax = 4_000;

/** What an installation without Stripe's client may weigh, in bytes, its dependencies included. */
const installationMax = 6_000_000;

const startedAt = performance.now();

function say(text: string): void {
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(0).padStart(3);
  process.stdout.write(`packages: ${seconds} s  ${text}\n`);
}

async function filesOf(folder: string): Promise<Map<string, string>> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = new Map<string, string>();
  for (const entry of entries.filter((found) => found.isFile())) {
    const path = join(entry.parentPath, entry.name);
    files.set(path.slice(folder.length + 1), await readFile(path, "utf8"));
  }
  return files;
}

async function checkShape({ name, tarball }: PackedPackage, folder: string): Promise<void> {
  const unpacked = join(folder, name.replace("/", "-"));
  await mkdir(unpacked);
  await runProgram("tar", ["xzf", tarball, "-C", unpacked], folder);
  const files = await filesOf(join(unpacked, "package"));
  const published = JSON.parse(files.get("package.json") ?? "{}") as Record<string, unknown>;
  const problems = packageShapeProblems({ manifest: published, files });
  if (problems.length > 0) throw new Error(`${name}:\n${problems.join("\n")}`);
  await runProgram(join(bin, "publint"), [join(unpacked, "package"), "--strict"], root);
  const entries = name === "@holdfast/api" ? ["--entrypoints", "holdfast/v1/spend_pb"] : [];
  await runProgram(join(bin, "attw"), [tarball, "--profile", "esm-only", ...entries], root);
  const { size } = await stat(tarball);
  say(`${name} is ${(size / 1e3).toFixed(0)} kB packed, ${files.size} files`);
}

async function install(folder: string, packages: readonly string[]): Promise<void> {
  await runProgram("npm", ["install", "--ignore-scripts", "--no-audit", "--no-fund", ...packages], folder);
}

async function sizeOf(folder: string): Promise<number> {
  let bytes = 0;
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) bytes += (await stat(join(entry.parentPath, entry.name))).size;
  }
  return bytes;
}

async function installAsUser(user: string, packed: readonly PackedPackage[]): Promise<void> {
  await mkdir(user);
  await writeFile(join(user, "package.json"), '{ "type": "module", "private": true }\n');
  await cp(join(root, "test", "publish", "consumer.ts"), join(user, "consumer.ts"));
  const peers = [`stripe@${stripeVersions.at(-1) ?? ""}`, `@types/node@${devDependencies["@types/node"] ?? ""}`];
  const tools = [`typescript@${olderTypescript}`, `@opentelemetry/api@${olderOpentelemetry}`];
  await install(user, [...packed.map(({ tarball }) => tarball), ...peers]);
  const modules = join(user, "node_modules");
  const [all, stripe, types] = await Promise.all(["", "stripe", "@types"].map((name) => sizeOf(join(modules, name))));
  const without = (all ?? 0) - (stripe ?? 0) - (types ?? 0) - (await sizeOf(join(modules, "undici-types")));
  say(`an installation is ${megabytes(without)} without stripe, ${megabytes(without + (stripe ?? 0))} with it`);
  if (without > installationMax) throw new Error(`An installation is larger than ${megabytes(installationMax)}.`);
  await install(user, tools);
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** As strictly as a compiler can; for the program that uses nothing else, the types of every dependency too. */
async function typeCheck(
  user: string,
  compiler: string,
  resolution: "nodenext" | "bundler",
  programs = ["consumer.ts"],
): Promise<void> {
  const skipLibCheck = String(!programs.includes("consumer.ts"));
  const strict = [
    "--strict",
    "--exactOptionalPropertyTypes",
    "--noUncheckedIndexedAccess",
    "--skipLibCheck",
    skipLibCheck,
  ];
  const module = resolution === "nodenext" ? "nodenext" : "esnext";
  const modules = ["--module", module, "--moduleResolution", resolution, "--target", "es2024", "--types", "node"];
  await runProgram(compiler, ["--noEmit", ...strict, ...modules, ...programs], user);
}

/** Runs the program twice for one customer: the second run, a process of its own, must find the same two charges. */
async function runAsUser(world: ConsumerWorld, user: string, node: string, customer: string): Promise<void> {
  const args = ["consumer.ts", world.url, world.vaultKey, String(world.simulator.port), customer];
  const before = world.simulator.movements().length;
  const first = await runProgram(node, args, user);
  const second = await runProgram(node, args, user);
  const charges = world.simulator.movements().length - before;
  if (first !== second || charges !== 2) throw new Error(`${charges} charges of ${customer}: ${first}${second}`);
}

async function checkTreeShaking(user: string): Promise<void> {
  await writeFile(join(user, "entry.js"), 'export { stableKey } from "@holdfast/sdk";\n');
  const result = await build({
    root: user,
    configFile: false,
    logLevel: "error",
    ssr: { noExternal: true },
    build: { ssr: join(user, "entry.js"), write: false, minify: true },
  });
  const outputs = (Array.isArray(result) ? result : [result]).flatMap((part) => ("output" in part ? part.output : []));
  const code = outputs.map((part) => ("code" in part ? part.code : "")).join("");
  if (!code.includes("stableKey")) throw new Error(`The bundle has no stableKey:\n${code}`);
  if (code.length > stableKeyBundleMax) throw new Error(`A bundle of stableKey weighs ${code.length} bytes.`);
  say(`a bundle of only stableKey is ${code.length} bytes`);
}

/** The examples are copied by users: they must compile against what users have. */
async function typeCheckExamples(user: string): Promise<void> {
  const packages = ["express", "@types/express", "p-retry", "pg-boss", "rxjs"];
  await install(
    user,
    packages.map((name) => `${name}@${devDependencies[name] ?? ""}`),
  );
  const source = join(root, "sdk", "examples");
  const examples = await readdir(source);
  for (const name of examples) await cp(join(source, name), join(user, name));
  await typeCheck(user, join(bin, "tsc"), "nodenext", examples);
  say(`${examples.length} examples compile`);
}

async function check(stage: string, folder: string, nodes: Promise<ReadonlyMap<string, string>>): Promise<void> {
  const packed = await packPackages(stage);
  for (const one of packed) await checkShape(one, folder);
  const user = join(folder, "user");
  await installAsUser(user, packed);
  await checkTreeShaking(user);
  const older = join(user, "node_modules", ".bin", "tsc");
  for (const resolution of ["nodenext", "bundler"] as const) {
    await typeCheck(user, older, resolution);
    await typeCheck(user, join(bin, "tsc"), resolution);
  }
  const world = await startConsumerWorld(folder);
  try {
    for (const [version, node] of await nodes) {
      await runAsUser(world, user, node, `node-${version}`);
      say(`charges on Node ${version}`);
    }
    for (const version of stripeVersions) {
      await install(user, [`stripe@${version}`]);
      await typeCheck(user, join(bin, "tsc"), "nodenext");
      await runAsUser(world, user, process.execPath, `stripe-${version}`);
      say(`charges with stripe ${version}`);
    }
    await typeCheckExamples(user);
  } finally {
    await world.close();
  }
}

// Built in this repository, where the compiler finds the dependencies; used outside, where nothing else is found.
await mkdir(join(root, ".tmp"), { recursive: true });
const stage = await mkdtemp(join(root, ".tmp", "packages-"));
const folder = await mkdtemp(join(tmpdir(), "holdfast-packages-"));
// Meanwhile everything else is made. A failure of it must not end the process on its own, nor leave it behind.
const nodes = installNodeVersions(join(folder, "nodes"));
nodes.catch(() => {});
try {
  await check(stage, folder, nodes);
} finally {
  await nodes.catch(() => {});
  for (const made of [stage, folder]) await rm(made, { recursive: true, force: true });
}

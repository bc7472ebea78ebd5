// Fails when an installed package has a licence that this product may not depend on.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

const allowed = new Set([
  "MIT",
  "Apache-2.0",
  "BSD-2-Clause",
  "BSD-3-Clause",
  "ISC",
  "PostgreSQL",
  "0BSD",
  "BlueOak-1.0.0",
  "CC0-1.0",
  "Unlicense",
  "WTFPL",
]);

/** Only needed by the tools of this repository, never shipped. Each with the reason why it is acceptable. */
const toolsOnly: Readonly<Record<string, string>> = {
  lightningcss: "MPL-2.0; a part of the test runner's bundler",
  "lightningcss-linux-x64-gnu": "its binary",
  "lightningcss-linux-x64-musl": "its binary",
  "lightningcss-linux-arm64-gnu": "its binary",
  "lightningcss-linux-arm64-musl": "its binary",
};

function* packagesIn(folder: string): Generator<string> {
  for (const name of readdirSync(folder)) {
    if (name.startsWith(".")) continue;
    const path = join(folder, name);
    if (name.startsWith("@")) yield* packagesIn(path);
    else if (statSync(path).isDirectory()) {
      yield path;
      const nested = join(path, "node_modules");
      if (statSync(nested, { throwIfNoEntry: false })?.isDirectory() === true) yield* packagesIn(nested);
    }
  }
}

interface Manifest {
  readonly name?: string;
  readonly version?: string;
  readonly license?: string | { readonly type?: string };
}

function isAllowed(expression: string): boolean {
  const parts = expression.replaceAll(/[()]/g, "").split(/ OR /i);
  return parts.some((part) => part.split(/ AND /i).every((licence) => allowed.has(licence.trim())));
}

const problems: string[] = [];
for (const folder of packagesIn("node_modules")) {
  const text = readManifest(folder);
  if (text === undefined) continue;
  const manifest = JSON.parse(text) as Manifest;
  if (manifest.name === undefined || manifest.name in toolsOnly) continue;
  const licence = typeof manifest.license === "object" ? (manifest.license.type ?? "") : (manifest.license ?? "");
  if (!isAllowed(licence)) problems.push(`${manifest.name} ${manifest.version}: ${licence || "no licence"}`);
}
for (const problem of problems) process.stderr.write(`${problem}\n`);
process.exitCode = problems.length === 0 ? 0 : 1;

function readManifest(folder: string): string | undefined {
  try {
    return readFileSync(join(folder, "package.json"), "utf8");
  } catch {
    return undefined;
  }
}

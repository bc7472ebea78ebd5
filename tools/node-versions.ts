import { cp, mkdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { runProgram } from "./run-program.ts";

const source = resolve(import.meta.dirname, "node-versions");

/**
 * The Node programs that the packed SDK must run on, by name; installed into `folder` from the npm registry, pinned by
 * a lock file. On a platform without such packages only the Node that runs this.
 */
export async function installNodeVersions(folder: string): Promise<ReadonlyMap<string, string>> {
  const here = process.version.slice(1);
  if (process.platform !== "linux" || (process.arch !== "x64" && process.arch !== "arm64")) {
    return new Map([[here, process.execPath]]);
  }
  await mkdir(folder, { recursive: true });
  for (const file of ["package.json", "package-lock.json", ".npmrc"]) await cp(join(source, file), join(folder, file));
  await runProgram("npm", ["ci", "--ignore-scripts", "--loglevel=error"], folder);
  const programs = new Map<string, string>();
  for (const major of ["22", "24", "26"]) {
    const program = join(folder, "node_modules", `node${major}-linux-${process.arch}`, "bin", "node");
    const version = await runProgram(program, ["--version"], folder);
    programs.set(version.trim().slice(1), program);
  }
  return programs;
}

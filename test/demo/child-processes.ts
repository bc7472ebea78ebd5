import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";

const nodeFlags = ["--conditions=holdfast-source", "--disable-warning=ExperimentalWarning"];
const stderrMax = 4_000;
const stopMs = 8_000;

/** Child processes of the demo. Each is ended by its own process id, whatever happens to the demo. */
export interface ChildProcesses {
  /** Starts a program of this repository and resolves with the match of the first line it prints that is like `line`. */
  start(file: string, options: StartOptions): Promise<RegExpExecArray>;
  /** Starts a program with a channel for messages. */
  fork(file: string): ChildProcess;
  /** What a child has written to its standard error, the end of it. */
  stderrOf(child: ChildProcess): string;
  /** SIGTERM, then SIGKILL to what is left. */
  stopAll(): Promise<void>;
}

export interface StartOptions {
  readonly args: readonly string[];
  readonly line: RegExp;
  /** Instead of the environment of the demo, of which only PATH, HOME and TMPDIR are handed on. */
  readonly env?: Readonly<Record<string, string>>;
}

/** `cacheFolder` keeps compiled code, so that the many processes of the demo start faster. */
export function createChildProcesses(cacheFolder: string): ChildProcesses {
  const running = new Set<ChildProcess>();
  const stderr = new WeakMap<ChildProcess, string>();

  function watch(child: ChildProcess): ChildProcess {
    running.add(child);
    child.once("exit", () => running.delete(child));
    child.on("error", () => running.delete(child));
    child.stderr?.on("data", (chunk: Buffer) => {
      stderr.set(child, `${stderr.get(child) ?? ""}${chunk.toString()}`.slice(-stderrMax));
    });
    return child;
  }

  return {
    async start(file, { args, line, env = {} }) {
      const child = watch(
        spawn(process.execPath, [...nodeFlags, join(import.meta.dirname, file), ...args], {
          env: { ...handedOn(), ...env },
          stdio: ["ignore", "pipe", "pipe"],
          // In a group of its own: Ctrl-C in a terminal is for the demo, which then ends this one.
          detached: true,
        }),
      );
      const match = await firstMatch(child, line);
      if (match === undefined) throw new Error(`${file} ended before it was ready.\n${stderr.get(child) ?? ""}`);
      return match;
    },
    fork: (file) =>
      watch(
        fork(join(import.meta.dirname, file), [], {
          env: { ...handedOn(), NODE_COMPILE_CACHE: cacheFolder },
          execArgv: nodeFlags,
          stdio: ["ignore", "inherit", "pipe", "ipc"],
        }),
      ),
    stderrOf: (child) => stderr.get(child) ?? "",
    async stopAll() {
      await Promise.all([...running].map(stop));
    },
  };
}

/** The first line on either output that matches, or undefined if the child ends without one. */
function firstMatch(child: ChildProcess, line: RegExp): Promise<RegExpExecArray | undefined> {
  return new Promise((resolve) => {
    for (const stream of [child.stdout, child.stderr]) {
      if (stream === null) continue;
      createInterface(stream).on("line", (text) => {
        const match = line.exec(text);
        if (match !== null) resolve(match);
      });
    }
    child.once("close", () => resolve(undefined));
    child.once("error", () => resolve(undefined));
  });
}

function handedOn(): Record<string, string> {
  const names = ["PATH", "HOME", "TMPDIR"];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, "exit");
  const last = setTimeout(() => child.kill("SIGKILL"), stopMs);
  child.kill("SIGTERM");
  await exited;
  clearTimeout(last);
}

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";

export interface ChildOptions {
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Told every line of its standard output. */
  readonly onLine: (line: string) => void;
  /** Told every line of its standard error. */
  readonly onErrorLine?: (line: string) => void;
}

/** A child process that is told lines and says lines. It ends with its standard input, so also with its parent. */
export interface Child {
  readonly pid: number;
  readonly isGone: () => boolean;
  /** Resolves when it has ended. */
  readonly gone: Promise<void>;
  /** The end of what was written to standard error. */
  readonly errors: () => string;
  tell(line: object): void;
  kill(signal: NodeJS.Signals): Promise<void>;
}

const stderrMax = 4_000;

export function startChild(file: string, { args = [], env = {}, onLine, onErrorLine }: ChildOptions): Child {
  const child: ChildProcess = spawn(
    process.execPath,
    ["--conditions=holdfast-source", "--disable-warning=ExperimentalWarning", join(import.meta.dirname, file), ...args],
    { env: { ...handedOn(), ...env }, stdio: ["pipe", "pipe", "pipe"] },
  );
  let isGone = false;
  let errors = "";
  const gone = once(child, "exit").then(() => {
    isGone = true;
  });
  // Telling something to a process that was killed is no failure.
  child.stdin?.on("error", () => undefined);
  if (child.stdout !== null) createInterface(child.stdout).on("line", onLine);
  if (child.stderr !== null) {
    createInterface(child.stderr).on("line", (line) => {
      errors = `${errors}${line}\n`.slice(-stderrMax);
      onErrorLine?.(line);
    });
  }
  return {
    pid: child.pid ?? 0,
    isGone: () => isGone,
    gone,
    errors: () => errors,
    tell: (line) => void child.stdin?.write(`${JSON.stringify(line)}\n`),
    async kill(signal) {
      child.kill(signal);
      await gone;
    },
  };
}

function handedOn(): Record<string, string> {
  const names = ["PATH", "HOME", "TMPDIR", "NODE_COMPILE_CACHE"];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

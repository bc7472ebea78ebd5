import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

/** What a child says: one JSON object per line of its standard output. */
export type Line = Readonly<Record<string, unknown>>;

/** A child process that is told and tells things line by line. */
export interface LineProcess {
  readonly pid: number;
  /** Everything said so far, and what was written to standard error. */
  readonly lines: readonly Line[];
  readonly errors: () => string;
  /** The first line that fits, now or later. Rejects when the process ends without it. */
  said(fits: (line: Line) => boolean): Promise<Line>;
  tell(line: object): void;
  signal(signal: NodeJS.Signals): void;
  /** Ends its standard input, on which it stops, and waits. */
  end(): Promise<void>;
  /** SIGKILL, and waits until it is gone. */
  kill(): Promise<void>;
}

export interface LineProcessOptions {
  readonly nodeFlags?: readonly string[];
  /** Besides the environment of this process. */
  readonly env?: Readonly<Record<string, string>>;
}

export function startLineProcess(file: string, { nodeFlags = [], env = {} }: LineProcessOptions = {}): LineProcess {
  const child = spawn(process.execPath, [...nodeFlags, "--conditions=holdfast-source", file], {
    env: { ...process.env, ...env },
    stdio: ["pipe", "pipe", "pipe"],
  });
  const exited = once(child, "exit");
  const lines: Line[] = [];
  const waiting = new Set<() => void>();
  let errors = "";
  let ended = false;
  const look = () => {
    for (const one of waiting) one();
  };
  child.stderr.on("data", (chunk: Buffer) => {
    errors += chunk.toString();
  });
  // Telling something to a process that was killed is no failure of the test.
  child.stdin.on("error", () => {});
  createInterface(child.stdout)
    .on("line", (line) => {
      lines.push(JSON.parse(line) as Line);
      look();
    })
    .once("close", () => {
      ended = true;
      look();
    });
  return {
    pid: child.pid ?? 0,
    lines,
    errors: () => errors,
    said(fits) {
      const { promise, resolve, reject } = Promise.withResolvers<Line>();
      const one = () => {
        const found = lines.find(fits);
        if (found === undefined && !ended) return;
        waiting.delete(one);
        if (found === undefined) reject(new Error(`The process ended. It said ${JSON.stringify(lines)} ${errors}`));
        else resolve(found);
      };
      waiting.add(one);
      one();
      return promise;
    },
    tell: (line) => void child.stdin.write(`${JSON.stringify(line)}\n`),
    signal: (signal) => void child.kill(signal),
    async end() {
      child.stdin.end();
      await exited;
    },
    async kill() {
      child.kill("SIGKILL");
      await exited;
    },
  };
}

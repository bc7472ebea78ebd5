import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { createToken } from "../../server/rpc/auth.ts";
import type { EmbeddedConnection } from "../../server/store/embedded-postgres.ts";

/** The same for every server of a test. */
export const operatorToken = createToken("op", "default", "root");

export interface ServerProcess {
  readonly url: string;
  readonly child: ChildProcess;
  /** Everything that it wrote to its standard error. */
  readonly errors: () => string;
  /** Resolves with its exit code, or the signal that ended it. */
  readonly ended: Promise<number | NodeJS.Signals>;
  /** Sends a signal and waits for its end. */
  end(signal: NodeJS.Signals): Promise<number | NodeJS.Signals>;
}

export interface ServerProcessOptions {
  readonly connection: EmbeddedConnection;
  readonly env?: Readonly<Record<string, string>>;
  readonly nodeFlags?: readonly string[];
  /** Instead of server/main.ts: what stands for another version of it. */
  readonly program?: string;
  /** Runs it with this limit of open files. */
  readonly openFiles?: number;
}

const main = join(import.meta.dirname, "../../server/main.ts");

export function databaseUrl({ host, database, port }: EmbeddedConnection): string {
  return `postgres://holdfast@localhost:${port}/${database}?host=${encodeURIComponent(host)}`;
}

/** What a server process is started with. Its log is on its standard error. */
export function serveCommand(options: ServerProcessOptions): {
  readonly program: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
} {
  const node = [
    process.execPath,
    ...(options.nodeFlags ?? []),
    "--conditions=holdfast-source",
    options.program ?? main,
    "serve",
  ];
  const env = {
    PATH: process.env["PATH"],
    DATABASE_URL: databaseUrl(options.connection),
    HOLDFAST_PORT: "0",
    HOLDFAST_OPERATOR_TOKEN: operatorToken,
    ...options.env,
  };
  if (options.openFiles === undefined) return { program: node[0] as string, args: node.slice(1), env };
  return { program: "/bin/sh", args: ["-c", `ulimit -n ${options.openFiles}; exec "$@"`, "sh", ...node], env };
}

/** Starts `holdfast serve` and resolves when it serves. Rejects with what it said when it ends instead. */
export async function startServerProcess(options: ServerProcessOptions): Promise<ServerProcess> {
  const { program, args, env } = serveCommand(options);
  const child = spawn(program, args, { env, stdio: ["ignore", "ignore", "pipe"] });
  const ended = once(child, "exit").then(([code, signal]) => (code ?? signal) as number | NodeJS.Signals);
  const lines: string[] = [];
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(child.stderr).on("line", (line) => {
      lines.push(line);
      const found = /"url":"(http[^"]+)"(?:,"\w+":"[^"]*")*,"msg":"serving"/.exec(line)?.[1];
      if (found !== undefined) resolve(found);
    });
    void ended.then((how) => reject(new Error(`the server ended (${how}): ${lines.join("\n")}`)));
  });
  return {
    url,
    child,
    errors: () => lines.join("\n"),
    ended,
    end(signal) {
      child.kill(signal);
      return ended;
    },
  };
}

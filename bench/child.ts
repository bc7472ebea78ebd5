import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";

/** A contender in a process of its own. */
export interface Child {
  /** What it said when it was ready: an object without functions. */
  readonly ready: Readonly<Record<string, string>>;
  /** Ends it, and waits until it has ended. */
  close(): Promise<void>;
}

/**
 * Starts a program of this folder, which calls `serveParent` when it is ready. Rejects if it ends before that.
 *
 * @param profileFolder where it leaves a CPU profile when it ends
 */
export async function startChild(
  file: URL,
  given: Readonly<Record<string, string>>,
  profileFolder?: string,
): Promise<Child> {
  const profile = profileFolder === undefined ? [] : ["--cpu-prof", `--cpu-prof-dir=${profileFolder}`];
  const child = fork(file, [JSON.stringify(given)], { execArgv: [...process.execArgv, ...profile] });
  const ended = once(child, "exit");
  const first = await Promise.race([once(child, "message"), ended.then(([code]) => new Error(`exit code ${code}`))]);
  if (first instanceof Error) throw new Error(`${file.pathname} did not start`, { cause: first });
  return {
    ready: (first as [Readonly<Record<string, string>>])[0],
    async close() {
      closeChannel(child);
      await ended;
    },
  };
}

/** A child ends itself when its parent leaves, however that comes about. */
function closeChannel(child: ChildProcess): void {
  if (child.connected) child.disconnect();
}

/** What a child was given. */
export function given(): Readonly<Record<string, string>> {
  return JSON.parse(process.argv[2] ?? "{}") as Readonly<Record<string, string>>;
}

/** In a child: tells the parent that it is ready, and ends the process after `close` when the parent leaves. */
export function serveParent(ready: Readonly<Record<string, string>>, close: () => Promise<void>): void {
  process.once("disconnect", () => {
    void close().finally(() => process.exit());
  });
  // Signals go to the whole group: the parent ends its children in its own time.
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => {});
  process.send?.(ready);
}

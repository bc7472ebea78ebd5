import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";

/** A contender in a process of its own. */
export interface Child {
  /** What it said when it was ready: an object without functions. */
  readonly ready: Readonly<Record<string, string>>;
  /** Has it do something that it serves. Rejects with what it threw there, or when it has ended. */
  ask<Answer>(what: string, given?: unknown): Promise<Answer>;
  /** Ends it, and waits until it has ended. */
  close(): Promise<void>;
}

/** What a child does when it is asked to: takes and gives what JSON carries. */
export type Served = Readonly<Record<string, (given: never) => Promise<unknown>>>;

interface Ask {
  readonly id: number;
  readonly what: string;
  readonly given: unknown;
}

interface Answer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
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
    ask: asking(child, file.pathname),
    async close() {
      closeChannel(child);
      await ended;
    },
  };
}

function asking(child: ChildProcess, name: string): Child["ask"] {
  const waiting = new Map<number, PromiseWithResolvers<unknown>>();
  let asked = 0;
  child.on("message", ({ id, value, error }: Answer) => {
    const promise = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) promise?.resolve(value);
    else promise?.reject(new Error(`${name}: ${error}`));
  });
  child.once("exit", (code) => {
    for (const { reject } of waiting.values()) reject(new Error(`${name} ended with exit code ${code}`));
  });
  return <Result>(what: string, given?: unknown) => {
    asked += 1;
    const answer = Promise.withResolvers<unknown>();
    waiting.set(asked, answer);
    child.send({ id: asked, what, given } satisfies Ask, (error) => {
      if (error !== null) answer.reject(error);
    });
    return answer.promise as Promise<Result>;
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
export function serveParent(
  ready: Readonly<Record<string, string>>,
  close: () => Promise<void>,
  served: Served = {},
): void {
  process.once("disconnect", () => {
    void close().finally(() => process.exit());
  });
  // Signals go to the whole group: the parent ends its children in its own time.
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => {});
  process.on("message", ({ id, what, given: asked }: Ask) => {
    void (async () => {
      const serve = served[what];
      if (serve === undefined) throw new Error(`nothing is served as ${what}`);
      return await serve(asked as never);
    })().then(
      (value) => process.send?.({ id, value } satisfies Answer),
      (error: unknown) => process.send?.({ id, error: describe(error) } satisfies Answer),
    );
  });
  process.send?.(ready);
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause === undefined
    ? (error.stack ?? error.message)
    : `${error.stack} caused by ${describe(error.cause)}`;
}

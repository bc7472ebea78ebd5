import type { Answer, AnswerLine } from "./evidence.ts";
import { type Child, startChild } from "./child.ts";
import type { WorkerCall, WorkerStart } from "./worker-call.ts";

/** The billing processes. A call is answered by the process it was given to, or lost with it. */
export interface Workers {
  readonly answers: readonly AnswerLine[];
  readonly defects: readonly string[];
  readonly count: number;
  /** Makes one call in one of them, and writes down what came of it. */
  ask(worker: number, call: Omit<WorkerCall, "operation">): Promise<Answer>;
  /** How many calls are under way. */
  running(): number;
  /** SIGKILL, and a new process in its place. */
  kill(worker: number): Promise<void>;
  /** Resolves when nothing goes on in the background of any of them. */
  flush(): Promise<void>;
  /** Ends all of them and starts others, for example in better times. */
  restart(start: WorkerStart): Promise<void>;
  close(): Promise<void>;
}

interface Worker {
  readonly child: Child;
  readonly pending: Map<
    number,
    { readonly line: Omit<AnswerLine, "end" | "answer">; readonly settle: (answer: Answer) => void }
  >;
  readonly flushes: Map<number, () => void>;
}

type Said =
  | { readonly ready: true }
  | { readonly operation: number; readonly answer: Answer }
  | { readonly flushed: number }
  | { readonly defect: string };

export async function startWorkers(count: number, firstStart: WorkerStart, cacheFolder: string): Promise<Workers> {
  const answers: AnswerLine[] = [];
  const defects: string[] = [];
  let operations = 0;
  let flushes = 0;
  let begun = 0;
  let start = firstStart;

  async function launch(): Promise<Worker> {
    const ready = Promise.withResolvers<void>();
    const pending: Worker["pending"] = new Map();
    const flushed: Worker["flushes"] = new Map();
    begun += 1;
    const child = startChild("worker-process.ts", {
      env: { NODE_COMPILE_CACHE: cacheFolder },
      onLine: (text) => {
        const said = JSON.parse(text) as Said;
        if ("answer" in said) pending.get(said.operation)?.settle(said.answer);
        else if ("flushed" in said) flushed.get(said.flushed)?.();
        else if ("defect" in said) defects.push(said.defect);
        else ready.resolve();
      },
    });
    child.tell({ start: { ...start, name: `process ${begun}` } });
    const worker = { child, pending, flushes: flushed };
    const ended = child.gone.then((): never => {
      throw new Error(`A billing process did not start: ${child.errors()}`);
    });
    await Promise.race([ready.promise, ended]);
    ended.catch(() => undefined);
    return worker;
  }

  // What comes for a process that was just killed waits for the one in its place.
  const workers = Array.from({ length: count }, () => launch());

  async function replace(index: number, signal: NodeJS.Signals): Promise<void> {
    const old = await workers[index];
    const gone = Promise.withResolvers<Worker>();
    workers[index] = gone.promise;
    await old?.child.kill(signal);
    for (const { settle } of old?.pending.values() ?? []) settle({ kind: "lost" });
    for (const done of old?.flushes.values() ?? []) done();
    gone.resolve(await launch());
    await gone.promise;
  }

  let underWay = 0;
  await Promise.all(workers);
  return {
    answers,
    defects,
    count,
    running: () => underWay,
    async ask(index, call) {
      underWay += 1;
      try {
        const worker = await (workers[index] as Promise<Worker>);
        operations += 1;
        const operation = operations;
        const { promise, resolve } = Promise.withResolvers<Answer>();
        const line = {
          operation,
          spend: call.spend,
          worker: `${index + 1} (pid ${worker.child.pid})`,
          call: call.call,
          start: Date.now(),
        };
        worker.pending.set(operation, { line, settle: resolve });
        if (worker.child.isGone()) resolve({ kind: "lost" });
        worker.child.tell({ ask: { ...call, operation } });
        const answer = await promise;
        worker.pending.delete(operation);
        answers.push({ ...line, end: Date.now(), answer });
        return answer;
      } finally {
        underWay -= 1;
      }
    },
    kill: (index) => replace(index, "SIGKILL"),
    async flush() {
      await Promise.all(
        workers.map(async (one) => {
          const worker = await one;
          flushes += 1;
          const number = flushes;
          const { promise, resolve } = Promise.withResolvers<void>();
          worker.flushes.set(number, resolve);
          if (worker.child.isGone()) resolve();
          worker.child.tell({ flush: number });
          await promise;
        }),
      );
    },
    async restart(next) {
      start = next;
      await Promise.all(workers.map((_, index) => replace(index, "SIGTERM")));
    },
    async close() {
      await Promise.all(workers.map(async (one) => (await one).child.kill("SIGTERM")));
    },
  };
}

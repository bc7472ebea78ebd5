import type { Answer, AnswerLine, Reconciled } from "./evidence.ts";
import { type Child, startChild } from "./child.ts";
import type { Plant, WorkerCall, WorkerStart } from "./worker-call.ts";

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
  /** Asks Stripe about everything that is not settled. Undefined if the control plane or the process was away. */
  reconcile(worker: number): Promise<readonly Reconciled[] | undefined>;
  /** Ends all of them and starts others, for example in better times. */
  restart(start: WorkerStart): Promise<void>;
  close(): Promise<void>;
}

type Said =
  | { readonly ready: true }
  | { readonly operation: number; readonly answer: Answer }
  | { readonly flushed: number }
  | { readonly reconciled: number; readonly steps?: readonly Reconciled[] }
  | { readonly defect: string };

export interface WorkersOptions {
  readonly count: number;
  readonly start: WorkerStart;
  /** The bugs of the processes, in order; the others have none. */
  readonly plants: readonly Plant[];
  readonly cacheFolder: string;
}

/** One process, from its start to its end. */
class Worker {
  readonly child: Child;
  readonly ready: Promise<unknown>;
  readonly #pending = new Map<number, (answer: Answer) => void>();
  readonly #flushes = new Map<number, () => void>();
  readonly #reconciliations = new Map<number, (steps: readonly Reconciled[] | undefined) => void>();
  #flushed = 0;

  constructor(start: WorkerStart, cacheFolder: string, onDefect: (defect: string) => void) {
    const ready = Promise.withResolvers<void>();
    this.child = startChild("worker-process.ts", {
      env: { NODE_COMPILE_CACHE: cacheFolder },
      onLine: (text) => {
        const said = JSON.parse(text) as Said;
        if ("answer" in said) this.#pending.get(said.operation)?.(said.answer);
        else if ("flushed" in said) this.#flushes.get(said.flushed)?.();
        else if ("reconciled" in said) this.#reconciliations.get(said.reconciled)?.(said.steps);
        else if ("defect" in said) onDefect(said.defect);
        else ready.resolve();
      },
    });
    this.child.tell({ start });
    const ended = this.child.gone.then((): never => {
      throw new Error(`A billing process did not start: ${this.child.errors()}`);
    });
    ended.catch(() => undefined);
    this.ready = Promise.race([ready.promise, ended]);
  }

  async answer(call: WorkerCall): Promise<Answer> {
    const { promise, resolve } = Promise.withResolvers<Answer>();
    this.#pending.set(call.operation, resolve);
    if (this.child.isGone()) resolve({ kind: "lost" });
    this.child.tell({ ask: call });
    const answer = await promise;
    this.#pending.delete(call.operation);
    return answer;
  }

  async flush(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#flushed += 1;
    this.#flushes.set(this.#flushed, resolve);
    if (this.child.isGone()) resolve();
    this.child.tell({ flush: this.#flushed });
    await promise;
  }

  async reconcile(): Promise<readonly Reconciled[] | undefined> {
    const { promise, resolve } = Promise.withResolvers<readonly Reconciled[] | undefined>();
    const number = this.#reconciliations.size + 1;
    this.#reconciliations.set(number, resolve);
    if (this.child.isGone()) resolve(undefined);
    this.child.tell({ reconcile: number });
    return await promise;
  }

  /** Resolves when it is gone, and whoever waits for it knows. */
  async kill(signal: NodeJS.Signals): Promise<void> {
    await this.child.kill(signal);
    for (const settle of this.#pending.values()) settle({ kind: "lost" });
    for (const done of this.#flushes.values()) done();
    for (const done of this.#reconciliations.values()) done(undefined);
  }
}

export async function startWorkers({ count, plants, cacheFolder, ...options }: WorkersOptions): Promise<Workers> {
  const answers: AnswerLine[] = [];
  const defects: string[] = [];
  let operations = 0;
  let underWay = 0;
  let { start } = options;

  async function launch(index: number): Promise<Worker> {
    const plant = plants[index];
    const own = plant === undefined ? start : { ...start, plant };
    const worker = new Worker(own, cacheFolder, (defect) => defects.push(defect));
    await worker.ready;
    return worker;
  }

  const workers = Array.from({ length: count }, (_, index) => launch(index));
  await Promise.all(workers);

  /** What comes for a process that was just killed waits for the one in its place. */
  async function replace(index: number, signal: NodeJS.Signals): Promise<void> {
    const old = await workers[index];
    const next = Promise.withResolvers<Worker>();
    workers[index] = next.promise;
    await old?.kill(signal);
    next.resolve(launch(index));
    await next.promise;
  }

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
        const name = `${index + 1} (pid ${worker.child.pid})`;
        const line = { operation, spend: call.spend, worker: name, call: call.call, start: Date.now() };
        const answer = await worker.answer({ ...call, operation });
        answers.push({ ...line, end: Date.now(), answer });
        return answer;
      } finally {
        underWay -= 1;
      }
    },
    kill: (index) => replace(index, "SIGKILL"),
    async flush() {
      await Promise.all(workers.map(async (one) => (await one).flush()));
    },
    reconcile: async (index) => (await (workers[index] as Promise<Worker>)).reconcile(),
    async restart(next) {
      start = next;
      await Promise.all(workers.map((_, index) => replace(index, "SIGTERM")));
    },
    async close() {
      await Promise.all(workers.map(async (one) => (await one).kill("SIGTERM")));
    },
  };
}

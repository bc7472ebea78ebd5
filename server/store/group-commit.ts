import { context, type Link, type SpanContext, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { HoldfastError } from "../domain/errors.ts";
import { attribute } from "../telemetry-attributes.ts";
import { measure, metric } from "../telemetry-metrics.ts";
import { type BatchPace, createBatchPace } from "./batch-pace.ts";
import { originOf } from "./trace-origin.ts";

const tracer = trace.getTracer("holdfast");

export interface GroupCommitOptions<Command, Result> {
  /** Names the spans, for example "authorize". */
  readonly name: string;
  /** Carries out a batch of one workspace and answers in the same order. */
  readonly run: (workspace: string, commands: readonly Command[]) => Promise<readonly Result[]>;
  /**
   * What to do with a failed batch: repeat it, try its commands one by one, find out which of them wait for a lock
   * that somebody else keeps, or give the error to everyone.
   */
  readonly classify: (error: unknown) => "retry" | "split" | "isolate" | "fail";
  /** What a caller gets to see of an error of `run`. */
  readonly translate: (error: unknown) => unknown;
  /** The most commands of one batch. */
  readonly batchMax: number;
  /** The most commands that may wait per workspace; one more is refused with QUEUE_FULL. */
  readonly queueMax: number;
  /** Who may wait for the same locks, the coarser name first: of a command, the caller's key, then its customer. */
  readonly keysOf?: (command: Command) => readonly string[];
  /** How many batches may be under way beside those of the workspaces' lanes, each on a connection of its own. */
  readonly sideMax?: number;
  /** How long a lane waits for its batch before what has gathered goes over another connection. */
  readonly stalledMs?: number;
}

interface Waiting<Command, Result> {
  readonly command: Command;
  readonly signal: AbortSignal;
  readonly deadlineAt: number;
  /** When it came, on the clock of `performance`. */
  readonly since: number;
  /** Where it comes from: the span of the call, and that of its own trace where it came with others. */
  readonly sources: readonly SpanContext[];
  readonly parent: ReturnType<typeof context.active>;
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

type Batch<Command, Result> = readonly Waiting<Command, Result>[];

interface Failure {
  /** By a lock that somebody else keeps. */
  readonly stopped: boolean;
  readonly cause: unknown;
}

const retriesMax = 3;
/** So many keys that are all stopped speak for the others. */
const stoppedMax = 2;
/** So few that a full queue of spans of full batches, while a collector is away, stays far below what a server may use. */
const linksMax = 128;

/**
 * Gathers concurrent commands of a workspace into one database call: while a batch is in the database, what
 * arrives waits, and when it returns all of that goes next. There is no timer: a lone command goes at once, and a
 * loaded workspace pays one commit for hundreds of commands. One batch in flight per workspace: two would only
 * wait for each other's counters.
 *
 * There are two exceptions, so that nobody waits for what does not concern them. A batch without an answer, as on a
 * connection that has died in silence, is overtaken. And a batch that somebody else's lock has stopped is taken
 * apart by key: what can go on does, what cannot is refused, and its key gets a lane of its own until the lock is gone.
 */
export class GroupCommit<Command, Result> {
  readonly #options: GroupCommitOptions<Command, Result>;
  readonly #lanes = new Map<string, Waiting<Command, Result>[]>();
  /** The lanes whose first batch has not gone yet. */
  readonly #gathering = new Set<string>();
  readonly #running = new Set<Promise<void>>();
  /** The keys that have a lane of their own, because a lock stopped their last batch. */
  readonly #heldUp = new Set<string>();
  /** How fast the batches of each lane go. That of a key's own lane is forgotten with it. */
  readonly #paces = new Map<string, BatchPace>();
  #side = 0;

  constructor(options: GroupCommitOptions<Command, Result>) {
    this.#options = options;
  }

  /**
   * Answers when the command is durable. Rejects with QUEUE_FULL when too many wait, or so many that the answer would
   * come after the deadline, and with the signal's reason
   * if that fires before the command went to the database; afterwards the outcome is awaited and answered. `deadlineAt`,
   * on the clock of `performance`, is when it is going to fire: a process that has stood still learns of answers first
   * and of its timers later.
   */
  submit(workspace: string, command: Command, signal: AbortSignal, deadlineAt = Infinity): Promise<Result> {
    if (signal.aborted) return Promise.reject(signal.reason);
    const name = this.#laneFor(workspace, command);
    const lane = this.#lanes.get(name);
    if (lane !== undefined) {
      const waitMs = deadlineAt === Infinity ? 0 : this.#waitMs(name, lane.length);
      // Of a deadline that has passed already its own signal tells.
      const leftMs = deadlineAt - performance.now();
      if (lane.length >= this.#options.queueMax || (leftMs > 0 && waitMs > leftMs)) {
        return Promise.reject(queueFull(waitMs));
      }
    }
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    const parent = context.active();
    const sources = [trace.getSpanContext(parent), originOf(parent)].filter((one) => one !== undefined);
    const since = performance.now();
    const waiting = { command, signal, deadlineAt, since, sources, parent, resolve, reject };
    if (lane === undefined) {
      const first = [waiting];
      this.#lanes.set(name, first);
      this.#gathering.add(name);
      this.#follow(this.#drain(workspace, name, first));
    } else {
      lane.push(waiting);
    }
    return promise;
  }

  /** Resolves when everything that was submitted has been answered. */
  async idle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  #follow(work: Promise<void>): void {
    const running = work.finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  #keysOf(workspace: string, command: Command): readonly string[] {
    return (this.#options.keysOf?.(command) ?? []).map((key) => `${workspace}\n${key}`);
  }

  #laneFor(workspace: string, command: Command): string {
    if (this.#heldUp.size === 0) return workspace;
    return this.#keysOf(workspace, command).find((key) => this.#heldUp.has(key)) ?? workspace;
  }

  async #drain(workspace: string, name: string, lane: Waiting<Command, Result>[]): Promise<void> {
    // Lets everything that arrived in the same turn of the event loop travel together.
    await Promise.resolve();
    this.#gathering.delete(name);
    while (lane.length > 0) {
      const batch = lane.splice(0, this.#options.batchMax).filter(isWanted);
      if (batch.length === 0) continue;
      const begun = performance.now();
      await this.#untilStalled(this.#carryOut(workspace, name, batch));
      this.#paceOf(name).took(performance.now() - begun);
    }
    this.#lanes.delete(name);
    if (name !== workspace) this.#paces.delete(name);
  }

  /** What travels with the first of a lane waits for nobody, and would be no sooner answered alone. */
  #waitMs(name: string, inLane: number): number {
    const waiting = this.#gathering.has(name) ? inLane - this.#options.batchMax : inLane;
    return waiting < 0 ? 0 : (this.#paces.get(name)?.waitMs(waiting) ?? 0);
  }

  #paceOf(name: string): BatchPace {
    const pace = this.#paces.get(name) ?? createBatchPace(this.#options.batchMax);
    this.#paces.set(name, pace);
    return pace;
  }

  /** Resolves with the work, or earlier when it takes so long that the lane should not wait for it any more. */
  async #untilStalled(work: Promise<void>): Promise<void> {
    const { stalledMs } = this.#options;
    if (stalledMs === undefined) return await work;
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(() => {
      if (this.#beside(() => work)) resolve();
    }, stalledMs);
    work.then(resolve, resolve);
    await promise;
    clearTimeout(timer);
  }

  /** Does a work that no lane waits for, unless there are too many already. */
  #beside(work: () => Promise<void>): boolean {
    if (this.#side >= (this.#options.sideMax ?? 0)) return false;
    this.#side += 1;
    this.#follow(work().finally(() => (this.#side -= 1)));
    return true;
  }

  async #carryOut(workspace: string, name: string, batch: Batch<Command, Result>): Promise<void> {
    const failure = await this.#answer(workspace, batch);
    if (name !== workspace && failure?.stopped !== true) this.#heldUp.delete(name);
    if (failure === undefined) return;
    const [first] = batch;
    if (failure.stopped && name === workspace && first !== undefined) {
      if (batch.length === 1) this.#holdUp(this.#keysOf(workspace, first.command).at(-1));
      else if (this.#beside(async () => void (await this.#isolate(workspace, batch, 0, failure.cause)))) return;
    }
    this.#refuse(batch, failure.cause);
  }

  /** Answers everybody in a batch, unless it failed as a whole. */
  async #answer(workspace: string, batch: Batch<Command, Result>): Promise<Failure | undefined> {
    try {
      const results = await this.#attempt(workspace, batch);
      for (const [index, waiting] of batch.entries()) waiting.resolve(results[index] as Result);
      return undefined;
    } catch (cause) {
      const remedy = this.#options.classify(cause);
      if (remedy !== "split" || batch.length === 1) return { stopped: remedy === "isolate", cause };
      for (const waiting of batch) {
        const failure = await this.#answer(workspace, [waiting]);
        if (failure !== undefined) this.#refuse([waiting], failure.cause);
      }
      return undefined;
    }
  }

  #refuse(batch: Batch<Command, Result>, cause: unknown): void {
    const refusal = this.#options.translate(cause);
    for (const waiting of batch) waiting.reject(refusal);
  }

  /**
   * Carries out what no lock stops of a batch that one has stopped: key by key, and of a key that is stopped, finer key
   * by finer key. When the first few are all stopped, it is by something that they have in common, and the rest is
   * refused without a try. Everybody is answered. True unless nothing went on.
   */
  async #isolate(workspace: string, batch: Batch<Command, Result>, level: number, cause: unknown): Promise<boolean> {
    const groups = Map.groupBy(batch, ({ command }) => this.#keysOf(workspace, command)[level]);
    if (groups.size === 1) {
      if (this.#hasFiner(batch, level) && (await this.#isolate(workspace, batch, level + 1, cause))) return true;
      this.#refuse(batch, cause);
      for (const key of groups.keys()) this.#holdUp(key);
      return true;
    }
    const stopped: (string | undefined)[] = [];
    let wentOn = false;
    for (const [key, waiting] of groups) {
      const group = waiting.filter(isWanted);
      if (group.length === 0) continue;
      const hopeless = !wentOn && stopped.length >= stoppedMax;
      const failure = hopeless ? { stopped: true, cause } : await this.#answer(workspace, group);
      if (failure?.stopped !== true) {
        wentOn = true;
        if (failure !== undefined) this.#refuse(group, failure.cause);
        continue;
      }
      if (!hopeless && this.#hasFiner(group, level) && (await this.#isolate(workspace, group, level + 1, cause))) {
        continue;
      }
      this.#refuse(group, failure.cause);
      if (!hopeless) stopped.push(key);
    }
    if (wentOn) for (const key of stopped) this.#holdUp(key);
    return wentOn;
  }

  #hasFiner(group: Batch<Command, Result>, level: number): boolean {
    const [first] = group;
    return first !== undefined && group.length > 1 && (this.#options.keysOf?.(first.command).length ?? 0) > level + 1;
  }

  /** Gives a key its own lane until a batch of it passes. The one that has had its lane for longest makes room. */
  #holdUp(key: string | undefined): void {
    if (key === undefined) return;
    this.#heldUp.add(key);
    const [oldest] = this.#heldUp;
    if (this.#heldUp.size > (this.#options.sideMax ?? 0) && oldest !== undefined) this.#heldUp.delete(oldest);
  }

  async #attempt(workspace: string, batch: readonly Waiting<Command, Result>[]): Promise<readonly Result[]> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#runTraced(workspace, batch);
      } catch (error) {
        if (attempt > retriesMax || this.#options.classify(error) !== "retry") throw error;
      }
    }
  }

  // The batch is a child of its first command's request and linked to every command's, so each trace leads to it.
  async #runTraced(workspace: string, batch: readonly Waiting<Command, Result>[]): Promise<readonly Result[]> {
    const first = batch[0] as Waiting<Command, Result>;
    const links = linksOf(batch);
    const labels = { [attribute.batch]: this.#options.name };
    const begun = performance.now();
    measure(metric.batchSize, batch.length, labels);
    measure(metric.batchWait, (begun - first.since) / 1000, labels);
    const options = {
      kind: SpanKind.INTERNAL,
      links,
      attributes: { [attribute.workspace]: workspace, [attribute.batchSize]: batch.length },
    };
    return await tracer.startActiveSpan(`holdfast.batch ${this.#options.name}`, options, first.parent, async (span) => {
      try {
        const results = await this.#options.run(
          workspace,
          batch.map(({ command }) => command),
        );
        if (results.length !== batch.length) {
          throw new Error(`${this.#options.name}: ${results.length} answers to ${batch.length} commands`);
        }
        return results;
      } catch (error) {
        span.setStatus({ code: SpanStatusCode.ERROR });
        throw error;
      } finally {
        measure(metric.batchDuration, (performance.now() - begun) / 1000, labels);
        span.end();
      }
    });
  }
}

/** To each span that a command of the batch comes from, once: many come with one call. */
function linksOf(batch: readonly { readonly sources: readonly SpanContext[] }[]): Link[] {
  const links = new Map<string, Link>();
  for (const source of batch.flatMap(({ sources }) => sources)) {
    if (links.size === linksMax) break;
    links.set(`${source.traceId}${source.spanId}`, { context: source });
  }
  return [...links.values()];
}

function queueFull(waitMs: number): HoldfastError {
  const message = "Too many requests wait for the database; nothing was done. Try again after the delay.";
  return new HoldfastError("QUEUE_FULL", message, { retryAfterMs: Math.max(250, Math.ceil(waitMs)) });
}

/** A command whose caller has gone is dropped before it costs a transaction. */
function isWanted<Command, Result>({ signal, deadlineAt, reject }: Waiting<Command, Result>): boolean {
  if (signal.aborted) {
    reject(signal.reason);
    return false;
  }
  if (performance.now() < deadlineAt) return true;
  signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  return false;
}

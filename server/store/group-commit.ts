import { context, type Link, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { HoldfastError } from "../domain/errors.ts";
import { attribute } from "../telemetry-attributes.ts";

const tracer = trace.getTracer("holdfast");

export interface GroupCommitOptions<Command, Result> {
  /** Names the spans, for example "authorize". */
  readonly name: string;
  /** Carries out a batch of one workspace and answers in the same order. */
  readonly run: (workspace: string, commands: readonly Command[]) => Promise<readonly Result[]>;
  /** What to do with a failed batch: repeat it, try its commands one by one, or give the error to everyone. */
  readonly classify: (error: unknown) => "retry" | "split" | "fail";
  /** What a caller gets to see of an error of `run`. */
  readonly translate: (error: unknown) => unknown;
  /** The most commands of one batch. */
  readonly batchMax: number;
  /** The most commands that may wait per workspace; one more is refused with QUEUE_FULL. */
  readonly queueMax: number;
}

interface Waiting<Command, Result> {
  readonly command: Command;
  readonly signal: AbortSignal;
  readonly link: Link | undefined;
  readonly parent: ReturnType<typeof context.active>;
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

const retriesMax = 3;
const linksMax = 128;

/**
 * Gathers concurrent commands of a workspace into one database call: while a batch is in the database, what
 * arrives waits, and when it returns all of that goes next. There is no timer: a lone command goes at once, and a
 * loaded workspace pays one commit for hundreds of commands. One batch in flight per workspace: two would only
 * wait for each other's counters.
 */
export class GroupCommit<Command, Result> {
  readonly #options: GroupCommitOptions<Command, Result>;
  readonly #lanes = new Map<string, Waiting<Command, Result>[]>();
  readonly #running = new Set<Promise<void>>();

  constructor(options: GroupCommitOptions<Command, Result>) {
    this.#options = options;
  }

  /**
   * Answers when the command is durable. Rejects with QUEUE_FULL when too many wait, and with the signal's reason
   * if that fires before the command went to the database; afterwards the outcome is awaited and answered.
   */
  submit(workspace: string, command: Command, signal: AbortSignal): Promise<Result> {
    if (signal.aborted) return Promise.reject(signal.reason);
    const lane = this.#lanes.get(workspace);
    if (lane !== undefined && lane.length >= this.#options.queueMax) {
      const message = "Too many requests wait for the database; nothing was done. Try again after the delay.";
      return Promise.reject(new HoldfastError("QUEUE_FULL", message, { retryAfterMs: 250 }));
    }
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    const spanContext = trace.getActiveSpan()?.spanContext();
    const link = spanContext === undefined ? undefined : { context: spanContext };
    const waiting = { command, signal, link, parent: context.active(), resolve, reject };
    if (lane === undefined) {
      const first = [waiting];
      this.#lanes.set(workspace, first);
      const running = this.#drain(workspace, first).finally(() => this.#running.delete(running));
      this.#running.add(running);
    } else {
      lane.push(waiting);
    }
    return promise;
  }

  /** Resolves when everything that was submitted has been answered. */
  async idle(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running);
  }

  async #drain(workspace: string, lane: Waiting<Command, Result>[]): Promise<void> {
    // Lets everything that arrived in the same turn of the event loop travel together.
    await Promise.resolve();
    while (lane.length > 0) {
      const batch = lane.splice(0, this.#options.batchMax).filter(isWanted);
      if (batch.length > 0) await this.#carryOut(workspace, batch);
    }
    this.#lanes.delete(workspace);
  }

  async #carryOut(workspace: string, batch: readonly Waiting<Command, Result>[]): Promise<void> {
    try {
      const results = await this.#attempt(workspace, batch);
      for (const [index, waiting] of batch.entries()) waiting.resolve(results[index] as Result);
    } catch (error) {
      if (batch.length > 1 && this.#options.classify(error) === "split") {
        for (const waiting of batch) await this.#carryOut(workspace, [waiting]);
      } else {
        const refusal = this.#options.translate(error);
        for (const waiting of batch) waiting.reject(refusal);
      }
    }
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

  // The batch is a child of its first command's request and linked to the others, so each trace leads to it.
  async #runTraced(workspace: string, batch: readonly Waiting<Command, Result>[]): Promise<readonly Result[]> {
    const first = batch[0] as Waiting<Command, Result>;
    const links = batch.slice(0, linksMax).flatMap(({ link }) => (link === undefined ? [] : [link]));
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
        span.end();
      }
    });
  }
}

/** A command whose caller has gone is dropped before it costs a transaction. */
function isWanted<Command, Result>(waiting: Waiting<Command, Result>): boolean {
  if (!waiting.signal.aborted) return true;
  waiting.reject(waiting.signal.reason);
  return false;
}

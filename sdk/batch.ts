import { type Context, context, trace } from "@opentelemetry/api";
import { deadlineFailure, RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";
import { inSpan } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** The server's limit of requests per batch. */
export const BATCH_SIZE_MAX = 500;

export interface LaneOptions<Request, Answer> {
  /** Name of the span around a batch. */
  readonly name: string;
  readonly sendOne: (request: Request, timeoutMs: number) => Promise<Answer>;
  /** Answers in the order of the requests; a request of its own failure gets an RpcFailure in its place. */
  readonly sendMany: (requests: readonly Request[], timeoutMs: number) => Promise<readonly (Answer | RpcFailure)[]>;
  readonly runtime: Runtime;
}

/** Sends what several callers ask at the same time as one RPC. */
export interface Lane<Request, Answer> {
  /** Rejects with an RpcFailure. `deadline` is a reading of the runtime's clock. */
  submit(request: Request, deadline: number): Promise<Answer>;
}

interface Waiting<Request, Answer> {
  readonly request: Request;
  readonly deadline: number;
  readonly traceContext: Context;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (failure: RpcFailure) => void;
}

/**
 * Natural batching: at most one RPC is in flight, what arrives meanwhile goes together as the next one. There is no
 * timer to wait for, so a lone caller pays one turn of the event loop, and under load the batches grow by themselves.
 */
export function createLane<Request, Answer>(options: LaneOptions<Request, Answer>): Lane<Request, Answer> {
  const { runtime } = options;
  let queue: Waiting<Request, Answer>[] = [];
  let busy = false;

  async function flush(): Promise<void> {
    try {
      while (queue.length > 0) {
        const batch = queue.slice(0, BATCH_SIZE_MAX);
        queue = queue.slice(BATCH_SIZE_MAX);
        await sendBatch(options, batch);
      }
    } finally {
      busy = false;
    }
  }

  return {
    submit(request, deadline) {
      const { promise, resolve, reject } = Promise.withResolvers<Answer>();
      const waiting: Waiting<Request, Answer> = { request, deadline, traceContext: context.active(), resolve, reject };
      const timer = runtime.timers.setTimeout(() => {
        // Already sent or not: this caller stops waiting; an unsent request must not be sent any more.
        queue = queue.filter((other) => other !== waiting);
        reject(deadlineFailure());
      }, deadline - runtime.clock.now());
      queue.push(waiting);
      if (!busy) {
        busy = true;
        // After the current turn, so that everything started in one loop travels together.
        setImmediate(() => void flush());
      }
      return promise.finally(() => runtime.timers.clearTimeout(timer));
    },
  };
}

async function sendBatch<Request, Answer>(
  options: LaneOptions<Request, Answer>,
  batch: readonly Waiting<Request, Answer>[],
): Promise<void> {
  const first = batch[0];
  if (first === undefined) return;
  const timeoutMs = Math.max(...batch.map((one) => one.deadline)) - options.runtime.clock.now();
  if (timeoutMs <= 0) {
    for (const one of batch) one.reject(deadlineFailure());
    return;
  }
  try {
    const answers = await context.with(first.traceContext, () => exchange(options, batch, timeoutMs));
    if (answers.length !== batch.length) {
      throw new Error(`${answers.length} results for ${batch.length} requests`);
    }
    for (const [index, one] of batch.entries()) {
      const answer = answers[index] as Answer | RpcFailure;
      if (answer instanceof RpcFailure) one.reject(answer);
      else one.resolve(answer);
    }
  } catch (error) {
    const failure = toRpcFailure(error);
    for (const one of batch) one.reject(failure);
  }
}

async function exchange<Request, Answer>(
  options: LaneOptions<Request, Answer>,
  batch: readonly Waiting<Request, Answer>[],
  timeoutMs: number,
): Promise<readonly (Answer | RpcFailure)[]> {
  const [first, ...others] = batch;
  if (first === undefined) return [];
  if (others.length === 0) return [await options.sendOne(first.request, timeoutMs)];
  // The batch belongs to the first caller's trace; the others find it through the links.
  const links = others.flatMap((one) => {
    const spanContext = trace.getSpanContext(one.traceContext);
    return spanContext === undefined ? [] : [{ context: spanContext }];
  });
  const requests = batch.map((one) => one.request);
  return inSpan(
    options.name,
    { [ATTRIBUTES.batchSize]: batch.length },
    () => options.sendMany(requests, timeoutMs),
    links,
  );
}

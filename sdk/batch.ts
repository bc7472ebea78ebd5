import { type Context, context, trace } from "@opentelemetry/api";
import { BACKOFF_BASE_MS, BACKOFF_CAP_MS } from "./retry.ts";
import {
  abortedFailure,
  deadlineFailure,
  invalidRequest,
  isRetryable,
  RpcFailure,
  toRpcFailure,
} from "./rpc-failure.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";
import { inSpan, traceParentOf } from "./telemetry.ts";
import { ATTRIBUTES } from "./telemetry-attributes.ts";

/** The server's limit of requests per batch. */
export const BATCH_SIZE_MAX = 500;
/** The server's limit of one request is 64 KiB; the rest is left for the frame around it. */
export const REQUEST_BYTES_MAX = 63 * 1024;
/** The server's limit of a batch is 1 MiB; the rest is left for the frames around the requests, and for their traces. */
export const BATCH_BYTES_MAX = 960 * 1024;

// However long a server asks to be left alone.
const PAUSE_MAX_MS = 30_000;

export interface LaneOptions<Request, Answer> {
  /** Name of the span around a batch. */
  readonly name: string;
  readonly sendOne: (request: Request, timeoutMs: number) => Promise<Answer>;
  /** Answers in the order of the requests; a request of its own failure gets an RpcFailure in its place. */
  readonly sendMany: (requests: readonly Request[], timeoutMs: number) => Promise<readonly (Answer | RpcFailure)[]>;
  /** The request with its own caller's trace, for one of several that travel together. */
  readonly inTrace: (request: Request, traceParent: string) => Request;
  /** How many bytes the request has as a message. Throws if it cannot be one; then it fails alone. */
  readonly bytesOf: (request: Request) => number;
  readonly runtime: Runtime;
}

/** Sends what several callers ask at the same time as one RPC. */
export interface Lane<Request, Answer> {
  /**
   * Rejects with an RpcFailure. `deadline` is a reading of the runtime's clock. A request that waits when the signal is
   * aborted is not sent; one that was sent is waited for.
   */
  submit(request: Request, deadline: number, signal?: AbortSignal): Promise<Answer>;
}

interface Waiting<Request, Answer> {
  readonly request: Request;
  readonly bytes: number;
  readonly deadline: number;
  readonly traceContext: Context;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (failure: RpcFailure) => void;
}

/**
 * Natural batching: at most one RPC is in flight, what arrives meanwhile goes together as the next one. There is no
 * timer to wait for, so a lone caller pays one turn of the event loop, and under load the batches grow by themselves.
 * After an RPC that failed as a whole the lane pauses, so that its callers' retries become one request and not many.
 */
export function createLane<Request, Answer>(options: LaneOptions<Request, Answer>): Lane<Request, Answer> {
  const { runtime } = options;
  // In order of arrival; a Set, so that one of many whose deadline is over leaves at once.
  const queue = new Set<Waiting<Request, Answer>>();
  let busy = false;
  let failures = 0;

  async function flush(): Promise<void> {
    try {
      while (queue.size > 0) {
        const failure = await sendBatch(options, takeBatch(queue));
        failures = failure === undefined ? 0 : failures + 1;
        if (failure !== undefined) {
          const backoffMs = halfJitter(runtime.random, failures - 1, BACKOFF_BASE_MS, BACKOFF_CAP_MS);
          await sleep(runtime, Math.min(Math.max(backoffMs, failure.retryDelayMs ?? 0), PAUSE_MAX_MS));
        }
      }
    } finally {
      busy = false;
    }
  }

  return {
    submit(request, deadline, signal) {
      const bytes = measure(options, request);
      if (bytes instanceof RpcFailure) return Promise.reject(bytes);
      if (signal?.aborted === true) return Promise.reject(abortedFailure());
      const { promise, resolve, reject } = Promise.withResolvers<Answer>();
      const traceContext = context.active();
      const waiting: Waiting<Request, Answer> = { request, bytes, deadline, traceContext, resolve, reject };
      const timer = runtime.timers.setTimeout(() => {
        // Already sent or not: this caller stops waiting; an unsent request must not be sent any more.
        const neverSent = queue.delete(waiting);
        reject(deadlineFailure(neverSent));
      }, deadline - runtime.clock.now());
      const onAbort = (): void => {
        if (queue.delete(waiting)) reject(abortedFailure());
      };
      signal?.addEventListener("abort", onAbort);
      queue.add(waiting);
      if (!busy) {
        busy = true;
        // After the current turn, so that everything started in one loop travels together.
        setImmediate(() => void flush());
      }
      return promise.finally(() => {
        runtime.timers.clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
      });
    },
  };
}

function measure<Request>(
  { bytesOf }: { readonly bytesOf: (request: Request) => number },
  request: Request,
): number | RpcFailure {
  try {
    const bytes = bytesOf(request);
    if (bytes <= REQUEST_BYTES_MAX) return bytes;
    return invalidRequest(`the request has ${bytes} bytes, and at most ${REQUEST_BYTES_MAX} are allowed`);
  } catch (error) {
    return invalidRequest(
      `the request cannot be sent (${error instanceof Error ? error.message : "malformed"})`,
      error,
    );
  }
}

/** Takes the oldest that fit into one message. */
function takeBatch<Request, Answer>(queue: Set<Waiting<Request, Answer>>): readonly Waiting<Request, Answer>[] {
  const batch: Waiting<Request, Answer>[] = [];
  let bytes = 0;
  for (const waiting of queue) {
    bytes += waiting.bytes;
    if (batch.length === BATCH_SIZE_MAX || (batch.length > 0 && bytes > BATCH_BYTES_MAX)) break;
    batch.push(waiting);
    queue.delete(waiting);
  }
  return batch;
}

/** Settles every request of the batch. Resolves to the failure if the RPC as a whole may be tried again. */
async function sendBatch<Request, Answer>(
  options: LaneOptions<Request, Answer>,
  batch: readonly Waiting<Request, Answer>[],
): Promise<RpcFailure | undefined> {
  const first = batch[0];
  if (first === undefined) return undefined;
  const timeoutMs = Math.max(...batch.map((one) => one.deadline)) - options.runtime.clock.now();
  if (timeoutMs <= 0) {
    for (const one of batch) one.reject(deadlineFailure());
    return undefined;
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
    return undefined;
  } catch (error) {
    const failure = toRpcFailure(error);
    for (const one of batch) one.reject(failure);
    return isRetryable(failure) ? failure : undefined;
  }
}

async function exchange<Request, Answer>(
  options: LaneOptions<Request, Answer>,
  batch: readonly Waiting<Request, Answer>[],
  timeoutMs: number,
): Promise<readonly (Answer | RpcFailure)[]> {
  const [first, ...others] = batch;
  if (first === undefined) return [];
  if (others.length === 0) return [await inTime(options, timeoutMs, () => options.sendOne(first.request, timeoutMs))];
  // The batch belongs to the first caller's trace; the others find it through the links.
  const links = others.flatMap((one) => {
    const spanContext = trace.getSpanContext(one.traceContext);
    return spanContext === undefined ? [] : [{ context: spanContext }];
  });
  const requests = batch.map(({ request, traceContext }) => {
    const traceParent = traceParentOf(traceContext);
    return traceParent === "" ? request : options.inTrace(request, traceParent);
  });
  return inSpan(
    options.name,
    { [ATTRIBUTES.batchSize]: batch.length },
    () => inTime(options, timeoutMs, () => options.sendMany(requests, timeoutMs)),
    links,
  );
}

/** Whatever the transport does, the lane goes on at the deadline. */
async function inTime<Result>(
  { runtime }: { readonly runtime: Runtime },
  timeoutMs: number,
  call: () => Promise<Result>,
): Promise<Result> {
  let timer: unknown;
  const over = new Promise<never>((_resolve, reject) => {
    timer = runtime.timers.setTimeout(() => reject(deadlineFailure()), timeoutMs);
  });
  try {
    return await Promise.race([call(), over]);
  } finally {
    runtime.timers.clearTimeout(timer);
  }
}

import { Code } from "@connectrpc/connect";
import { deadlineFailure, isRetryable, RpcFailure, toRpcFailure } from "./rpc-failure.ts";
import { type Clock, fullJitter, type Runtime, sleep } from "./runtime.ts";

/** How much retrying one process may do, so that an outage is not answered with a multiple of the load. */
export interface RetryBudget {
  /** False if the budget is used up: fail now. */
  take(): boolean;
  /** Every success pays a part of a later retry. */
  succeeded(): void;
}

// A full budget lets every settlement of a busy process try again a few times at once; then a trickle is left.
const BUDGET_MAX = 1_000;
const BUDGET_PER_SUCCESS = 0.1;
const BUDGET_PER_SECOND = 10;

/** A token bucket. It fills with time too: a process that only ever fails must get out of that. */
export function createRetryBudget(clock: Clock): RetryBudget {
  let tokens = BUDGET_MAX;
  let filledAt = clock.now();
  const fill = (amount: number): void => {
    tokens = Math.min(BUDGET_MAX, tokens + amount);
  };
  return {
    take() {
      const now = clock.now();
      fill(((now - filledAt) / 1_000) * BUDGET_PER_SECOND);
      filledAt = now;
      if (tokens < 1) return false;
      tokens -= 1;
      return true;
    },
    succeeded() {
      fill(BUDGET_PER_SUCCESS);
    },
  };
}

/** Backoff between tries: full jitter over 100 ms · 2ⁿ, at most 2 s. */
export const BACKOFF_BASE_MS = 100;
export const BACKOFF_CAP_MS = 2_000;

export interface RetryOptions {
  readonly runtime: Runtime;
  /** Undefined where something else keeps retries from adding up, as a lane does. */
  readonly budget?: RetryBudget;
  /** A reading of the runtime's clock. */
  readonly deadline: number;
  readonly tryTimeoutMaxMs: number;
  /** Ends the waiting between tries. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Repeats the same request while that is safe and can still help: only failures that leave it open whether the request
 * was carried out, or that say it was not, until the deadline and within the budget: a server that restarts is waited
 * for. Waits at least as long as the server asks for. Rejects with the last RpcFailure.
 */
export async function withRetries<Answer>(
  options: RetryOptions,
  call: (tryDeadline: number) => Promise<Answer>,
): Promise<Answer> {
  const { runtime, deadline, budget, signal } = options;
  let mayBeSent = false;
  let told: RpcFailure | undefined;
  for (let tries = 0; ; tries += 1) {
    const now = runtime.clock.now();
    if (now >= deadline) throw withReason(deadlineFailure(!mayBeSent), told);
    try {
      const answer = await call(Math.min(deadline, now + options.tryTimeoutMaxMs));
      budget?.succeeded();
      return answer;
    } catch (error) {
      const failure = withReason(toRpcFailure(error), told);
      told = failure;
      const backoffMs = Math.max(
        failure.retryDelayMs ?? 0,
        fullJitter(runtime.random, tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS),
      );
      if (failure.neverSent && mayBeSent) throw lastOfSeveral(failure);
      mayBeSent ||= !failure.neverSent;
      const lastTry = signal?.aborted === true || runtime.clock.now() + backoffMs >= deadline;
      if (lastTry || !isRetryable(failure) || budget?.take() === false) throw failure;
      await sleep(runtime, backoffMs, signal);
    }
  }
}

/** That the time is over says nothing about why: what an earlier try was told does. */
function withReason(failure: RpcFailure, told: RpcFailure | undefined): RpcFailure {
  const silent = failure.rpcCode === Code.DeadlineExceeded && failure.reason === "";
  if (!silent || told === undefined) return failure;
  const { rpcCode, neverSent } = failure;
  const message = told.rpcCode === Code.DeadlineExceeded ? told.message : `${failure.message}; before: ${told.message}`;
  return new RpcFailure({ message, code: rpcCode, neverSent, cause: told.cause ?? told });
}

/** What is true of the last try is not true of all: an earlier one may have been carried out. */
function lastOfSeveral({ message, rpcCode, reason, metadata, cause }: RpcFailure): RpcFailure {
  return new RpcFailure({ message, code: rpcCode, reason, metadata, cause });
}

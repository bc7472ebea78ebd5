import { deadlineFailure, isRetryable, toRpcFailure } from "./rpc-failure.ts";
import { fullJitter, type Runtime, sleep } from "./runtime.ts";

/** How much retrying one process may do, so that an outage is not answered with a multiple of the load. */
export interface RetryBudget {
  /** False if the budget is used up: fail now. */
  take(): boolean;
  /** Every success pays a part of a later retry. */
  succeeded(): void;
}

// One failed batch is up to 500 failed calls, each of which takes one.
const BUDGET_MAX = 1_000;
const BUDGET_PER_SUCCESS = 0.1;

export function createRetryBudget(): RetryBudget {
  let tokens = BUDGET_MAX;
  return {
    take() {
      if (tokens < 1) return false;
      tokens -= 1;
      return true;
    },
    succeeded() {
      tokens = Math.min(BUDGET_MAX, tokens + BUDGET_PER_SUCCESS);
    },
  };
}

const BACKOFF_BASE_MS = 100;
const BACKOFF_CAP_MS = 2_000;

export interface RetryOptions {
  readonly runtime: Runtime;
  readonly budget: RetryBudget;
  /** A reading of the runtime's clock. */
  readonly deadline: number;
  readonly tryTimeoutMaxMs: number;
}

/**
 * Repeats the same request while that is safe and can still help: only failures that leave it open whether the request
 * was carried out, or that say it was not, until the deadline and within the budget: a server that restarts is waited
 * for. Rejects with the last RpcFailure.
 */
export async function withRetries<Answer>(
  options: RetryOptions,
  call: (tryDeadline: number) => Promise<Answer>,
): Promise<Answer> {
  const { runtime, deadline, budget } = options;
  for (let tries = 0; ; tries += 1) {
    const now = runtime.clock.now();
    if (now >= deadline) throw deadlineFailure();
    try {
      const answer = await call(Math.min(deadline, now + options.tryTimeoutMaxMs));
      budget.succeeded();
      return answer;
    } catch (error) {
      const failure = toRpcFailure(error);
      const backoffMs = Math.max(
        failure.retryDelayMs ?? 0,
        fullJitter(runtime.random, tries, BACKOFF_BASE_MS, BACKOFF_CAP_MS),
      );
      const lastTry = runtime.clock.now() + backoffMs >= deadline;
      if (lastTry || !isRetryable(failure) || !budget.take()) throw failure;
      await sleep(runtime, backoffMs);
    }
  }
}

import { anySignal, followerOf, untilAborted } from "./abort.ts";
import type { Background } from "./background.ts";
import type { ActiveCall, CallContext } from "./context.ts";
import { HoldfastClosedError, SpendAbortedError } from "./errors.ts";
import { checkSignal } from "./option-check.ts";
import type { SpendIdentity } from "./stable-key.ts";

export interface CallOptions {
  /** For the errors only; undefined where the call continues a spend that is not known yet. */
  readonly spend?: SpendIdentity | undefined;
  /** The signal of this call alone; that of `withSpend` or of a billing lease counts besides. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * The calls of the application, from asking for a grant to the settlement. Whatever spends runs through `run`.
 *
 * Abort: before the grant, `authorize` ends its wait and gives back what may have been granted. After it, the caller is
 * told at once, and `work` is carried through: a request that moves money is never cut. So `work` need not look at
 * any signal.
 */
export interface Calls {
  /**
   * Rejects with a HoldfastClosedError after `close`, with a SpendAbortedError as soon as a signal is aborted, and with
   * a TypeError on a signal that is none.
   */
  run<Value>(options: CallOptions, work: () => Promise<Value>): Promise<Value>;
  /** Throws a HoldfastClosedError after `close`. */
  assertOpen(): void;
  /** Refuses new calls. Resolves when none runs any more. */
  close(): Promise<void>;
  /** Ends the wait of the calls that have no grant yet. */
  abandon(): void;
}

export interface CallsSettings {
  readonly context: CallContext;
  readonly background: Background;
  readonly onBackgroundError: (error: unknown) => void;
}

export function createCalls({ context, background, onBackgroundError }: CallsSettings): Calls {
  const running = new Map<AbortController, Promise<unknown>>();
  let closed = false;

  function assertOpen(): void {
    if (closed && context.call.getStore() === undefined) throw new HoldfastClosedError();
  }

  function start<Value>(controller: AbortController, call: ActiveCall, work: () => Promise<Value>): Promise<Value> {
    const result = context.call.run(call, async () => work());
    const ended = result.then(
      () => undefined,
      () => undefined,
    );
    running.set(controller, ended);
    void ended.finally(() => running.delete(controller));
    context.lease.getStore()?.track(ended);
    return result;
  }

  return {
    assertOpen,
    async run({ spend, signal: own }, work) {
      if (closed && spend !== undefined) context.lease.getStore()?.asked(spend);
      assertOpen();
      checkSignal("signal", own);
      const signal = anySignal(own, context.signal.getStore());
      // One controller for each call: listeners of a common one would be slow to find among thousands.
      const controller = new AbortController();
      const call: ActiveCall = { signal: controller.signal, granted: false };
      // Aborted from the start: `authorize` says so itself, and nothing else is asked.
      if (signal?.aborted === true) controller.abort(signal.reason);
      const result = start(controller, call, work);
      if (signal === undefined || signal.aborted) return result;
      return untilAborted(followerOf(signal), result, () => {
        controller.abort(signal.reason);
        background.track(carryThrough(call, result, onBackgroundError));
        return new SpendAbortedError(call.granted, { spend, cause: signal.reason });
      });
    },
    async close() {
      closed = true;
      while (running.size > 0) await Promise.all(running.values());
    },
    abandon() {
      for (const controller of running.keys()) controller.abort(new HoldfastClosedError());
    },
  };
}

async function carryThrough(
  call: ActiveCall,
  work: Promise<unknown>,
  onError: (error: unknown) => void,
): Promise<void> {
  try {
    await work;
  } catch (error) {
    // Without a grant the error only says that the call was aborted, which the caller knows.
    if (call.granted) onError(error);
  }
}

import type { Transport } from "@connectrpc/connect";
import { type Background, createBackground } from "./background.ts";
import { type Calls, createCalls } from "./call.ts";
import { type CallContext, createCallContext } from "./context.ts";
import { type ControlPlane, createControlPlane } from "./control-plane.ts";
import type { Settings } from "./options.ts";
import { createRetryBudget, type RetryBudget } from "./retry.ts";
import { type Runtime, sleep, systemClock } from "./runtime.ts";
import { createSettlements, type Settlements } from "./settlement.ts";
import { authorize, type Decision, type SpendRequest } from "./spend.ts";

export interface AssemblyOptions extends Settings {
  readonly transport: Transport;
  /** The token of a vault key. */
  readonly vaultKey: string;
  readonly runtime: Runtime;
  /** The process's own unless given: an outage hits all clients together. */
  readonly budget?: RetryBudget;
  /** What it throws is ignored. */
  readonly onBackgroundError: ((error: unknown) => void) | undefined;
}

/** The parts of one client, for one vault key: whatever spends with it shares them. */
export interface Assembly extends Settings {
  readonly runtime: Runtime;
  readonly context: CallContext;
  readonly background: Background;
  readonly calls: Calls;
  readonly controlPlane: ControlPlane;
  readonly settlements: Settlements;
  /** `deadline` is a reading of the runtime's clock. */
  readonly authorize: (request: SpendRequest, deadline: number) => Promise<Decision>;
  /** Never throws. */
  readonly onBackgroundError: (error: unknown) => void;
  /**
   * Refuses new calls, lets those that run come to their end, and delivers the settlements that still wait, for at most
   * `timeoutMs` milliseconds. Never rejects.
   */
  close(timeoutMs: number): Promise<void>;
}

export function assemble(options: AssemblyOptions): Assembly {
  const { transport, vaultKey, runtime, timeoutMs, holdMs, vendorDeadlineMs, resendSafeForMs, maxQueued } = options;
  const onBackgroundError = contained(options.onBackgroundError);
  const context = createCallContext();
  const background = createBackground(runtime, onBackgroundError);
  const calls = createCalls({ context, background, onBackgroundError });
  const controlPlane = createControlPlane({
    transport,
    runtime,
    budget: options.budget ?? processBudget(),
    vaultKey,
    maxQueued,
    settlementsWaiting: () => background.size(),
  });
  const settlements = createSettlements({ controlPlane, runtime, background, context, onBackgroundError, timeoutMs });
  const settings: Settings = { timeoutMs, holdMs, vendorDeadlineMs, resendSafeForMs, maxQueued };
  const parts = { controlPlane, runtime, context, calls, background, settlements, ...settings };
  return {
    ...parts,
    onBackgroundError,
    authorize: (request, deadline) => authorize(parts, request, deadline),
    close: (closeMs) => closeAll(parts, closeMs),
  };
}

async function closeAll(
  { runtime, calls, background }: Pick<Assembly, "runtime" | "calls" | "background">,
  timeoutMs: number,
): Promise<void> {
  const deadline = runtime.clock.now() + timeoutMs;
  const ended = new AbortController();
  await Promise.race([calls.close(), sleep(runtime, timeoutMs, ended.signal)]);
  ended.abort();
  calls.abandon();
  // The last tries get a moment even where the calls took all the time.
  await background.close(Math.max(deadline - runtime.clock.now(), Math.min(timeoutMs, LAST_TRIES_MS)));
}

const LAST_TRIES_MS = 1_000;

/** What the application's own function throws must not end what called it. */
function contained(report: ((error: unknown) => void) | undefined): (error: unknown) => void {
  return (error) => {
    try {
      report?.(error);
    } catch {
      // There is nobody left to tell.
    }
  };
}

let sharedBudget: RetryBudget | undefined;

/** One for all clients of the process: an outage hits them together. */
function processBudget(): RetryBudget {
  sharedBudget ??= createRetryBudget(systemClock());
  return sharedBudget;
}

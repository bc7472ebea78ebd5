import type { RenewBillingLeaseResponse } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { LeaseLostError } from "./errors.ts";
import { durationToMs } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";

/** How long this process may believe to hold a lease, and what keeps that going. */
export interface LeaseTrust {
  /** Already aborted if the time ran out, even if no timer has fired yet, as after a stopped process. */
  signal(this: void): AbortSignal;
  assertHeld(this: void): void;
  lost(this: void): boolean;
  /** The control plane says that another may hold the lease, whatever this process believes. */
  lose(this: void): void;
  /** Ends the heartbeats, and waits for one that is on its way. */
  stop(): Promise<void>;
}

export interface LeaseTrustOptions {
  readonly runtime: Runtime;
  readonly fence: { readonly lease: string; readonly billingPeriod: string };
  readonly ttlMs: number;
  /** A reading of the clock from before the acquiring request was sent. */
  readonly askedAt: number;
  /** How long the lease is valid from then on. */
  readonly remainingMs: number;
  /** Renews; `deadline` is a reading of the clock. */
  readonly renew: (deadline: number) => Promise<RenewBillingLeaseResponse>;
}

const HEARTBEATS_PER_TTL = 3;
// Clocks of two machines run at slightly different speeds, and stopping takes a moment.
const MARGIN_SHARE = 0.1;

/** Trust is counted from before each request on a clock that only grows; a wall clock never decides. */
export function createLeaseTrust(options: LeaseTrustOptions): LeaseTrust {
  const { runtime, ttlMs } = options;
  const marginMs = ttlMs * MARGIN_SHARE;
  const controller = new AbortController();
  let trustedUntil = options.askedAt + options.remainingMs - marginMs;
  let stopped = false;
  let heartbeat: Promise<void> = Promise.resolve();
  let heartbeatTimer: unknown;
  let expiryTimer: unknown;

  function lose(): void {
    if (controller.signal.aborted || stopped) return;
    controller.abort(new LeaseLostError(options.fence.lease, options.fence.billingPeriod));
    clear();
  }
  function lost(): boolean {
    if (runtime.clock.now() >= trustedUntil) lose();
    return controller.signal.aborted;
  }
  function clear(): void {
    runtime.timers.clearTimeout(heartbeatTimer);
    runtime.timers.clearTimeout(expiryTimer);
  }
  function schedule(): void {
    clear();
    expiryTimer = runtime.timers.setTimeout(() => void lost(), Math.max(0, trustedUntil - runtime.clock.now()));
    heartbeatTimer = runtime.timers.setTimeout(() => {
      heartbeat = beat();
    }, ttlMs / HEARTBEATS_PER_TTL);
    // The job keeps the process alive, not its lease.
    runtime.timers.unref?.(expiryTimer);
    runtime.timers.unref?.(heartbeatTimer);
  }
  async function beat(): Promise<void> {
    if (lost() || stopped) return;
    const askedAt = runtime.clock.now();
    try {
      const answer = await options.renew(trustedUntil);
      // Judged with the old trust first: an answer that comes after its end no longer revives a lost lease.
      if (lost() || stopped) return;
      if (!answer.renewed) {
        lose();
        return;
      }
      const remainingMs = answer.remaining === undefined ? 0 : durationToMs(answer.remaining);
      trustedUntil = Math.max(trustedUntil, askedAt + remainingMs - marginMs);
    } catch {
      // Unanswered: what is trusted still stands, and the next heartbeat tries again.
    }
    if (!lost() && !stopped) schedule();
  }
  schedule();

  return {
    signal() {
      lost();
      return controller.signal;
    },
    assertHeld() {
      // Given back counts as lost: what was forgotten by the job must not send any more.
      if (stopped || lost()) throw new LeaseLostError(options.fence.lease, options.fence.billingPeriod);
    },
    lost,
    lose,
    async stop() {
      stopped = true;
      clear();
      await heartbeat;
    },
  };
}

import { LeaseAnswer, LeaseOutcome } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import type { CallContext } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { msToDuration } from "./convert.ts";
import { createLeaseTrust, type LeaseTrust } from "./lease-trust.ts";
import { translateFailure } from "./refusal.ts";
import { durationToMs } from "./rpc-failure.ts";
import type { Runtime } from "./runtime.ts";

export interface BillingLeaseOptions {
  /** Name of the job, for example "nightly-billing". */
  readonly lease: string;
  readonly billingPeriod: string;
  /** 1 s to 1 h, 30 s by default. A crashed holder keeps others out for at most this long. */
  readonly ttlMs?: number;
}

/** What the job sees of its lease. */
export interface HeldBillingLease {
  readonly lease: string;
  readonly billingPeriod: string;
  readonly holderId: string;
  readonly fencingToken: bigint;
  /** Aborted before the lease runs out. Pass it to everything that must stop then. */
  readonly signal: AbortSignal;
  /** Throws a LeaseLostError if the lease is not surely held. Call it before whatever the SDK does not send itself. */
  assertHeld(): void;
  /** Something is left for a later run: the lease is given back without closing the period. */
  incomplete(): void;
}

export type BillingLeaseResult<Value> =
  | {
      readonly acquired: true;
      readonly value: Value;
      /**
       * "completed": the name and period are closed for ever. "incomplete": free for the next run. "lost": it ran out
       * meanwhile or the release was not answered; the next run finds what is left.
       */
      readonly outcome: "completed" | "incomplete" | "lost";
    }
  | {
      readonly acquired: false;
      readonly answer: "held_by_other" | "already_completed";
      readonly holderId: string;
      /** How long the other holder still has, in milliseconds. */
      readonly remainingMs: number;
    };

export interface LeaseSettings {
  readonly controlPlane: ControlPlane;
  readonly runtime: Runtime;
  readonly context: CallContext;
  readonly timeoutMs: number;
  readonly onBackgroundError: (error: unknown) => void;
}

const TTL_DEFAULT_MS = 30_000;

/**
 * Runs `fn` while this process holds the lease, in the whole cluster alone. Not getting it is an answer, not an error.
 * Spends made inside carry the fencing token, and are refused here as soon as the lease is not surely held. What the
 * caller's own code does after `signal` was aborted cannot be stopped from here.
 */
export async function withBillingLease<Value>(
  settings: LeaseSettings,
  options: BillingLeaseOptions,
  fn: (lease: HeldBillingLease) => Promise<Value>,
): Promise<BillingLeaseResult<Value>> {
  const { runtime, controlPlane } = settings;
  const ttlMs = options.ttlMs ?? TTL_DEFAULT_MS;
  const { lease, billingPeriod } = options;
  const holderId = runtime.random.hex128();
  const askedAt = runtime.clock.now();
  const answer = await controlPlane
    .acquireLease({ lease, billingPeriod, holderId, ttl: msToDuration(ttlMs) }, askedAt + settings.timeoutMs)
    .catch((error: unknown) => {
      throw translateFailure(error, "for a billing lease", {});
    });
  const remainingMs = answer.remaining === undefined ? 0 : durationToMs(answer.remaining);
  if (answer.answer !== LeaseAnswer.ACQUIRED || answer.billingLease === undefined) {
    return {
      acquired: false,
      answer: answer.answer === LeaseAnswer.ALREADY_COMPLETED ? "already_completed" : "held_by_other",
      holderId: answer.billingLease?.holderId ?? "",
      remainingMs,
    };
  }
  const { fencingToken } = answer.billingLease;
  const fence = { lease, billingPeriod, holderId, fencingToken };
  const trust = createLeaseTrust({
    runtime,
    fence,
    ttlMs,
    askedAt,
    remainingMs,
    renew: (deadline) => controlPlane.renewLease({ ...fence, ttl: msToDuration(ttlMs) }, deadline),
  });
  let left = false;
  const held: HeldBillingLease = {
    lease,
    billingPeriod,
    holderId,
    fencingToken,
    get signal() {
      return trust.signal();
    },
    assertHeld: trust.assertHeld,
    incomplete() {
      left = true;
    },
  };
  try {
    const value = await settings.context.lease.run({ fence, assertHeld: trust.assertHeld }, () => fn(held));
    return { acquired: true, value, outcome: await release(settings, trust, fence, left) };
  } catch (error) {
    await release(settings, trust, fence, true);
    throw error;
  }
}

async function release(
  settings: LeaseSettings,
  trust: LeaseTrust,
  fence: { lease: string; billingPeriod: string; holderId: string; fencingToken: bigint },
  incomplete: boolean,
): Promise<"completed" | "incomplete" | "lost"> {
  await trust.stop();
  if (trust.lost()) return "lost";
  const outcome = incomplete ? LeaseOutcome.INCOMPLETE : LeaseOutcome.COMPLETED;
  try {
    const deadline = settings.runtime.clock.now() + settings.timeoutMs;
    const { released } = await settings.controlPlane.releaseLease({ ...fence, outcome }, deadline);
    if (!released) return "lost";
    return incomplete ? "incomplete" : "completed";
  } catch (error) {
    settings.onBackgroundError(error);
    return "lost";
  }
}

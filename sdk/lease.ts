import {
  type AcquireBillingLeaseResponse,
  LeaseAnswer,
  LeaseOutcome,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { anySignal, followerOf, untilAborted } from "./abort.ts";
import type { Background } from "./background.ts";
import type { Calls } from "./call.ts";
import type { CallContext, LeaseGuard } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { msToDuration } from "./convert.ts";
import { SpendAbortedError } from "./errors.ts";
import { createLeaseLedger } from "./lease-ledger.ts";
import { createLeaseTrust, type LeaseTrust } from "./lease-trust.ts";
import { checkNumber, checkSignal, refuseUnknown } from "./option-check.ts";
import { translateFailure } from "./refusal.ts";
import { durationToMs } from "./rpc-failure.ts";
import { type Runtime, sleep } from "./runtime.ts";
import type { SpendIdentity } from "./stable-key.ts";

/** Which job of which period is to run in one process at a time. */
export interface BillingLeaseOptions {
  /** Name of the job, for example "nightly-billing". */
  readonly lease: string;
  readonly billingPeriod: string;
  /** 1 s to 1 h, 30 s by default. A crashed holder keeps others out for at most this long. */
  readonly ttlMs?: number;
  /**
   * Ends the wait for the lease, and inside the job the wait of every spend for its grant; the signal of the lease is
   * aborted with it. The lease is then given back as incomplete.
   */
  readonly signal?: AbortSignal;
}

/** What the job sees of its lease. */
export interface HeldBillingLease {
  readonly lease: string;
  readonly billingPeriod: string;
  readonly holderId: string;
  readonly fencingToken: bigint;
  /** Aborted before the lease runs out, and with the signal of the options. Pass it to everything that must stop then. */
  readonly signal: AbortSignal;
  /** Throws a LeaseLostError if the lease is not surely held. Call it before whatever the SDK does not send itself. */
  assertHeld(): void;
  /** Something is left for a later run: the lease is given back without closing the period. */
  incomplete(): void;
}

/** How a billing job ended here. Not getting the lease is an answer: `acquired` tells the two apart. */
export type BillingLeaseResult<Value> =
  | {
      readonly acquired: true;
      readonly value: Value;
      /**
       * "completed": the name and period are closed for ever. "incomplete": free for the next run, because the job said
       * so, was aborted, or left spends unsettled. "lost": it ran out meanwhile or the release was not answered; the
       * next run finds what is left.
       */
      readonly outcome: "completed" | "incomplete" | "lost";
      /**
       * The spends of the job that are neither committed nor refused by the vendor: denied, in progress, in doubt, not
       * answered, aborted. The job may have swallowed their errors.
       */
      readonly unsettled: readonly SpendIdentity[];
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
  readonly calls: Calls;
  readonly background: Background;
  readonly timeoutMs: number;
  readonly vendorDeadlineMs: number;
  readonly onBackgroundError: (error: unknown) => void;
}

const TTL_DEFAULT_MS = 30_000;
const TTL_MIN_MS = 1_000;
const TTL_MAX_MS = 3_600_000;

const OPTIONS = { lease: true, billingPeriod: true, ttlMs: true, signal: true } as const satisfies Record<
  keyof BillingLeaseOptions,
  true
>;

/**
 * Runs `fn` while this process holds the lease, in the whole cluster alone. Not getting it is an answer, not an error.
 * Spends made inside carry the fencing token, and are refused here as soon as the lease is not surely held. What the
 * caller's own code does after `signal` was aborted cannot be stopped from here. The period is closed only if `fn`
 * returned and every spend made inside is committed or was refused by the vendor.
 */
export async function withBillingLease<Value>(
  settings: LeaseSettings,
  options: BillingLeaseOptions,
  fn: (lease: HeldBillingLease) => Promise<Value>,
): Promise<BillingLeaseResult<Value>> {
  refuseUnknown("the options of a billing lease", options, OPTIONS);
  checkSignal("signal", options.signal);
  if (typeof fn !== "function") throw new TypeError("The job of a billing lease must be a function.");
  settings.calls.assertOpen();
  const { runtime, controlPlane, context } = settings;
  const ttlMs = options.ttlMs ?? TTL_DEFAULT_MS;
  checkNumber("ttlMs", ttlMs, { min: TTL_MIN_MS, max: TTL_MAX_MS, unit: "milliseconds" });
  const { lease, billingPeriod } = options;
  const signal = anySignal(options.signal, context.signal.getStore());
  const holderId = runtime.random.hex128();
  const askedAt = runtime.clock.now();
  const answer = await acquire(settings, { lease, billingPeriod, holderId, ttlMs }, signal);
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
  const ledger = createLeaseLedger();
  const heldSignal = signal === undefined ? undefined : AbortSignal.any([trust.signal(), signal]);
  const held: HeldBillingLease = {
    lease,
    billingPeriod,
    holderId,
    fencingToken,
    get signal() {
      const own = trust.signal();
      return heldSignal ?? own;
    },
    assertHeld: trust.assertHeld,
    incomplete() {
      left = true;
    },
  };
  const running = new Set<Promise<unknown>>();
  const guard: LeaseGuard = {
    fence,
    assertHeld: trust.assertHeld,
    fenced: trust.lose,
    asked: ledger.asked,
    settled: ledger.settled,
    track(call) {
      running.add(call);
      void call.finally(() => running.delete(call));
    },
  };
  const job = (): Promise<Value> => context.lease.run(guard, () => fn(held));
  try {
    const value = await (signal === undefined ? job() : context.signal.run(signal, job));
    await untilEnded(settings, running);
    const unsettled = ledger.unsettled();
    const incomplete = left || unsettled.length > 0 || signal?.aborted === true;
    return { acquired: true, value, outcome: await release(settings, trust, fence, incomplete), unsettled };
  } catch (error) {
    await untilEnded(settings, running);
    await release(settings, trust, fence, true);
    throw error;
  }
}

/** Waits for the spends that the job did not wait for, such as aborted ones: they still need the lease. */
async function untilEnded(settings: LeaseSettings, running: ReadonlySet<Promise<unknown>>): Promise<void> {
  if (running.size === 0) return;
  const over = new AbortController();
  const ended = async (): Promise<void> => {
    while (running.size > 0) await Promise.all(running);
  };
  // A vendor call of the application itself may never end.
  const limitMs = settings.timeoutMs + settings.vendorDeadlineMs;
  await Promise.race([ended(), sleep(settings.runtime, limitMs, over.signal)]);
  over.abort();
}

/** Asks for the lease. Given up, what may have been acquired meanwhile is given back in the background. */
async function acquire(
  settings: LeaseSettings,
  request: {
    readonly lease: string;
    readonly billingPeriod: string;
    readonly holderId: string;
    readonly ttlMs: number;
  },
  signal: AbortSignal | undefined,
): Promise<AcquireBillingLeaseResponse> {
  const { controlPlane, runtime } = settings;
  const { ttlMs, ...holder } = request;
  const aborted = (): Error => new SpendAbortedError(false, { cause: signal?.reason });
  if (signal?.aborted === true) throw aborted();
  const deadline = runtime.clock.now() + settings.timeoutMs;
  const answer = controlPlane
    .acquireLease({ ...holder, ttl: msToDuration(ttlMs) }, deadline, signal)
    .catch((error: unknown) => {
      throw translateFailure(error, "for a billing lease", {});
    });
  if (signal === undefined) return answer;
  return untilAborted(followerOf(signal), answer, () => {
    settings.background.track(giveBack(settings, holder, answer));
    return aborted();
  });
}

async function giveBack(
  settings: LeaseSettings,
  holder: { readonly lease: string; readonly billingPeriod: string; readonly holderId: string },
  acquiring: Promise<AcquireBillingLeaseResponse>,
): Promise<void> {
  try {
    const { answer, billingLease } = await acquiring;
    if (answer !== LeaseAnswer.ACQUIRED || billingLease === undefined) return;
    const { fencingToken } = billingLease;
    const deadline = settings.runtime.clock.now() + settings.timeoutMs;
    await settings.controlPlane.releaseLease({ ...holder, fencingToken, outcome: LeaseOutcome.INCOMPLETE }, deadline);
  } catch {
    // Not acquired, or not given back: it runs out by itself.
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

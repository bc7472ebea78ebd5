import { anySignal } from "./abort.ts";
import { assemble } from "./assembly.ts";
import { checkSpend, type SpendOption } from "./context.ts";
import { type BillingLeaseOptions, type BillingLeaseResult, type HeldBillingLease, withBillingLease } from "./lease.ts";
import { checkNumber, checkSignal, refuseUnknown } from "./option-check.ts";
import { checkOptions, type HoldfastOptions } from "./options.ts";
import { reconcile, RECONCILE_OPTIONS, type ReconcileOptions, type ReconcileReport } from "./reconcile.ts";
import { createRetryBudget } from "./retry.ts";
import { type Runtime, systemClock, systemRandom, systemTimers } from "./runtime.ts";
import type { OnDecline } from "./stripe-call.ts";
import { checkAllowed } from "./stripe-plan.ts";
import { type GuardedStripe, guardStripe, type StripeLike } from "./stripe.ts";
import { createDefaultTransport } from "./transport.ts";
import {
  type SignalOption,
  spendAtVendor,
  type SpendResult,
  type VendorGrant,
  type VendorReceipt,
  type VendorSpend,
} from "./vendor-call.ts";

/** A client of the control plane. Make one per process and vault key, and close it before the process ends. */
export interface Holdfast {
  /** A guarded view of a Stripe client; the given one stays as it is. Throws a TypeError on a wrong option. */
  stripe<Client extends StripeLike>(stripe: Client, options?: StripeOptions): GuardedStripe<Client>;
  /**
   * Every guarded Stripe call inside `fn` is this spend, and ends its wait for a grant with `signal`. Throws a TypeError
   * on a malformed spend.
   */
  withSpend<Value>(spend: SpendOption, fn: () => Value, options?: SignalOption): Value;
  /**
   * Spends at any vendor: `callback` makes the call, at most once per generation. Rejects with a TypeError or RangeError
   * on malformed arguments, else with a HoldfastError; where the callback's own error says what became of the charge,
   * with that.
   */
  spend(
    spend: SpendOption,
    what: VendorSpend,
    callback: (grant: VendorGrant) => Promise<VendorReceipt>,
    options?: SignalOption,
  ): Promise<SpendResult>;
  /** Runs a billing job in one process of the cluster at a time. Rejects with what `fn` throws, or a HoldfastError. */
  withBillingLease<Value>(
    options: BillingLeaseOptions,
    fn: (lease: HeldBillingLease) => Promise<Value>,
  ): Promise<BillingLeaseResult<Value>>;
  /**
   * Asks Stripe about everything of this vault key that is not settled, and settles what Stripe can answer; for a
   * service that keeps its Stripe credential itself. Run it from a timer; several processes at once do no harm. Takes
   * the plain client. With `since` both sides are compared too, and the report lists what they do not agree on. Rejects
   * with a HoldfastError if the control plane does not answer.
   */
  reconcile(stripe: StripeLike, options?: ReconcileOptions): Promise<ReconcileReport>;
  /**
   * Waits for aborted calls that are carried through, and tries to deliver every settlement that waits, for at most
   * `timeoutMs` milliseconds each; the client's own by default. For a handler that may be frozen when it returns.
   * Resolves to true if nothing is left, never rejects.
   */
  flush(options?: CloseOptions): Promise<boolean>;
  /**
   * Refuses new spends with a HoldfastClosedError, lets those that run come to their end, and delivers the settlements
   * that still wait, for at most `timeoutMs` milliseconds; the client's own by default. What is left then is found by
   * the reconciler, and `onBackgroundError` is told. Never rejects; a second call waits for the first.
   */
  close(options?: CloseOptions): Promise<void>;
}

/** Settings of one guarded Stripe client. */
export interface StripeOptions {
  /** After a decline: give the headroom back ("cancel", the default), or keep the PaymentIntent for another card. */
  readonly onDecline?: OnDecline;
  /** Writes to let past the guard, for example ["POST /v1/account_links"]; none that moves money. None by default. */
  readonly allow?: readonly string[];
}

const STRIPE_OPTIONS = { onDecline: true, allow: true } as const satisfies Record<keyof StripeOptions, true>;

/** How long `flush` and `close` wait; the client's own `timeoutMs` by default. */
export interface CloseOptions {
  /** In milliseconds, 1 to 600,000. */
  readonly timeoutMs?: number;
}

/**
 * Makes a client of the control plane; one per process is meant. It connects when it is first used. Throws a TypeError
 * on a wrong option, also on settings under which a charge could outlive its permission.
 */
export function createHoldfast(options: HoldfastOptions): Holdfast {
  const settings = checkOptions(options);
  const { timeoutMs } = settings;
  const runtime: Runtime = {
    clock: options.clock ?? systemClock(),
    timers: options.timers ?? systemTimers,
    random: options.random ?? systemRandom,
  };
  const own = options.transport === undefined ? createDefaultTransport(options.baseUrl ?? "", options.tls) : undefined;
  const assembly = assemble({
    ...settings,
    transport: options.transport ?? (own as NonNullable<typeof own>),
    vaultKey: options.vaultKey,
    runtime,
    ...(options.clock === undefined ? {} : { budget: createRetryBudget(runtime.clock) }),
    onBackgroundError: options.onBackgroundError,
  });
  const { background, calls, context, controlPlane } = assembly;
  let closed: Promise<void> | undefined;
  return {
    stripe(stripe, guardOptions = {}) {
      refuseUnknown("the options of stripe", guardOptions, STRIPE_OPTIONS);
      const { onDecline = "cancel", allow = [] } = guardOptions;
      if (onDecline !== "cancel" && onDecline !== "keep") throw new TypeError('onDecline must be "cancel" or "keep".');
      return guardStripe(stripe, { ...assembly, onDecline, allow: checkAllowed(allow) });
    },
    withSpend(spend, fn, { signal } = {}) {
      checkSpend(spend);
      checkSignal("signal", signal);
      const both = anySignal(signal, context.signal.getStore());
      const run = () => context.spend.run(spend, fn);
      return both === undefined ? run() : context.signal.run(both, run);
    },
    spend: (spend, what, callback, callOptions) => spendAtVendor(assembly, spend, what, callback, callOptions),
    withBillingLease: (leaseOptions, fn) => withBillingLease(assembly, leaseOptions, fn),
    async reconcile(stripe, reconcileOptions = {}) {
      refuseUnknown("the options of reconcile", reconcileOptions, RECONCILE_OPTIONS);
      calls.assertOpen();
      return reconcile({ controlPlane, runtime, timeoutMs }, stripe, reconcileOptions);
    },
    flush: (flushOptions) => background.flush(closeTimeout(flushOptions, timeoutMs)),
    close(closeOptions) {
      closed ??= assembly.close(closeTimeout(closeOptions, timeoutMs)).finally(() => own?.close());
      return closed;
    },
  };
}

function closeTimeout(options: CloseOptions = {}, byDefault: number): number {
  const { timeoutMs = byDefault } = options;
  checkNumber("timeoutMs", timeoutMs, { min: 1, max: 600_000, unit: "milliseconds" });
  return timeoutMs;
}

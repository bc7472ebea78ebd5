import type { Interceptor, Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type Stripe from "stripe";
import { createBackground } from "./background.ts";
import { createCallContext, type SpendOption } from "./context.ts";
import { createControlPlane } from "./control-plane.ts";
import { type BillingLeaseOptions, type BillingLeaseResult, type HeldBillingLease, withBillingLease } from "./lease.ts";
import {
  type Clock,
  type Random,
  type Runtime,
  systemClock,
  systemRandom,
  systemTimers,
  type Timers,
} from "./runtime.ts";
import { createSettlements } from "./settlement.ts";
import { authorize, type SpendRequest } from "./spend.ts";
import { checkIdentity } from "./stable-key.ts";
import type { OnDecline } from "./stripe-call.ts";
import { type GuardedStripe, guardStripe } from "./stripe.ts";
import { traceInterceptor } from "./telemetry.ts";
import {
  spendAtVendor,
  type SpendResult,
  type VendorGrant,
  type VendorReceipt,
  type VendorSpend,
} from "./vendor-call.ts";

export interface HoldfastOptions {
  /** Address of the control plane, for example "https://holdfast.internal:8443". */
  readonly baseUrl: string;
  /** The token of a vault key, "vk_…". */
  readonly vaultKey: string;
  /** How long one call waits for the control plane and for other attempts, in milliseconds. 30 s by default. */
  readonly timeoutMs?: number;
  /** How long a grant lasts, in milliseconds, 5 s to 24 h. 10 min by default. */
  readonly holdMs?: number;
  /** How long one call tries to get the vendor's answer, in milliseconds. 30 s by default. */
  readonly vendorDeadlineMs?: number;
  /** How long the vendor surely remembers a key, in milliseconds, at most 23 h, which is the default. */
  readonly resendSafeForMs?: number;
  /** Instead of gRPC over HTTP/2 to `baseUrl`; must send the vault key itself. */
  readonly transport?: Transport;
  /** Learns of settlements that could not be delivered and of refusals of settled spends. Ignored by default. */
  readonly onBackgroundError?: (error: unknown) => void;
  readonly clock?: Clock;
  readonly timers?: Timers;
  readonly random?: Random;
}

export interface Holdfast {
  /** A guarded view of a Stripe client; the given one stays as it is. */
  stripe(stripe: Stripe, options?: { readonly onDecline?: OnDecline }): GuardedStripe;
  /** Every guarded Stripe call inside `fn` is this spend. */
  withSpend<Value>(spend: SpendOption, fn: () => Value): Value;
  /** Spends at any vendor: `callback` makes the call, at most once per generation. */
  spend(
    spend: SpendOption,
    what: VendorSpend,
    callback: (grant: VendorGrant) => Promise<VendorReceipt>,
  ): Promise<SpendResult>;
  /** Runs a billing job in one process of the cluster at a time. */
  withBillingLease<Value>(
    options: BillingLeaseOptions,
    fn: (lease: HeldBillingLease) => Promise<Value>,
  ): Promise<BillingLeaseResult<Value>>;
  /** Delivers the settlements that still wait. Call it before the process ends. */
  close(): Promise<void>;
}

const RESEND_SAFE_FOR_MAX_MS = 23 * 3_600_000;
const HOLD_MIN_MS = 5_000;
const HOLD_MAX_MS = 24 * 3_600_000;
const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;
const VENDOR_DEADLINES_PER_HOLD = 3;

/** Throws a TypeError on settings under which a charge could outlive its permission. */
export function createHoldfast(options: HoldfastOptions): Holdfast {
  const settings = checkOptions(options);
  const { timeoutMs } = settings;
  const runtime: Runtime = {
    clock: options.clock ?? systemClock(),
    timers: options.timers ?? systemTimers,
    random: options.random ?? systemRandom,
  };
  const onBackgroundError = options.onBackgroundError ?? (() => undefined);
  const context = createCallContext();
  const controlPlane = createControlPlane(options.transport ?? defaultTransport(options), runtime);
  const background = createBackground(runtime, onBackgroundError);
  const settlements = createSettlements({ controlPlane, runtime, background, onBackgroundError, timeoutMs });
  const authorizeSpend = (request: SpendRequest, deadline: number) =>
    authorize({ controlPlane, runtime, context, ...settings }, request, deadline);
  const shared = { runtime, context, controlPlane, settlements, authorize: authorizeSpend, ...settings };
  return {
    stripe: (stripe, guardOptions = {}) =>
      guardStripe(stripe, { ...shared, onDecline: guardOptions.onDecline ?? "cancel" }),
    withSpend(spend, fn) {
      checkIdentity(spend);
      return context.spend.run(spend, fn);
    },
    spend: (spend, what, callback) => spendAtVendor(shared, spend, what, callback),
    withBillingLease: (leaseOptions, fn) => withBillingLease({ ...shared, onBackgroundError }, leaseOptions, fn),
    close: () => background.close(timeoutMs),
  };
}

function checkOptions(options: HoldfastOptions) {
  const {
    timeoutMs = 30_000,
    holdMs = 600_000,
    vendorDeadlineMs = 30_000,
    resendSafeForMs = RESEND_SAFE_FOR_MAX_MS,
  } = options;
  const inRange = (name: string, value: number, min: number, max: number): void => {
    if (!Number.isFinite(value) || value < min || value > max) {
      throw new TypeError(`${name} must be ${min} to ${max} milliseconds; got ${value}.`);
    }
  };
  inRange("timeoutMs", timeoutMs, 1, 600_000);
  inRange("holdMs", holdMs, HOLD_MIN_MS, HOLD_MAX_MS);
  inRange("vendorDeadlineMs", vendorDeadlineMs, 1, HOLD_MAX_MS);
  inRange("resendSafeForMs", resendSafeForMs, 1, RESEND_SAFE_FOR_MAX_MS);
  if (vendorDeadlineMs * VENDOR_DEADLINES_PER_HOLD > holdMs) {
    throw new TypeError(
      `holdMs (${holdMs}) must be at least three times vendorDeadlineMs (${vendorDeadlineMs}), so that a slow vendor ` +
        "call ends while its hold is surely running. Raise holdMs or lower vendorDeadlineMs.",
    );
  }
  return { timeoutMs, holdMs, vendorDeadlineMs, resendSafeForMs };
}

function defaultTransport(options: HoldfastOptions): Transport {
  const authorization: Interceptor = (next) => (request) => {
    request.header.set("Authorization", `Bearer ${options.vaultKey}`);
    return next(request);
  };
  // No pingIntervalMs: pinging a session that a restarting server has closed throws outside of every call.
  return createGrpcTransport({
    baseUrl: options.baseUrl,
    interceptors: [traceInterceptor, authorization],
    readMaxBytes: MESSAGE_BYTES_MAX,
  });
}

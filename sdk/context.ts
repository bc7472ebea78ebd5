import { AsyncLocalStorage } from "node:async_hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { LeaseFenceSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import { checkMoney, type DecimalMoney } from "./money.ts";
import { refuseUnknown } from "./option-check.ts";
import { checkIdentity, type SpendIdentity } from "./stable-key.ts";

/** A spend as a caller names it for one call. */
export interface SpendOption extends SpendIdentity {
  /**
   * The generation that was answered with SpendAlreadyFailedError: asks for the next one. A number and not a flag, so
   * that a retried closure asks for the same generation every time.
   */
  readonly retryAfterGeneration?: number;
  /**
   * The most that the call may cost, for calls whose amount only the vendor computes, such as a subscription or a
   * Checkout Session. Held until the real amount is known, and compared like an amount on every repeat.
   */
  readonly upTo?: DecimalMoney;
}

/** What a billing lease means for the spends made under it. */
export interface LeaseGuard {
  readonly fence: MessageInitShape<typeof LeaseFenceSchema>;
  /** Throws a LeaseLostError as soon as the lease is not surely held any more. */
  assertHeld(): void;
  /** The control plane has refused a spend because the lease is no longer this process's: aborts its signal. */
  fenced(): void;
  /** A spend is asked for under the lease. Until `settled`, the job has left something for a later run. */
  asked(spend: SpendIdentity): void;
  /** The spend of this authorization is committed, or the vendor refused it: nothing is left of it. */
  settled(authorization: string): void;
  /** A call runs under the lease, which is not given back before the call has ended. Never rejects. */
  track(call: Promise<unknown>): void;
}

/** One call of the application, from its first request to the settlement of its spend. */
export interface ActiveCall {
  /** Ends the wait for a grant. From then on the call is carried through. */
  readonly signal: AbortSignal | undefined;
  /** Whether the call was granted: from then on something may be sent. */
  granted: boolean;
}

/**
 * What follows a caller through its asynchronous calls. One per client, so that two clients do not mix. The signal is
 * that of `withSpend` or of the billing lease; a signal of the call itself comes besides (see `Calls.run`).
 */
export interface CallContext {
  readonly spend: AsyncLocalStorage<SpendOption>;
  readonly signal: AsyncLocalStorage<AbortSignal>;
  readonly lease: AsyncLocalStorage<LeaseGuard>;
  readonly call: AsyncLocalStorage<ActiveCall>;
}

export function createCallContext(): CallContext {
  return {
    spend: new AsyncLocalStorage(),
    signal: new AsyncLocalStorage(),
    lease: new AsyncLocalStorage(),
    call: new AsyncLocalStorage(),
  };
}

const SPEND_PROPERTIES = {
  customerId: true,
  billingPeriod: true,
  purpose: true,
  retryAfterGeneration: true,
  upTo: true,
} as const satisfies Record<keyof SpendOption, true>;

const GENERATION_MAX = 1_000_000;

/** Throws a TypeError or RangeError that names the member of `upTo` that is wrong. */
export function checkUpTo(upTo: DecimalMoney): void {
  if (typeof upTo !== "object" || upTo === null) {
    throw new TypeError('spend.upTo must be money, such as { amount: "49.00", currency: "usd" }.');
  }
  checkMoney(upTo, "spend.upTo");
  if (!/[1-9]/.test(upTo.amount)) {
    throw new RangeError(
      `spend.upTo.amount must be above 0, as it is what is held; got ${JSON.stringify(upTo.amount)}. State the most ` +
        "the call may cost.",
    );
  }
}

/** Throws a TypeError that names what a caller without types got wrong in its spend. */
export function checkSpend(spend: SpendOption): void {
  refuseUnknown("spend", spend, SPEND_PROPERTIES);
  checkIdentity(spend);
  if (spend.upTo !== undefined) checkUpTo(spend.upTo);
  const { retryAfterGeneration: generation } = spend;
  if (generation === undefined) return;
  if (!Number.isInteger(generation) || generation < 0 || generation > GENERATION_MAX) {
    throw new TypeError(
      `spend.retryAfterGeneration must be the whole number that SpendAlreadyFailedError carries; got ${String(generation)}.`,
    );
  }
}

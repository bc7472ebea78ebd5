import { AsyncLocalStorage } from "node:async_hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { LeaseFenceSchema } from "@holdfast/api/holdfast/v1/spend_pb";
import type { DecimalMoney } from "./money.ts";
import type { SpendIdentity } from "./stable-key.ts";

/** A spend as a caller names it for one call. */
export interface SpendOption extends SpendIdentity {
  /**
   * The generation that was answered with SpendAlreadyFailedError: asks for the next one. A number and not a flag, so
   * that a retried closure asks for the same generation every time.
   */
  readonly retryAfterGeneration?: number;
  /**
   * The most that the call may cost, for calls whose amount only the vendor computes, such as a subscription or a
   * Checkout Session. Held until the real amount is known. Compared like an amount on every repeat.
   */
  readonly upTo?: DecimalMoney;
}

/** What a billing lease means for the spends made under it. */
export interface LeaseGuard {
  readonly fence: MessageInitShape<typeof LeaseFenceSchema>;
  /** Throws a LeaseLostError as soon as the lease is not surely held any more. */
  assertHeld(): void;
}

/** What follows a caller through its asynchronous calls. One per client, so that two clients do not mix. */
export interface CallContext {
  readonly spend: AsyncLocalStorage<SpendOption>;
  readonly lease: AsyncLocalStorage<LeaseGuard>;
}

export function createCallContext(): CallContext {
  return { spend: new AsyncLocalStorage(), lease: new AsyncLocalStorage() };
}

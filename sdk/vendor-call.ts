import { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type { Calls } from "./call.ts";
import type { CallContext, SpendOption } from "./context.ts";
import { toDecimalMoney } from "./convert.ts";
import { NotChargedError, SpendInDoubtError, SpendInProgressError } from "./errors.ts";
import { checkMoney, type DecimalMoney } from "./money.ts";
import { checkSignal, refuseUnknown } from "./option-check.ts";
import type { Runtime } from "./runtime.ts";
import type { NoCharge, Settlements } from "./settlement.ts";
import type { Decision, Grant, SpendRequest } from "./spend.ts";

/** What is to be spent, at any vendor. */
export interface VendorSpend {
  /** A decimal string in major units, for example "0.0079". */
  readonly amount: string;
  /** Three lower-case letters. */
  readonly currency: string;
  /** A lower-case word, for example "twilio". */
  readonly vendor: string;
  /** Method and path template of the call, for example "POST /emails". */
  readonly endpoint: string;
  /** The vendor's account, empty for the platform's own. */
  readonly vendorAccount?: string;
}

/** What the callback may use. It sends once: after it threw, the outcome counts as unknown. */
export interface VendorGrant {
  readonly idempotencyKey: string;
  readonly authorization: string;
  readonly generation: number;
  /**
   * Throws if the hold or the billing lease has run out meanwhile. Call it once, right before sending: thrown by the
   * first call it proves that nothing was sent, thrown by a later one it proves nothing.
   */
  assertHeld(): void;
}

/** What the vendor did. */
export interface VendorReceipt {
  /** The vendor's id of what was bought. */
  readonly vendorReference: string;
  /** What it really cost, if not the authorized amount. */
  readonly amount?: string;
}

/** What `holdfast.spend` spent, in this call or in an earlier one. */
export interface SpendResult {
  /** Name of the authorization, "authorizations/…". */
  readonly authorization: string;
  /** The vendor's id of what was bought. */
  readonly vendorReference: string;
  /** What it really cost. */
  readonly money: DecimalMoney;
  /** True if an earlier call had spent it: the callback did not run. */
  readonly alreadyCommitted: boolean;
}

export interface VendorCallSettings {
  readonly runtime: Runtime;
  readonly calls: Calls;
  readonly context: CallContext;
  readonly settlements: Settlements;
  readonly authorize: (request: SpendRequest, deadline: number) => Promise<Decision>;
  readonly timeoutMs: number;
}

const SPEND_PROPERTIES = {
  amount: true,
  currency: true,
  vendor: true,
  endpoint: true,
  vendorAccount: true,
} as const satisfies Record<keyof VendorSpend, true>;

/** Options of one call. */
export interface SignalOption {
  /**
   * Ends the wait for a grant at once; nothing is sent then. Aborted later, the caller is told at once with a
   * SpendAbortedError, and the vendor call is carried through and settled in the background.
   */
  readonly signal?: AbortSignal;
}

/**
 * Spends at a vendor that this SDK does not know. The callback runs at most once per generation, since nobody knows
 * whether the vendor remembers a key. It throws a NotChargedError if the vendor certainly did not charge. Throws a
 * TypeError or RangeError on malformed arguments, and one of the SDK's errors otherwise.
 */
export async function spendAtVendor(
  settings: VendorCallSettings,
  spend: SpendOption,
  what: VendorSpend,
  callback: (grant: VendorGrant) => Promise<VendorReceipt>,
  { signal }: SignalOption = {},
): Promise<SpendResult> {
  // Also a call that is refused for its arguments leaves its customer to a later run of the job.
  if (typeof spend === "object" && spend !== null) settings.context.lease.getStore()?.asked(spend);
  refuseUnknown("the description of what is spent", what, SPEND_PROPERTIES);
  checkSignal("signal", signal);
  if (typeof callback !== "function") throw new TypeError("The callback that calls the vendor must be a function.");
  return settings.calls.run({ spend, signal }, () => spendOnce(settings, spend, what, callback));
}

async function spendOnce(
  settings: VendorCallSettings,
  spend: SpendOption,
  what: VendorSpend,
  callback: (grant: VendorGrant) => Promise<VendorReceipt>,
): Promise<SpendResult> {
  const money = { currency: what.currency, amount: what.amount };
  checkMoney(money);
  const request: SpendRequest = {
    spend,
    money,
    vendor: what.vendor,
    endpoint: what.endpoint,
    settlement: Settlement.SEND_ONCE,
    vendorAccount: what.vendorAccount ?? "",
  };
  const decision = await settings.authorize(request, settings.runtime.clock.now() + settings.timeoutMs);
  if (decision.kind === "unfinished") {
    const { name, vendorReference, vendorState } = decision.authorization;
    throw new SpendInProgressError({ spend, authorization: name, vendorReference, vendorState });
  }
  if (decision.kind === "already_committed") {
    const { name, vendorReference, committedAmount } = decision.authorization;
    return {
      authorization: name,
      vendorReference,
      money: toDecimalMoney(committedAmount) ?? money,
      alreadyCommitted: true,
    };
  }
  return runCallback(settings, decision.grant, money, callback);
}

async function runCallback(
  settings: VendorCallSettings,
  grant: Grant,
  money: DecimalMoney,
  callback: (grant: VendorGrant) => Promise<VendorReceipt>,
): Promise<SpendResult> {
  const { settlements } = settings;
  const { spend, authorization } = grant;
  const check = createHeldCheck(settings.runtime, grant);
  let receipt: VendorReceipt;
  let charged: DecimalMoney;
  try {
    receipt = await callback({
      idempotencyKey: grant.idempotencyKey,
      authorization,
      generation: grant.generation,
      assertHeld: check.assertHeld,
    });
    charged = { currency: money.currency, amount: receipt.amount ?? money.amount };
    checkMoney(charged);
    if (typeof receipt.vendorReference !== "string" || receipt.vendorReference === "") {
      throw new TypeError("The callback must return { vendorReference }, the vendor's id of what was bought.");
    }
  } catch (error) {
    const proof = check.provesNothingSent(error) ? { evidence: "never_sent" as const } : noChargeOf(error);
    if (proof !== undefined) {
      await settlements.void(grant, proof);
      throw error;
    }
    const reason = `the callback failed (${error instanceof Error ? error.name : typeof error})`;
    await settlements.reportUnknown(grant, reason);
    throw new SpendInDoubtError(reason, { spend, authorization, cause: error });
  }
  const { vendorReference } = receipt;
  await settlements.commit(authorization, { money: charged, vendorReference, attemptId: grant.attemptId });
  return { authorization, vendorReference, money: charged, alreadyCommitted: false };
}

function noChargeOf(error: unknown): NoCharge | undefined {
  if (!(error instanceof NotChargedError)) return undefined;
  const { vendorStatus } = error;
  return vendorStatus === undefined
    ? { evidence: "never_sent" }
    : { evidence: "vendor_refused", status: vendorStatus, replayed: false };
}

/** Whether the grant may still be used, and whether an error of that question came before anything was sent. */
function createHeldCheck(runtime: Runtime, grant: Grant) {
  let passed = false;
  let firstError: unknown;
  return {
    assertHeld(this: void): void {
      try {
        grant.lease?.assertHeld();
        if (runtime.clock.now() >= grant.holdUntil) throw holdRanOut(grant, passed);
        passed = true;
      } catch (error) {
        // Once the check has passed, the callback may have sent.
        if (!passed) firstError ??= error;
        throw error;
      }
    },
    provesNothingSent: (error: unknown): boolean => firstError !== undefined && error === firstError,
  };
}

function holdRanOut({ spend, authorization }: Grant, mayHaveSent: boolean): Error {
  return mayHaveSent
    ? new SpendInDoubtError("the hold ran out while the callback was at it", { spend, authorization })
    : new NotChargedError({ message: "Not sent: the hold ran out before the call.", spend, authorization });
}

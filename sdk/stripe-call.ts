import { type Authorization, Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type { LeaseGuard, SpendOption } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { SpendAlreadyCommittedError, SpendIdentityMissingError, SpendUnsupportedError } from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { translateFailure } from "./refusal.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";
import type { BindResult, Settlements } from "./settlement.ts";
import type { Decision, Grant, SpendRequest } from "./spend.ts";
import { stableKey } from "./stable-key.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { bodyFingerprint, credentialFingerprint, type FormField, isExpand } from "./stripe-request.ts";
import { type Exchange, isRecord, sendToStripe, type StripeTarget } from "./stripe-send.ts";

/** What the guard does after a definite decline of a PaymentIntent: give the headroom back, or keep it for another card. */
export type OnDecline = "cancel" | "keep";

/** One write of the application, and everything the guard needs to carry it through. */
export interface StripeCall {
  readonly runtime: Runtime;
  readonly controlPlane: ControlPlane;
  readonly settlements: Settlements;
  readonly authorize: (request: SpendRequest, deadline: number) => Promise<Decision>;
  /** The spend the application named for this call, if it named one. */
  readonly spend: SpendOption | undefined;
  /** The billing lease that the application makes the call under. */
  readonly lease: LeaseGuard | undefined;
  readonly method: "POST" | "DELETE";
  /** Path template with its method, for example "POST /v1/invoices/:id/pay". */
  readonly endpoint: string;
  /** The path as it was asked for, without a query. */
  readonly path: string;
  /** The ids in the path, in their order. */
  readonly ids: readonly string[];
  /** The query with its "?", or empty. */
  readonly query: string;
  readonly body: string;
  /** The parameters, from the body or the query. */
  readonly fields: readonly FormField[];
  readonly vendorAccount: string;
  readonly target: StripeTarget;
  readonly onDecline: OnDecline;
  /** Runs right before each request that moves money or may lead to it. What it throws keeps the request from being sent. */
  readonly beforeMoney?: (() => Promise<void>) | undefined;
  /** Only the server may confirm what the guard creates, whatever the caller's parameters say. */
  readonly manualConfirmation?: boolean | undefined;
  /** A spend that was made or begun with another body is refused, and not answered with its object. */
  readonly sameBodyRequired?: boolean | undefined;
  readonly vendorDeadlineMs: number;
  /** A reading of the clock: how long to wait for a grant. */
  readonly deadline: number;
  /** What the application said about how the request is to be sent. */
  readonly ownSending: { readonly key: string | undefined; readonly retries: unknown };
  /** Sends the application's own request as it came, for writes that are safe to repeat. */
  readonly passOn: () => Promise<StripeAnswer>;
}

/** A call that is known to be one spend. */
export interface GuardedCall extends StripeCall {
  readonly spend: SpendOption;
  /** What is authorized. */
  readonly money: DecimalMoney;
}

/** The named spend of a call that cannot do without. */
export function requireSpend(call: StripeCall): SpendOption {
  if (call.spend === undefined) throw new SpendIdentityMissingError(call.endpoint);
  return call.spend;
}

/**
 * Refuses a key or a number of repeats of the application's own where the guard sends under the grant's key: dropped
 * silently, they would let somebody believe that another key is another charge. The stable key itself is no other.
 */
export function refuseOwnSending({ endpoint, ownSending, spend }: StripeCall): void {
  const { key, retries } = ownSending;
  if (key !== undefined && !isStableKey(key, spend)) {
    throw new SpendUnsupportedError(
      endpoint,
      "came with an idempotencyKey of its own, which would not be used: the guard sends the one key of the spend, so " +
        "that every retry has the same",
      "Leave idempotencyKey out; what makes it another charge belongs into spend.purpose or spend.billingPeriod.",
    );
  }
  if (retries !== undefined) {
    throw new SpendUnsupportedError(
      endpoint,
      "came with maxNetworkRetries, which would not be used: the guard itself sends again, where that is safe",
      "Leave maxNetworkRetries out; vendorDeadlineMs of createHoldfast says for how long the guard tries.",
    );
  }
}

function isStableKey(key: string, spend: SpendOption | undefined): boolean {
  if (spend === undefined) return false;
  const { customerId, billingPeriod, purpose, retryAfterGeneration = 0 } = spend;
  return [1, retryAfterGeneration + 1].some(
    (generation) => key === stableKey(customerId, billingPeriod, purpose, generation),
  );
}

export function spendRequest(call: GuardedCall, settlement: Settlement): SpendRequest {
  return {
    spend: call.spend,
    money: call.money,
    vendor: "stripe",
    endpoint: call.endpoint,
    settlement,
    vendorAccount: call.vendorAccount,
    bodyFingerprint: bodyFingerprint(call.fields),
    credentialFingerprint: settlement === Settlement.RESEND_SAFE ? credentialFingerprint(secretOf(call)) : "",
    sameBodyRequired: call.sameBodyRequired ?? false,
  };
}

/** What the request is authenticated with. Another account does not know the key of a request that is sent again. */
function secretOf({ target }: StripeCall): string {
  const found = Object.entries(target.headers).find(([name]) => name.toLowerCase() === "authorization")?.[1];
  // Only a key stays the same from one request to the next; a signature does not.
  return typeof found === "string" && /^Bearer /i.test(found) ? found : "";
}

/** The request that goes on with an authorization's bound vendor object, as the authorization itself was asked for. */
export function continuation(authorization: Authorization, vendorReference: string): SpendRequest {
  const { spend, vendor, endpoint, settlement, vendorAccount, direction, refundOf } = authorization;
  return {
    spend: {
      customerId: spend?.customerId ?? "",
      billingPeriod: spend?.billingPeriod ?? "",
      purpose: spend?.purpose ?? "",
    },
    money: { currency: spend?.amount?.currency ?? "", amount: spend?.amount?.amount ?? "" },
    vendor,
    endpoint,
    settlement,
    vendorAccount,
    direction,
    refundOf,
    continueVendorReference: vendorReference,
  };
}

/** The value of our metadata, the same for every attempt of a generation. */
export function authorizationMetadata(grant: Grant): string {
  return grant.authorization.slice("authorizations/".length);
}

export function errorContext(call: StripeCall, grant?: Grant, vendorReference?: string) {
  return { spend: grant?.spend ?? call.spend, authorization: grant?.authorization, vendorReference };
}

/** Bind, with a failure translated: nothing may be confirmed then. */
export async function bind(call: StripeCall, grant: Grant, reference: string, state?: string): Promise<BindResult> {
  try {
    return await call.settlements.bind(grant, reference, state);
  } catch (error) {
    throw translateFailure(error, "whether the vendor object may be used", errorContext(call, grant, reference));
  }
}

/** Finds the authorization that a vendor object belongs to. Throws a typed error if that cannot be learned. */
export async function findBound(call: StripeCall, vendorReference: string): Promise<Authorization | undefined> {
  const { vendorAccount } = call;
  try {
    return await call.controlPlane.findAuthorization(
      { vendor: "stripe", vendorAccount, vendorReference },
      call.deadline,
    );
  } catch (error) {
    throw translateFailure(error, `which spend ${vendorReference} belongs to`, errorContext(call));
  }
}

const READ_BASE_MS = 500;
const READ_CAP_MS = 5_000;
const READS_MAX = 3;

/**
 * Reads an object by its path, or undefined if the vendor does not give it in time. What the caller wants expanded is,
 * where the object has it: the answer that the caller expects may be of another kind.
 */
export async function readObject(
  call: StripeCall,
  path: string,
  options: { readonly deadline?: number; readonly query?: string; readonly expand?: boolean } = {},
): Promise<StripeAnswer | undefined> {
  const { runtime } = call;
  const deadline = options.deadline ?? runtime.clock.now() + call.vendorDeadlineMs;
  let expanded = options.expand === false ? [] : call.fields.filter(({ key }) => isExpand(key));
  for (let reads = 0; reads < READS_MAX; reads += 1) {
    const remainingMs = deadline - runtime.clock.now();
    if (remainingMs <= 0) return undefined;
    const query = [options.query ?? "", ...expanded.map(({ value }) => `expand[]=${encodeURIComponent(value)}`)]
      .filter((part) => part !== "")
      .join("&");
    const { answer, signal } = await sendToStripe(runtime, call.target, {
      method: "GET",
      path: query === "" ? path : `${path}?${query}`,
      endpoint: `GET ${path.replaceAll(/\/[a-z0-9]+_[A-Za-z0-9_]+/g, "/:id")}`,
      body: "",
      timeoutMs: remainingMs,
    });
    if (signal.kind === "answer" && signal.status === 400 && expanded.length > 0) {
      expanded = [];
      continue;
    }
    if (signal.kind === "answer" && signal.readable && signal.status < 500 && signal.status !== 429) {
      return signal.status === 200 ? answer : undefined;
    }
    await sleep(runtime, Math.min(halfJitter(runtime.random, reads, READ_BASE_MS, READ_CAP_MS), remainingMs));
  }
  return undefined;
}

/** The real object of a spend that was committed before, read at `path`. */
export async function readCommitted(
  call: StripeCall,
  path: string | undefined,
  authorization: Authorization,
): Promise<StripeAnswer> {
  const answer = path === undefined ? undefined : await readObject(call, path);
  if (answer !== undefined) return answer;
  const { name, vendorReference } = authorization;
  throw new SpendAlreadyCommittedError(vendorReference, { spend: call.spend, authorization: name });
}

export function refusalStatus(exchange: Exchange): { status: number; replayed: boolean } | undefined {
  const { signal } = exchange;
  return signal.kind === "answer" ? { status: signal.status, replayed: signal.replayed } : undefined;
}

export function stringField(body: unknown, name: string): string {
  const value = isRecord(body) ? body[name] : undefined;
  return typeof value === "string" ? value : "";
}

import type { Settlement } from "@holdfast/api/holdfast/v1/spend_pb";
import type { SpendOption } from "./context.ts";
import { SpendAlreadyCommittedError } from "./errors.ts";
import type { DecimalMoney } from "./money.ts";
import { classifyOutcome, isStateError, type Outcome } from "./outcome.ts";
import { translateFailure } from "./refusal.ts";
import { halfJitter, type Runtime, sleep } from "./runtime.ts";
import type { BindResult, Settlements } from "./settlement.ts";
import type { Decision, Grant, SpendRequest } from "./spend.ts";
import type { StripeAnswer } from "./stripe-http.ts";
import { bodyFingerprint, type FormField, isExpand } from "./stripe-request.ts";
import { type Exchange, isRecord, sendToStripe, type StripeTarget } from "./stripe-send.ts";
import type { ControlPlane } from "./control-plane.ts";

/** What the guard does after a definite decline of a PaymentIntent: give the headroom back, or keep it for another card. */
export type OnDecline = "cancel" | "keep";

/** Everything the guard needs to carry one call of the application through. */
export interface GuardedCall {
  readonly runtime: Runtime;
  readonly controlPlane: ControlPlane;
  readonly settlements: Settlements;
  readonly authorize: (request: SpendRequest, deadline: number) => Promise<Decision>;
  readonly spend: SpendOption;
  readonly endpoint: string;
  readonly money: DecimalMoney;
  readonly fields: readonly FormField[];
  readonly vendorAccount: string;
  readonly target: StripeTarget;
  readonly onDecline: OnDecline;
  readonly vendorDeadlineMs: number;
  /** A reading of the clock: how long to wait for a grant. */
  readonly deadline: number;
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
  };
}

/** The value of our metadata, the same for every attempt of a generation. */
export function authorizationMetadata(grant: Grant): string {
  return grant.authorization.slice("authorizations/".length);
}

/** Bind, with a failure translated: nothing may be confirmed then. */
export async function bind(call: GuardedCall, grant: Grant, reference: string, state?: string): Promise<BindResult> {
  try {
    return await call.settlements.bind(grant, reference, state);
  } catch (error) {
    throw translateFailure(error, "whether the vendor object may be used", {
      spend: call.spend,
      authorization: grant.authorization,
    });
  }
}

export interface Step {
  readonly path: string;
  readonly endpoint: string;
  readonly body: string;
  readonly key: string;
  /** An earlier send with this key may have arrived. */
  readonly replay: boolean;
  /** The first request of this attempt: before it, nothing at all was sent under the grant. */
  readonly first: boolean;
  /** Readings of the clock: nothing is sent after `sendUntil`, nothing at all is waited for after `deadline`. */
  readonly sendUntil: number;
  readonly deadline: number;
}

export type StepResult =
  | { readonly outcome: Outcome; readonly exchange: Exchange; readonly replay: boolean }
  /** The time to send was over before the first byte. */
  | { readonly outcome: "too_late" };

const SENDS_MAX = 6;
const RESEND_BASE_MS = 500;
const RESEND_CAP_MS = 5_000;
// One hanging send must leave time to ask the vendor again with the same key.
const SEND_SHARE = 2 / 3;

/**
 * Sends one step with one key, and sends it again with the same key while the outcome is unknown and the vendor's
 * deadline runs. Every answer after a lost one is judged as a replay. Throws a LeaseLostError before the first send.
 */
export async function sendStep(call: GuardedCall, grant: Grant, step: Step): Promise<StepResult> {
  const { runtime } = call;
  let replay = step.replay;
  let last: StepResult = { outcome: "too_late" };
  for (let sends = 0; sends < SENDS_MAX; sends += 1) {
    if (sends === 0) await assertLeaseHeld(call, grant, step);
    // Read right before the write: this process may have been stopped since it composed the request.
    const now = runtime.clock.now();
    const remainingMs = step.deadline - now;
    if (now >= step.sendUntil || remainingMs <= 0) return last;
    const exchange = await sendToStripe(runtime, call.target, {
      method: "POST",
      path: step.path,
      endpoint: step.endpoint,
      body: step.body,
      idempotencyKey: step.key,
      timeoutMs: Math.max(Math.min(remainingMs, 1_000), remainingMs * SEND_SHARE),
    });
    const outcome = classifyOutcome(exchange.signal, { replay });
    last = { outcome, exchange, replay };
    if (!worthSendingAgain(outcome, exchange)) return last;
    // Once bytes may have arrived, only answers about the earlier send count.
    if (outcome === "unknown" && exchange.signal.kind !== "not_sent") replay = true;
    const waitMs = halfJitter(runtime.random, sends, RESEND_BASE_MS, RESEND_CAP_MS);
    if (runtime.clock.now() + waitMs >= step.deadline) return last;
    await sleep(runtime, waitMs);
  }
  return last;
}

async function assertLeaseHeld(call: GuardedCall, grant: Grant, step: Step): Promise<void> {
  try {
    grant.lease?.assertHeld();
  } catch (error) {
    if (step.first && !grant.mayHaveBeenSent) await call.settlements.void(grant, { evidence: "never_sent" });
    else await call.settlements.reportUnknown(grant, "the billing lease was lost before the next step");
    throw error;
  }
}

function worthSendingAgain(outcome: Outcome, { signal }: Exchange): boolean {
  if (signal.kind === "not_sent") return true;
  // A rate limit in front of the vendor's idempotency: nothing was carried out, the same key is fresh.
  if (outcome === "not_charged") return signal.kind === "answer" && signal.status === 429;
  if (outcome === "charged") return false;
  if (signal.kind !== "answer") return true;
  // A saved answer never changes, and a definite refusal does not change in seconds: look at the object instead.
  if (signal.replayed && signal.readable) return false;
  if (isStateError(signal) || signal.errorType === "idempotency_error") return false;
  return !signal.readable || signal.status >= 500 || [409, 424, 429].includes(signal.status);
}

const READS_MAX = 3;

/** Reads an object by its path, or undefined if the vendor does not give it in time. */
export async function readObject(
  call: GuardedCall,
  path: string,
  endpoint: string,
  deadline: number,
): Promise<StripeAnswer | undefined> {
  const { runtime } = call;
  const query = call.fields
    .filter(({ key }) => isExpand(key))
    .map(({ raw }) => raw)
    .join("&");
  for (let reads = 0; reads < READS_MAX; reads += 1) {
    const remainingMs = deadline - runtime.clock.now();
    if (remainingMs <= 0) return undefined;
    const { answer, signal } = await sendToStripe(runtime, call.target, {
      method: "GET",
      path: query === "" ? path : `${path}?${query}`,
      endpoint,
      body: "",
      timeoutMs: remainingMs,
    });
    if (signal.kind === "answer" && signal.readable && signal.status < 500 && signal.status !== 429) {
      return signal.status === 200 ? answer : undefined;
    }
    await sleep(runtime, Math.min(halfJitter(runtime.random, reads, RESEND_BASE_MS, RESEND_CAP_MS), remainingMs));
  }
  return undefined;
}

/** The real object of a spend that was committed before. */
export async function readCommitted(
  call: GuardedCall,
  reference: string,
  authorization: string,
): Promise<StripeAnswer> {
  const path = call.endpoint === "POST /v1/charges" ? "/v1/charges" : "/v1/payment_intents";
  const deadline = call.runtime.clock.now() + call.vendorDeadlineMs;
  const answer = await readObject(call, `${path}/${encodeURIComponent(reference)}`, `GET ${path}/:id`, deadline);
  if (answer === undefined) {
    throw new SpendAlreadyCommittedError(reference, { spend: call.spend, authorization });
  }
  return answer;
}

export function refusalStatus(exchange: Exchange): { status: number; replayed: boolean } | undefined {
  const { signal } = exchange;
  return signal.kind === "answer" ? { status: signal.status, replayed: signal.replayed } : undefined;
}

export function stringField(body: unknown, name: string): string {
  const value = isRecord(body) ? body[name] : undefined;
  return typeof value === "string" ? value : "";
}

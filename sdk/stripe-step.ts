import { classifyOutcome, isStateError, type Outcome } from "./outcome.ts";
import { halfJitter, sleep } from "./runtime.ts";
import type { Grant } from "./spend.ts";
import type { StripeCall } from "./stripe-call.ts";
import { type Exchange, sendToStripe } from "./stripe-send.ts";

/** One request under one key of a generation. */
export interface Step {
  readonly method?: "POST" | "DELETE";
  readonly path: string;
  readonly endpoint: string;
  readonly body: string;
  readonly key: string;
  /** An earlier send with this key may have arrived. */
  readonly replay: boolean;
  /** The first request of this attempt: before it, nothing at all was sent under the grant. */
  readonly first: boolean;
  /** Sent at most once, whatever comes back. */
  readonly once?: boolean;
  /** Keeps money from moving, so nothing may forbid it. */
  readonly ends?: boolean;
  /** Readings of the clock: nothing is sent after `sendUntil`, nothing at all is waited for after `deadline`. */
  readonly sendUntil: number;
  readonly deadline: number;
}

export type StepResult =
  | {
      readonly outcome: Outcome;
      readonly exchange: Exchange;
      readonly replay: boolean;
      /** It was sent more than once: a saved answer may be the one to the first of these sends. */
      readonly resent: boolean;
    }
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
export async function sendStep(call: StripeCall, grant: Grant, step: Step): Promise<StepResult> {
  const { runtime } = call;
  let replay = step.replay;
  let last: StepResult = { outcome: "too_late" };
  for (let sends = 0; sends < SENDS_MAX; sends += 1) {
    if (sends === 0) await assertLeaseHeld(call, grant, step);
    else if (!holdsLease(grant)) return last;
    const stopped = step.ends === true ? undefined : await stoppedBefore(call);
    if (stopped !== undefined) {
      // An earlier send of this attempt is still unknown; this one certainly did not happen.
      return { outcome: classifyOutcome(stopped.signal, { replay }), exchange: stopped, replay, resent: sends > 0 };
    }
    // Read right before the write: this process may have been stopped since it composed the request.
    const now = runtime.clock.now();
    const remainingMs = step.deadline - now;
    if (now >= step.sendUntil || remainingMs <= 0) return last;
    const exchange = await sendToStripe(runtime, call.target, {
      method: step.method ?? "POST",
      path: step.path,
      endpoint: step.endpoint,
      body: step.body,
      idempotencyKey: step.key,
      timeoutMs: Math.max(Math.min(remainingMs, 1_000), remainingMs * SEND_SHARE),
    });
    const outcome = classifyOutcome(exchange.signal, { replay });
    last = { outcome, exchange, replay, resent: sends > 0 };
    if (!worthSendingAgain(outcome, exchange)) return last;
    if (step.once === true && exchange.signal.kind !== "not_sent") return last;
    // Once bytes may have arrived, only answers about the earlier send count.
    if (outcome === "unknown" && exchange.signal.kind !== "not_sent") replay = true;
    const waitMs = halfJitter(runtime.random, sends, RESEND_BASE_MS, RESEND_CAP_MS);
    if (runtime.clock.now() + waitMs >= step.deadline) return last;
    await sleep(runtime, waitMs);
  }
  return last;
}

/** What keeps the request from being sent, asked for right before it. */
async function stoppedBefore({ beforeMoney }: StripeCall): Promise<Exchange | undefined> {
  try {
    await beforeMoney?.();
    return undefined;
  } catch (error) {
    return { signal: { kind: "denied" }, error };
  }
}

/** Not ours to send again once another holder may run: what was sent is left in doubt. */
function holdsLease(grant: Grant): boolean {
  try {
    grant.lease?.assertHeld();
    return true;
  } catch {
    return false;
  }
}

async function assertLeaseHeld(call: StripeCall, grant: Grant, step: Step): Promise<void> {
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

import type { SimulatorClock } from "./clock.ts";
import { StripeRefusal, keyInUse } from "./errors.ts";
import { canonicalParams } from "./form.ts";
import type { Reply } from "./reply.ts";
import type { ReceivedRequest } from "./request-log.ts";

const retentionV2Ms = 30 * 24 * 60 * 60 * 1000;

interface KeyUse {
  readonly firstUsedAtMs: number;
  readonly endpoint: string;
  readonly fingerprint: string;
  readonly requestId: string;
  /** Null while the first request executes. */
  reply: Reply | null;
}

export interface Replay {
  readonly reply: Reply;
  /** The id of the request that executed. */
  readonly originalRequest: string;
}

/**
 * Stripe v1's idempotency: per account and key, the answer of the first request whose execution began is saved,
 * whatever it was, and repeated until the key is at least `retentionMs` old. After that the key is unknown again, and
 * the next request under it is a new charge.
 *
 * In v2 a key lasts 30 days, only success is saved (a failed request is executed again), and what is repeated is the
 * object as it is by then.
 */
export class IdempotencyKeys {
  readonly #clock: SimulatorClock;
  readonly #retentionMs: number;
  readonly #uses = new Map<string, KeyUse>();

  constructor(clock: SimulatorClock, retentionMs: number) {
    this.#clock = clock;
    this.#retentionMs = retentionMs;
  }

  /** The saved answer to repeat, or undefined for a first use. Throws on misuse of a key and while its first use runs. */
  find(request: ReceivedRequest): Replay | undefined {
    const use = this.#current(request);
    if (use === undefined) return undefined;
    const key = request.key ?? "";
    const advice = `Try using a key other than '${key}' if you meant to execute a different request.`;
    if (use.endpoint !== endpointOf(request)) {
      throw misuse(
        "Keys for idempotent requests can only be used for the same endpoint they were first used for " +
          `('${request.path}' vs '${use.endpoint.split(" ")[1] ?? ""}'). ${advice}`,
      );
    }
    if (use.fingerprint !== canonicalParams(request.params)) {
      throw misuse(
        "Keys for idempotent requests can only be used with the same parameters they were first used with. " + advice,
      );
    }
    if (use.reply === null) throw keyInUse(key);
    const reply = isV2(request) ? (use.reply.current?.() ?? use.reply) : use.reply;
    return { reply, originalRequest: use.requestId };
  }

  /** Marks the key as executing; the returned function saves the answer. */
  begin(request: ReceivedRequest): (reply: Reply) => void {
    const use: KeyUse = {
      firstUsedAtMs: this.#clock.now(),
      endpoint: endpointOf(request),
      fingerprint: canonicalParams(request.params),
      requestId: request.id,
      reply: null,
    };
    this.#uses.set(scopeOf(request), use);
    return (reply) => {
      if (isV2(request) && reply.status >= 400) this.#uses.delete(scopeOf(request));
      else use.reply = reply;
    };
  }

  #current(request: ReceivedRequest): KeyUse | undefined {
    const scope = scopeOf(request);
    const use = this.#uses.get(scope);
    if (use === undefined) return undefined;
    // A request that still executes keeps its key: Stripe forgets answers, not work in progress.
    const retentionMs = isV2(request) ? retentionV2Ms : this.#retentionMs;
    if (use.reply === null || this.#clock.now() - use.firstUsedAtMs < retentionMs) return use;
    this.#uses.delete(scope);
    return undefined;
  }
}

function scopeOf(request: ReceivedRequest): string {
  return `${request.account ?? ""} ${request.key ?? ""}`;
}

function isV2(request: ReceivedRequest): boolean {
  return request.path.startsWith("/v2/");
}

function endpointOf(request: ReceivedRequest): string {
  return `${request.method} ${request.path}`;
}

function misuse(message: string): StripeRefusal {
  return new StripeRefusal(400, { type: "idempotency_error", message }, { "stripe-should-retry": "false" });
}

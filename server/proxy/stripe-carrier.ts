import type { Transport } from "@connectrpc/connect";
import {
  HoldfastClosedError,
  HoldfastError,
  HoldfastRefusedError,
  type OnDecline,
  SpendInDoubtError,
  type SpendOption,
  SpendUnsupportedError,
  VendorUnreachableError,
} from "@holdfast/sdk";
import {
  type Assembly,
  checkSpend,
  createStripeGuard,
  type Runtime,
  type StripeCallScope,
  type StripeHttpResponse,
  systemClock,
  systemRandom,
  systemTimers,
} from "@holdfast/sdk/stripe-vendor";
import { createStripeClients } from "./stripe-clients.ts";
import { AnswerText, createStripeUpstream, defaultUpstreamLimits, type UpstreamLimits } from "./stripe-upstream.ts";
import type { Carried } from "./vendor.ts";

/** Times are milliseconds. */
export interface CarrierLimits extends UpstreamLimits {
  /** How long a request waits for a grant, and for its twin. */
  readonly timeoutMs: number;
  /** How long a grant lasts: at least three times `vendorDeadlineMs`. */
  readonly holdMs: number;
  /** How long one request tries to get the vendor's answer. */
  readonly vendorDeadlineMs: number;
  /** How long the vendor surely remembers a key. */
  readonly resendSafeForMs: number;
  /** How many requests of one vault key may wait for a grant. */
  readonly maxQueued: number;
  readonly clientsMax: number;
  readonly clientIdleMs: number;
}

export const defaultCarrierLimits: CarrierLimits = {
  ...defaultUpstreamLimits,
  timeoutMs: 20_000,
  holdMs: 600_000,
  vendorDeadlineMs: 30_000,
  resendSafeForMs: 23 * 3_600_000,
  maxQueued: 1_000,
  clientsMax: 1_000,
  clientIdleMs: 600_000,
};

export interface StripeCarrierOptions {
  /** To the control plane. Each call carries the vault key of the request it is made for. */
  readonly transport: Transport;
  /** Of the vendor: scheme, host and port. */
  readonly origin: string;
  /** Learns of what no request waits for: settlements that could not be delivered for long, and defects. */
  readonly onError: (error: unknown) => void;
  readonly runtime?: Runtime;
  readonly limits?: Partial<CarrierLimits>;
  /**
   * Creates every PaymentIntent so that only a server can confirm it. A browser can then neither confirm nor end an
   * authentication by itself, so it is for services that charge without the customer. False by default.
   */
  readonly manualConfirmation?: boolean;
}

/** One request to Stripe, read and rebuilt. */
export interface CarriedRequest {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly body: string;
  /** Empty for a form. */
  readonly contentType: string;
  /** Method and path template, for what is said of the request. */
  readonly endpoint: string;
  /** The vault key's token, under which the spend is authorized. */
  readonly token: string;
  /** Stripe's own key. */
  readonly secret: string;
  readonly apiVersion: string | undefined;
  /** The connected account; empty for the platform's own. */
  readonly account: string;
  readonly spend: SpendOption | undefined;
  /** A spend that was made or begun with another body, by whatever way, is refused. */
  readonly sameBodyRequired: boolean;
  /** Writes to let past the guard, by their templates. */
  readonly allow: ReadonlySet<string>;
  readonly onDecline: OnDecline;
  /** The idempotency key of a write that is passed on. */
  readonly upstreamKey: string | undefined;
  /**
   * Runs right before each request that moves money, after the grant. What it throws keeps the request from being sent,
   * and what was held for it is given back.
   */
  readonly beforeMoney: () => Promise<void>;
}

/** Carries requests to Stripe as the SDK does for an application: under a grant where they move money. */
export interface StripeCarrier {
  /** How long Stripe surely remembers a key, in milliseconds. */
  readonly resendSafeForMs: number;
  /** Never rejects. A request that has begun is carried through, whoever waits for it. */
  carry(request: CarriedRequest): Promise<Carried>;
  /** No new requests; lets those that run end and delivers what waits, for at most that long. Never rejects. */
  close(graceMs: number): Promise<void>;
}

export function createStripeCarrier(options: StripeCarrierOptions): StripeCarrier {
  const { transport, origin, onError, manualConfirmation = false } = options;
  const limits = { ...defaultCarrierLimits, ...options.limits };
  const runtime = options.runtime ?? { clock: systemClock(), timers: systemTimers, random: systemRandom };
  const upstream = createStripeUpstream(origin, limits);
  const clients = createStripeClients({ ...limits, transport, runtime, onBackgroundError: onError });
  const running = new Set<Promise<unknown>>();
  let closed: Promise<void> | undefined;

  async function send(client: Assembly, request: CarriedRequest): Promise<Carried> {
    const { method, path, body, spend, sameBodyRequired, onDecline, allow } = request;
    const stop = stopOf(request.beforeMoney);
    const guard = createStripeGuard(
      {
        ...client,
        onDecline,
        allow,
        beforeMoney: stop.beforeMoney,
        manualConfirmation,
        sameBodyRequired,
      },
      upstream.client,
    );
    const scope: StripeCallScope = {
      spend,
      signal: undefined,
      ownRetries: undefined,
      refusals: new Map(),
      passedKeys: passedKeysOf(request),
    };
    const { host, port, protocol } = upstream;
    let response: StripeHttpResponse;
    try {
      response = await guard.scope.run(scope, () =>
        guard.client.makeRequest(host, port, path, method, headersOf(request), body, protocol, limits.requestMs),
      );
    } catch (error) {
      throw unusable(error);
    }
    const refused = scope.refusals.get(response.getHeaders()["request-id"] ?? "");
    if (refused !== undefined) throw stop.reasonOf(refused);
    return carriedOf(response);
  }

  async function carry(request: CarriedRequest): Promise<Carried> {
    try {
      if (closed !== undefined) throw new HoldfastClosedError();
      checkRequest(request);
      return await clients.use(request.token, (client) => send(client, request));
    } catch (error) {
      const refusal = error instanceof HoldfastError ? error : defect(error, onError);
      return { status: 403, headers: {}, body: "", refusal };
    }
  }

  async function closeAll(graceMs: number): Promise<void> {
    const over = Promise.withResolvers<void>();
    const timer = setTimeout(over.resolve, graceMs);
    await Promise.all([Promise.race([Promise.all(running), over.promise]), clients.close(graceMs)]);
    clearTimeout(timer);
    upstream.close();
  }

  return {
    resendSafeForMs: limits.resendSafeForMs,
    carry(request) {
      const work = carry(request);
      running.add(work);
      return work.finally(() => running.delete(work));
    },
    close(graceMs) {
      closed ??= closeAll(graceMs);
      return closed;
    },
  };
}

const visible = /^[!-~]{1,512}$/;
const printable = /^[ -~]{0,512}$/;

/** What would throw in the middle of sending is refused before anything is asked for. */
function checkRequest(request: CarriedRequest): void {
  const { token, secret, apiVersion = "", account, contentType, upstreamKey = "", spend } = request;
  if (!visible.test(token)) throw new HoldfastRefusedError("INVALID_TOKEN", "It is no token of a vault key.", {});
  if (
    !visible.test(secret) ||
    ![apiVersion, account, contentType, upstreamKey].every((value) => printable.test(value))
  ) {
    throw new SpendUnsupportedError(request.endpoint, "has a header that cannot be written", "Send it plainly.");
  }
  try {
    if (spend !== undefined) checkSpend(spend);
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : "The spend is wrong.";
    throw new HoldfastRefusedError("INVALID_FIELD", message, { cause });
  }
}

function headersOf({ method, contentType, secret, apiVersion, account }: CarriedRequest): Record<string, string> {
  return {
    Authorization: `Bearer ${secret}`,
    ...(method === "GET" ? {} : { "Content-Type": contentType || "application/x-www-form-urlencoded" }),
    ...(apiVersion === undefined ? {} : { "Stripe-Version": apiVersion }),
    ...(account === "" ? {} : { "Stripe-Account": account }),
  };
}

/**
 * The client's key, for the guard to send where it passes the request on. Among the headers the guard would take it for
 * a key that a spend is to be charged under.
 */
function passedKeysOf({ method, path, body, upstreamKey }: CarriedRequest): Map<string, string> {
  return new Map(upstreamKey === undefined ? [] : [[`${method} ${path}\n${body}`, upstreamKey]]);
}

/** Asks before each request that moves money, and knows the reason again in what the guard makes of it. */
function stopOf(ask: () => Promise<void>) {
  const reasons = new Set<unknown>();
  return {
    beforeMoney: async (): Promise<void> => {
      try {
        await ask();
      } catch (error) {
        reasons.add(error);
        throw error;
      }
    },
    reasonOf(refused: Error): Error {
      // A spend in doubt stays in doubt: something of it was sent before.
      const own = refused instanceof VendorUnreachableError ? refused.cause : refused;
      if (!reasons.has(own)) return refused;
      if (own instanceof HoldfastError) return own;
      return new VendorUnreachableError("the request was stopped before it was sent", { cause: own });
    },
  };
}

/** A request that was passed on moves no money, so nothing is in doubt about it. */
function unusable(cause: unknown): VendorUnreachableError {
  return new VendorUnreachableError("Stripe did not give a usable answer", { cause });
}

async function carriedOf(response: StripeHttpResponse): Promise<Carried> {
  let body: unknown;
  try {
    body = await response.toJSON();
  } catch (error) {
    throw unusable(error);
  }
  if (body === undefined) throw unusable(new Error("no JSON"));
  const raw = response.getRawResponse();
  const untouched = raw instanceof AnswerText && raw.parsed === body;
  return {
    status: response.getStatusCode(),
    headers: response.getHeaders(),
    body: untouched ? raw.text : JSON.stringify(body),
    refusal: undefined,
  };
}

/** Thrown by nobody on purpose, so nobody knows what was sent before. */
function defect(error: unknown, onError: (error: unknown) => void): HoldfastError {
  onError(error);
  return new SpendInDoubtError("the request ended in a defect of the server", { cause: error });
}

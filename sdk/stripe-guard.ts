import { AsyncLocalStorage } from "node:async_hooks";
import type { Calls } from "./call.ts";
import type { CallContext, SpendOption } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { HoldfastError, SpendIdentityMissingError, SpendUnsupportedError } from "./errors.ts";
import type { Runtime } from "./runtime.ts";
import type { Settlements } from "./settlement.ts";
import type { SpendIdentity } from "./stable-key.ts";
import type { OnDecline, StripeCall } from "./stripe-call.ts";
import { payByEdit, payByRelease } from "./stripe-edit.ts";
import {
  refusalAnswer,
  type StripeAnswer,
  type StripeHttpClient,
  type StripeHttpResponse,
  toHttpResponse,
} from "./stripe-http.ts";
import { payByStep } from "./stripe-object-step.ts";
import { payByOneCall } from "./stripe-one-call.ts";
import { payByPaymentIntent } from "./stripe-payment-intent.ts";
import type { Plan } from "./stripe-plan.ts";
import { type Route, routeStripeRequest } from "./stripe-route.ts";
import { withoutOwnHeaders } from "./stripe-send.ts";

/** One call of the application on the guarded client, from the method to the requests it makes. */
export interface StripeCallScope {
  readonly spend: SpendOption | undefined;
  readonly signal: AbortSignal | undefined;
  /** What the call says of its own repeats. */
  readonly ownRetries: unknown;
  /** The typed errors behind the refusals that were answered, by their request id. */
  readonly refusals: Map<string, Error>;
  /** The key of each passed-on write: some versions of Stripe's client send it again without one. */
  readonly passedKeys: Map<string, string>;
}

export interface GuardSettings {
  readonly runtime: Runtime;
  readonly context: CallContext;
  readonly calls: Calls;
  readonly controlPlane: ControlPlane;
  readonly settlements: Settlements;
  readonly authorize: StripeCall["authorize"];
  readonly timeoutMs: number;
  readonly vendorDeadlineMs: number;
  readonly onDecline: OnDecline;
  /** Writes that the application lets past the guard, by their names. */
  readonly allow: ReadonlySet<string>;
  /** See `StripeCall`. Not asked before a request that ends what could move money. */
  readonly beforeMoney?: (() => Promise<void>) | undefined;
  /** See `StripeCall`. */
  readonly manualConfirmation?: boolean | undefined;
  /** See `StripeCall`. */
  readonly sameBodyRequired?: boolean | undefined;
}

export interface StripeGuard {
  readonly client: StripeHttpClient;
  readonly scope: AsyncLocalStorage<StripeCallScope>;
}

/** What Stripe's client hands to its HttpClient. */
interface WireRequest {
  readonly host: string;
  readonly port: string | number;
  readonly path: string;
  readonly method: string;
  readonly headers: Record<string, unknown>;
  readonly data: unknown;
  readonly protocol: string;
  readonly timeout: number;
}

/** What stands in the report of a billing lease for a write that named no spend. */
const UNNAMED: SpendIdentity = { customerId: "", billingPeriod: "", purpose: "a write without a spend" };

/** A request that was passed on failed on its way: Stripe's client has to see it as it was. */
class PassedOnError extends Error {}

/** An HttpClient that lets harmless requests through to `inner` and carries out those that move money under a grant. */
export function createStripeGuard(settings: GuardSettings, inner: StripeHttpClient): StripeGuard {
  const scope = new AsyncLocalStorage<StripeCallScope>();

  function refuse(error: Error): StripeHttpResponse {
    // Refused before anything was asked: a job that goes on without it has left something undone.
    if (error instanceof SpendIdentityMissingError || error instanceof SpendUnsupportedError) {
      const spend = scope.getStore()?.spend ?? settings.context.spend.getStore();
      settings.context.lease.getStore()?.asked(spend ?? UNNAMED);
    }
    const requestId = `hf_${settings.runtime.random.hex128()}`;
    scope.getStore()?.refusals.set(requestId, error);
    const code = error instanceof HoldfastError ? error.code : "holdfast_internal_error";
    return toHttpResponse(refusalAnswer(error, code, requestId));
  }

  function pass(wire: WireRequest): Promise<StripeHttpResponse> {
    const { host, port, path, method, data, protocol, timeout } = wire;
    const headers = passedHeaders(wire, scope.getStore(), settings.runtime);
    return inner.makeRequest(host, port, path, method, headers, data, protocol, timeout);
  }

  const client: StripeHttpClient = {
    getClientName: () => inner.getClientName(),
    // Async throughout: an error thrown synchronously here would leave the caller hanging for ever.
    async makeRequest(host, port, path, method, headers, requestData, protocol, timeout) {
      const wire: WireRequest = { host, port, path, method, headers, data: requestData, protocol, timeout };
      if (method === "GET" || method === "HEAD") return pass(wire);
      let route: Route;
      try {
        route = routeStripeRequest(method, path, requestData, settings.allow);
      } catch (error) {
        return refuse(error as Error);
      }
      if (route.plan.flow === "pass") return pass(wire);
      try {
        const call = callOf(settings, route, wire, scope.getStore(), inner, pass);
        const signal = scope.getStore()?.signal;
        return toHttpResponse(
          await settings.calls.run({ spend: call.spend, signal }, () => carryOut(call, route.plan)),
        );
      } catch (error) {
        if (error instanceof PassedOnError) throw error.cause;
        return refuse(error as Error);
      }
    },
  };
  return { client, scope };
}

function callOf(
  settings: GuardSettings,
  route: Route,
  wire: WireRequest,
  scope: StripeCallScope | undefined,
  inner: StripeHttpClient,
  pass: (wire: WireRequest) => Promise<StripeHttpResponse>,
): StripeCall {
  const { host, port, protocol, timeout, headers } = wire;
  const { endpoint } = route.endpoint;
  return {
    ...settings,
    spend: scope?.spend ?? settings.context.spend.getStore(),
    lease: settings.context.lease.getStore(),
    method: wire.method as "POST" | "DELETE",
    endpoint,
    path: route.path,
    ids: idsOf(endpoint, route.path),
    query: route.query,
    body: typeof wire.data === "string" ? wire.data : "",
    fields: route.fields,
    vendorAccount: vendorAccount(headers),
    target: {
      client: inner,
      host,
      port,
      protocol,
      headers: withoutOwnHeaders(headers),
      // To Stripe's client 0 is no limit of its own.
      timeoutMs: timeout > 0 ? timeout : Number.POSITIVE_INFINITY,
    },
    deadline: settings.runtime.clock.now() + settings.timeoutMs,
    ownSending: { key: ownKey(headers), retries: scope?.ownRetries },
    passOn: async () => {
      if (route.plan.flow !== "release") await settings.beforeMoney?.();
      return passOn(() => pass(wire));
    },
  };
}

function carryOut(call: StripeCall, plan: Exclude<Plan, { flow: "pass" | "named" }> | Plan): Promise<StripeAnswer> {
  switch (plan.flow) {
    case "intent":
      return payByPaymentIntent(call);
    case "step":
      return payByStep(call, plan);
    case "one_call":
      return payByOneCall(call, plan);
    case "edit":
      return payByEdit(call, plan);
    case "release":
      return payByRelease(call, plan);
    case "pass":
    case "named":
      return call.passOn();
  }
}

async function passOn(send: () => Promise<StripeHttpResponse>): Promise<StripeAnswer> {
  try {
    const response = await send();
    const body = await response.toJSON();
    return { status: response.getStatusCode(), headers: response.getHeaders(), body, raw: response.getRawResponse() };
  } catch (cause) {
    throw new PassedOnError("passed on", { cause });
  }
}

/** The ids in a path, in their order: the segments that its template leaves open. */
function idsOf(endpoint: string, path: string): string[] {
  const template = endpoint.slice(endpoint.indexOf(" ") + 1).split("/");
  return path.split("/").filter((_, index) => template[index] === ":id");
}

/**
 * The headers of a request that is passed on. One that a server in between would take for another method is not what
 * was judged; a write always carries a key, and the same one if Stripe's client sends it again.
 */
function passedHeaders(
  { method, path, headers: given, data }: WireRequest,
  scope: StripeCallScope | undefined,
  runtime: Runtime,
): Record<string, unknown> {
  const headers = Object.fromEntries(Object.entries(given).filter(([name]) => !/method/i.test(name)));
  if (method === "GET" || method === "HEAD") return headers;
  if (method !== "POST" && !path.startsWith("/v2/")) return headers;
  const own = Object.entries(headers).find(([name]) => name.toLowerCase() === "idempotency-key")?.[1];
  const request = `${method} ${path}\n${typeof data === "string" ? data : ""}`;
  const key = typeof own === "string" && own !== "" ? own : scope?.passedKeys.get(request);
  const certain = key ?? `holdfast-pass-${runtime.random.hex128()}`;
  scope?.passedKeys.set(request, certain);
  return own === certain ? headers : { ...headers, "Idempotency-Key": certain };
}

/** The key that the application gave. The one that Stripe's client makes for its own repeats is not the application's. */
function ownKey(headers: Record<string, unknown>): string | undefined {
  const found = Object.entries(headers).find(([name]) => name.toLowerCase() === "idempotency-key")?.[1];
  return typeof found === "string" && found !== "" && !found.startsWith("stripe-node-retry-") ? found : undefined;
}

function vendorAccount(headers: Record<string, unknown>): string {
  for (const name of ["stripe-account", "stripe-context"]) {
    const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
    if (typeof found === "string" && found !== "") return found;
  }
  return "";
}

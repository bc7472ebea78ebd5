import { AsyncLocalStorage } from "node:async_hooks";
import type { CallContext, SpendOption } from "./context.ts";
import type { ControlPlane } from "./control-plane.ts";
import { HoldfastError, SpendIdentityMissingError } from "./errors.ts";
import type { Runtime } from "./runtime.ts";
import type { Settlements } from "./settlement.ts";
import type { GuardedCall, OnDecline } from "./stripe-call.ts";
import { refusalAnswer, type StripeHttpClient, type StripeHttpResponse, toHttpResponse } from "./stripe-http.ts";
import { payByCharge } from "./stripe-one-call.ts";
import { payByPaymentIntent } from "./stripe-payment-intent.ts";
import { routeStripeRequest, type StripeRoute } from "./stripe-route.ts";
import { withoutOwnHeaders } from "./stripe-send.ts";

/** One call of the application on the guarded client, from the method to the requests it makes. */
export interface StripeCallScope {
  readonly spend: SpendOption | undefined;
  /** The typed errors behind the refusals that were answered, by their request id. */
  readonly refusals: Map<string, Error>;
}

export interface GuardSettings {
  readonly runtime: Runtime;
  readonly context: CallContext;
  readonly controlPlane: ControlPlane;
  readonly settlements: Settlements;
  readonly authorize: GuardedCall["authorize"];
  readonly timeoutMs: number;
  readonly vendorDeadlineMs: number;
  readonly onDecline: OnDecline;
}

export interface StripeGuard {
  readonly client: StripeHttpClient;
  readonly scope: AsyncLocalStorage<StripeCallScope>;
}

/** An HttpClient that lets harmless requests through to `inner` and carries out those that move money under a grant. */
export function createStripeGuard(settings: GuardSettings, inner: StripeHttpClient): StripeGuard {
  const scope = new AsyncLocalStorage<StripeCallScope>();

  function refuse(error: Error): StripeHttpResponse {
    const requestId = `hf_${settings.runtime.random.hex128()}`;
    scope.getStore()?.refusals.set(requestId, error);
    const code = error instanceof HoldfastError ? error.code : "holdfast_internal_error";
    return toHttpResponse(refusalAnswer(error, code, requestId));
  }

  const client: StripeHttpClient = {
    getClientName: () => inner.getClientName(),
    // Async throughout: an error thrown synchronously here would leave the caller hanging for ever.
    async makeRequest(host, port, path, method, headers, requestData, protocol, timeout) {
      let route: StripeRoute;
      try {
        route = routeStripeRequest(method, path, requestData);
      } catch (error) {
        return refuse(error as Error);
      }
      if (route.kind === "pass") {
        const passed = method === "POST" || method === "DELETE" ? headers : withoutMethodOverride(headers);
        return inner.makeRequest(host, port, path, method, passed, requestData, protocol, timeout);
      }
      try {
        const spend = scope.getStore()?.spend ?? settings.context.spend.getStore();
        if (spend === undefined) throw new SpendIdentityMissingError(route.endpoint);
        const call: GuardedCall = {
          ...settings,
          spend,
          endpoint: route.endpoint,
          money: route.money,
          fields: route.fields,
          vendorAccount: vendorAccount(headers),
          target: { client: inner, host, port, protocol, headers: withoutOwnHeaders(headers), timeoutMs: timeout },
          deadline: settings.runtime.clock.now() + settings.timeoutMs,
        };
        return toHttpResponse(await (route.kind === "two_step" ? payByPaymentIntent(call) : payByCharge(call)));
      } catch (error) {
        return refuse(error as Error);
      }
    },
  };
  return { client, scope };
}

/** A GET that a server in between would take for a write is no read. */
function withoutMethodOverride(headers: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !/method/i.test(name)));
}

function vendorAccount(headers: Record<string, unknown>): string {
  for (const name of ["stripe-account", "stripe-context"]) {
    const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
    if (typeof found === "string" && found !== "") return found;
  }
  return "";
}

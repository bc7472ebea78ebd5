import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, type Http2SessionManager } from "@connectrpc/connect-node";
import { createHoldfast, type GuardedStripe, type Holdfast } from "@holdfast/sdk";
import Stripe from "stripe";
import type { Clock, Timers } from "../../sdk/runtime.ts";
import type { StripeHttpClient } from "../../sdk/stripe-http.ts";
import { chargeAnyway, type Plant, plantedHttpClient } from "../crashpoints/plant.ts";
import type { VirtualTime } from "../support/virtual-time.ts";
import { type BillingCall, type BillingOutcome, billingPeriod, purpose } from "./billing-call.ts";

/**
 * Told before and after every RPC and every vendor request; nothing goes on before it has resolved. Rejecting after an
 * RPC loses the answer of what was carried out.
 */
export type Observer = (point: string) => Promise<void>;

export interface BillingClient {
  readonly holdfast: Holdfast;
  readonly stripe: GuardedStripe;
  /** The same without the guard. */
  readonly plain: Stripe;
  /** Charges the call's customer, or another one, and says what became of it. Never rejects. */
  charge(this: void, customerId?: string): Promise<BillingOutcome>;
}

/** What a held amount is raised by before it is captured, in cents. */
export const raisedBy = 10;

/** Time other than the machine's. */
export interface BillingTime {
  readonly clock: Clock;
  readonly timers?: Timers;
}

export interface BillingClientOptions {
  /** Connections that are shared with other clients; its own unless told. */
  readonly sessionManager?: Http2SessionManager;
  /** A mistake of the service. */
  readonly plant?: Plant;
}

/** What a billing service is made of, for one customer. In real time unless another is given. */
export function createBillingClient(
  call: BillingCall,
  observe: Observer = () => Promise.resolve(),
  time?: VirtualTime | BillingTime,
  { sessionManager, plant }: BillingClientOptions = {},
): BillingClient {
  const around: Interceptor = (next) => async (request) => {
    request.header.set("Authorization", `Bearer ${call.vaultKey}`);
    await observe(`before ${request.method.name}`);
    const response = await next(request);
    await observe(`after ${request.method.name}`);
    return response;
  };
  const { vaultKey, timeoutMs, vendorDeadlineMs, holdMs } = call;
  const holdfast = createHoldfast({
    vaultKey,
    timeoutMs,
    vendorDeadlineMs,
    holdMs,
    transport: createGrpcTransport({
      baseUrl: call.baseUrl,
      interceptors: [around],
      ...(sessionManager === undefined ? {} : { sessionManager }),
    }),
    ...timeOptions(time),
  });
  const plain = new Stripe("sk_test_1", {
    host: "127.0.0.1",
    port: call.stripePort,
    protocol: "http",
    telemetry: false,
    httpClient: observedHttpClient(observe, plant),
  });
  const stripe = holdfast.stripe(plain);
  return {
    holdfast,
    stripe,
    plain,
    async charge(customerId = call.customerId) {
      const start = performance.now();
      try {
        const { id, status } = await pay(stripe, call, customerId).catch((error: unknown) =>
          chargeAnyway(plain, call, plant, error),
        );
        return { ok: id, status, ms: performance.now() - start };
      } catch (error) {
        return failedOutcome(error, performance.now() - start);
      }
    },
  };
}

/** What an application caught. */
export function failedOutcome(error: unknown, ms: number): BillingOutcome {
  const { name, message, code = "" } = error as Error & { code?: string };
  return { error: name, code, message, ms };
}

function timeOptions(time: VirtualTime | BillingTime | undefined): { clock?: Clock; timers?: Timers } {
  if (time === undefined) return {};
  if ("now" in time) return { clock: time, timers: time };
  return time;
}

async function pay(
  stripe: GuardedStripe,
  call: BillingCall,
  customerId: string,
): Promise<{ id: string; status: string }> {
  const { amount, retryAfterGeneration: failed } = call;
  const spend = {
    customerId,
    billingPeriod,
    purpose,
    ...(failed === undefined ? {} : { retryAfterGeneration: failed }),
  };
  const common = { amount, currency: "usd", customer: customerId };
  if (call.kind === "one_call") {
    const capture = call.capture === undefined ? {} : { capture: call.capture };
    const charge = await stripe.charges.create({ ...common, source: call.card ?? "tok_visa", ...capture }, { spend });
    return { id: charge.id, status: charge.captured ? charge.status : "uncaptured" };
  }
  const later = call.work === "raise_and_capture";
  const intent = await stripe.paymentIntents.create(
    {
      ...common,
      payment_method: call.card ?? "pm_card_visa",
      confirm: true,
      ...(later ? { capture_method: "manual" } : {}),
    },
    { spend },
  );
  if (!later || intent.status !== "requires_capture") return intent;
  const raised = { amount: amount + raisedBy };
  if (intent.amount < raised.amount) await stripe.paymentIntents.incrementAuthorization(intent.id, raised);
  return await stripe.paymentIntents.capture(intent.id);
}

function observedHttpClient(observe: Observer, plant: Plant | undefined): StripeHttpClient {
  const inner = plantedHttpClient(Stripe.createNodeHttpClient() as unknown as StripeHttpClient, plant);
  return {
    getClientName: () => inner.getClientName(),
    async makeRequest(host, port, path, method, ...rest) {
      const request = `${method} ${path.replace(/(pi|ch)_\w+/, ":id")}`;
      await observe(`before ${request}`);
      const response = await inner.makeRequest(host, port, path, method, ...rest);
      // Read to its end first: the answer has arrived, and only this process does not know it yet.
      const body = await response.toJSON();
      await observe(`after ${request}`);
      return {
        getStatusCode: () => response.getStatusCode(),
        getHeaders: () => response.getHeaders(),
        getRawResponse: () => response.getRawResponse(),
        toStream: (done) => response.toStream(done),
        toJSON: () => Promise.resolve(body),
      };
    },
  };
}

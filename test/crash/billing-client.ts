import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { createHoldfast, type Holdfast } from "@holdfast/sdk";
import Stripe from "stripe";
import type { StripeHttpClient } from "../../sdk/stripe-http.ts";
import type { VirtualTime } from "../support/virtual-time.ts";
import { type BillingCall, type BillingOutcome, billingPeriod, purpose } from "./billing-call.ts";

/**
 * Told before and after every RPC and every vendor request; nothing goes on before it has resolved. Rejecting after an
 * RPC loses the answer of what was carried out.
 */
export type Observer = (point: string) => Promise<void>;

export interface BillingClient {
  readonly holdfast: Holdfast;
  /** Charges the call's customer, or another one, and says what became of it. Never rejects. */
  charge(this: void, customerId?: string): Promise<BillingOutcome>;
}

/** What a billing service is made of, for one customer. In real time unless another is given. */
export function createBillingClient(
  call: BillingCall,
  observe: Observer = () => Promise.resolve(),
  time?: VirtualTime,
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
    transport: createGrpcTransport({ baseUrl: call.baseUrl, interceptors: [around] }),
    ...(time === undefined ? {} : { clock: time, timers: time }),
  });
  const stripe = holdfast.stripe(
    new Stripe("sk_test_1", {
      host: "127.0.0.1",
      port: call.stripePort,
      protocol: "http",
      telemetry: false,
      httpClient: observedHttpClient(observe),
    }),
  );
  const pay = async (customerId: string): Promise<{ id: string; status: string }> => {
    const { amount } = call;
    const spend = { customerId, billingPeriod, purpose };
    return call.kind === "two_step"
      ? await stripe.paymentIntents.create(
          { amount, currency: "usd", customer: customerId, payment_method: "pm_card_visa", confirm: true },
          { spend },
        )
      : await stripe.charges.create({ amount, currency: "usd", customer: customerId, source: "tok_visa" }, { spend });
  };
  return {
    holdfast,
    async charge(customerId = call.customerId) {
      const start = performance.now();
      try {
        const { id, status } = await pay(customerId);
        return { ok: id, status, ms: performance.now() - start };
      } catch (error) {
        const { name, message, code = "" } = error as Error & { code?: string };
        return { error: name, code, message, ms: performance.now() - start };
      }
    },
  };
}

function observedHttpClient(observe: Observer): StripeHttpClient {
  const inner = Stripe.createNodeHttpClient() as unknown as StripeHttpClient;
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

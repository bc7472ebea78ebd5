import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { createHoldfast, type Holdfast, type HoldfastOptions, type ReconcileReport } from "@holdfast/sdk";
import type Stripe from "stripe";
import { type BillingKind, billingPeriod, purpose } from "../crash/billing-call.ts";
import type { Observer } from "../crash/billing-client.ts";
import { amount, type Desk, openDesk } from "../crash/desk.ts";
import { stripeAt, timedTransport } from "../sdk/setup.ts";
import { createVirtualTime, type VirtualTime } from "../support/virtual-time.ts";

export interface ClerkOptions extends Partial<HoldfastOptions> {
  /** Told before and after every RPC; rejecting afterwards loses the answer. */
  readonly observe?: Observer;
  /** Where the vendor is reached, if not directly. */
  readonly stripePort?: number;
}

/** One billing process: nothing in it is shared with another one. */
export interface Clerk {
  readonly holdfast: Holdfast;
  readonly plain: Stripe;
  /** Of this process alone. It goes by itself to whatever comes next, but not while the vendor is at a request. */
  readonly time: VirtualTime;
  /** Charges a customer. Rejects with what the application would see. */
  charge(this: void, customerId: string, kind?: BillingKind, retryAfterGeneration?: number): Promise<Charged>;
  reconcile(this: void): Promise<ReconcileReport>;
}

export interface Charged {
  readonly id: string;
  readonly status: string | null;
}

/** A real server, a vendor, and billing processes whose own waiting takes no time. */
export interface Till extends Desk {
  clerk(options?: ClerkOptions): Clerk;
  /** Moves the clocks of the server and the vendor together. */
  advance(ms: number): Promise<void>;
  /** State of the last generation. */
  state(customerId: string): Promise<string>;
}

export { amount };
export const HOUR_MS = 3_600_000;

export async function openTill(): Promise<Till> {
  const desk = await openDesk();
  const closers: (() => Promise<unknown>)[] = [];
  return {
    ...desk,
    clerk(options = {}) {
      const { clerk, close } = createClerk(desk, options);
      closers.push(close);
      return clerk;
    },
    async advance(ms) {
      await desk.server.clock.advance(ms);
      desk.simulator.advance(ms);
    },
    async state(customerId) {
      return (await desk.generations(customerId)).at(-1)?.state ?? "none";
    },
    async close() {
      desk.simulator.clearFaults();
      await Promise.all(closers.map((close) => close()));
      await desk.close();
    },
  };
}

function createClerk(desk: Desk, options: ClerkOptions): { clerk: Clerk; close: () => Promise<void> } {
  const { observe, stripePort: port = desk.simulator.port, ...settings } = options;
  const time = createVirtualTime();
  time.flow();
  const around: Interceptor = (next) => async (request) => {
    await observe?.(`before ${request.method.name}`);
    const response = await next(request);
    await observe?.(`after ${request.method.name}`);
    return response;
  };
  const transport = createGrpcTransport({ baseUrl: desk.server.apps[0]?.url ?? "", interceptors: [around] });
  const holdfast = createHoldfast({
    vaultKey: desk.vaultKey,
    transport: timedTransport(time, transport),
    clock: time,
    timers: time,
    ...settings,
  });
  // Its own pauses between two tries would be real ones.
  const plain = stripeAt(time, { host: "127.0.0.1", port }, { maxNetworkRetries: 0 });
  const stripe = holdfast.stripe(plain);
  const clerk: Clerk = {
    holdfast,
    plain,
    time,
    charge(customerId, kind = "two_step", retryAfterGeneration = 0) {
      const spend = { customerId, billingPeriod, purpose, retryAfterGeneration };
      const body = { amount, currency: "usd", customer: customerId };
      return kind === "two_step"
        ? stripe.paymentIntents.create({ ...body, payment_method: "pm_card_visa", confirm: true }, { spend })
        : stripe.charges.create({ ...body, source: "tok_visa" }, { spend });
    },
    reconcile: () => holdfast.reconcile(plain, { includeNotDue: true }),
  };
  return {
    clerk,
    async close() {
      await holdfast.close();
      time.stop();
    },
  };
}

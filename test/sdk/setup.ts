import { createHoldfast, type Holdfast, type HoldfastOptions, type OnDecline } from "@holdfast/sdk";
import Stripe from "stripe";
import { createFakeControlPlane, type FakeControlPlane } from "../support/fake-control-plane.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

export const SPEND = { customerId: "cust_123", billingPeriod: "2026-11", purpose: "subscription" };
export const PAYMENT = {
  amount: 4900,
  currency: "usd",
  customer: "cus_1",
  payment_method: "pm_card_visa",
  confirm: true,
} as const;
export const CHARGE = { amount: 4900, currency: "usd", customer: "cus_1", source: "tok_visa" } as const;

export interface World {
  readonly simulator: StripeSimulator;
  readonly plane: FakeControlPlane;
  readonly errors: unknown[];
  readonly plain: Stripe;
  holdfast(options?: Partial<HoldfastOptions>): Holdfast;
  stripe(options?: Partial<HoldfastOptions> & { onDecline?: OnDecline }): ReturnType<Holdfast["stripe"]>;
  /** Method, path and key of every POST that reached the vendor. */
  posts(): string[];
  charges(): number;
  close(): Promise<void>;
}

/** A vendor, a control plane in memory and clients between them. Every client is a caller of its own. */
export async function startWorld(): Promise<World> {
  const simulator = await startStripeSimulator();
  const plane = createFakeControlPlane();
  const errors: unknown[] = [];
  const plain = new Stripe("sk_test_1", {
    host: simulator.host,
    port: simulator.port,
    protocol: "http",
    telemetry: false,
  });
  const opened: Holdfast[] = [];
  const world: World = {
    simulator,
    plane,
    errors,
    plain,
    holdfast(options = {}) {
      const holdfast = createHoldfast({
        baseUrl: "http://unused",
        vaultKey: "vk_test",
        transport: plane.transport,
        timeoutMs: 4_000,
        vendorDeadlineMs: 3_000,
        onBackgroundError: (error) => errors.push(error),
        ...options,
      });
      opened.push(holdfast);
      return holdfast;
    },
    stripe({ onDecline, ...options } = {}) {
      return world.holdfast(options).stripe(plain, onDecline === undefined ? {} : { onDecline });
    },
    posts: () =>
      simulator
        .requests()
        .filter(({ method }) => method === "POST")
        .map(({ path, key }) => `${path.replace(/(pi|ch)_\w+/, ":id")} ${key}`),
    charges: () => simulator.movements().filter(({ kind }) => kind === "charge").length,
    async close() {
      simulator.clearFaults();
      await Promise.all(opened.map((holdfast) => holdfast.close()));
      await simulator.close();
    },
  };
  return world;
}

/** What a promise was rejected with. */
export async function rejection(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("was not rejected");
}

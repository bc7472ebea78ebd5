import { createHoldfast, type GuardedStripe, type Holdfast, type HoldfastOptions, type OnDecline } from "@holdfast/sdk";
import type { Transport } from "@connectrpc/connect";
import Stripe from "stripe";
import type { StripeHttpClient } from "../../sdk/stripe-http.ts";
import { createFakeControlPlane, type FakeControlPlane } from "../support/fake-control-plane.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";
import { createVirtualTime, type VirtualTime } from "../support/virtual-time.ts";

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
  /** The time of every client; the control plane's moves with it. It flows, unless the test asked for one that stands. */
  readonly time: VirtualTime;
  readonly errors: unknown[];
  readonly plain: Stripe;
  /** Of a vendor that cannot be connected to. */
  readonly unreachable: Stripe;
  holdfast(options?: Partial<HoldfastOptions>): Holdfast;
  stripe(options?: Partial<HoldfastOptions> & { onDecline?: OnDecline }): GuardedStripe;
  /** Method, path and key of every POST that reached the vendor. */
  posts(): string[];
  charges(): number;
  close(): Promise<void>;
}

/** A vendor, a control plane in memory and clients between them. Every client is a caller of its own. */
export async function startWorld({ time: kind = "flows" }: { time?: "flows" | "stands" } = {}): Promise<World> {
  const simulator = await startStripeSimulator();
  const plane = createFakeControlPlane();
  const time = createVirtualTime((ms) => plane.advance(ms));
  if (kind === "flows") time.flow();
  const errors: unknown[] = [];
  const plain = stripeAt(time, simulator);
  const unreachable = stripeAt(time, { host: "127.0.0.1", port: 1 });
  const opened: Holdfast[] = [];
  const world: World = {
    simulator,
    plane,
    time,
    errors,
    plain,
    unreachable,
    holdfast(options = {}) {
      const holdfast = createHoldfast({
        baseUrl: "http://unused",
        vaultKey: "vk_test",
        transport: timedTransport(time, plane.transport),
        clock: time,
        timers: time,
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
      time.flow();
      await Promise.all(opened.map((holdfast) => holdfast.close()));
      time.stop();
      await simulator.close();
    },
  };
  return world;
}

/** A transport whose calls hold the time back, and which end by this time alone. */
export function timedTransport(time: VirtualTime, transport: Transport): Transport {
  return {
    unary: (method, signal, timeoutMs, ...rest) =>
      time.during(transport.unary(method, signal, undefined, ...rest), timeoutMs),
    stream: (...args) => transport.stream(...args),
  };
}

// Only guards against hanging: requests end by the virtual time.
const SOCKET_TIMEOUT_MS = 60_000;

/** A client whose requests hold the time back, and end by it. */
export function stripeAt(
  time: VirtualTime,
  address: { host: string; port: number; protocol?: "http" | "https" },
  config: Omit<Stripe.StripeConfig, "protocol"> = {},
): Stripe {
  const { host, port, protocol = "http" } = address;
  const inner = Stripe.createNodeHttpClient() as unknown as StripeHttpClient;
  const client: StripeHttpClient = {
    getClientName: () => inner.getClientName(),
    makeRequest: (...args) => {
      const [address, portNumber, path, method, headers, body, protocol, timeoutMs] = args;
      const request = async () => {
        const response = await inner.makeRequest(
          address,
          portNumber,
          path,
          method,
          headers,
          body,
          protocol,
          SOCKET_TIMEOUT_MS,
        );
        const toJSON = response.toJSON.bind(response);
        response.toJSON = () => time.during(toJSON(), timeoutMs);
        return response;
      };
      return time.during(request(), timeoutMs);
    },
  };
  const httpClient = client as unknown as Stripe.HttpClient;
  return new Stripe("sk_test_1", { host, port, protocol, telemetry: false, httpClient, ...config });
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

/** The id of an object that Stripe answers as an id or expanded. */
export function idOf(value: string | { readonly id?: string } | null): string {
  const id = typeof value === "string" ? value : value?.id;
  if (id === undefined) throw new Error("no id");
  return id;
}

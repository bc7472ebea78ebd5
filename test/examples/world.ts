import { createHoldfast, type GuardedStripe, type Holdfast } from "@holdfast/sdk";
import Stripe from "stripe";
import { startTestServer, type TestServer } from "../support/server.ts";
import { startStripeSimulator, type StripeSimulator } from "../support/stripe-simulator/index.ts";

export const BILLING_PERIOD = "2026-11";

/** Somebody who is billed in an example: the fields that every example needs, under all of their names. */
export interface Payer {
  readonly id: string;
  readonly customerId: string;
  readonly stripeCustomer: string;
  readonly paymentMethod: string;
  readonly amount: number;
}

/** Real servers on a real Postgres, and a vendor whose file of movements is the truth. */
export interface World {
  readonly server: TestServer;
  readonly simulator: StripeSimulator;
  readonly baseUrl: string;
  readonly vaultKey: string;
  /** A client of its own, as every process of a user has one. */
  client(): { readonly holdfast: Holdfast; readonly plain: Stripe; readonly stripe: GuardedStripe };
  /** How often each customer was charged. */
  charges(): Record<string, number>;
  close(): Promise<void>;
}

export async function startWorld(): Promise<World> {
  const server = await startTestServer({ protocol: "grpc" });
  const simulator = await startStripeSimulator();
  await server.cap("all", "1000");
  const vaultKey = await server.vaultKey("billing");
  const baseUrl = server.apps[0]?.url ?? "";
  const opened: Holdfast[] = [];
  return {
    server,
    simulator,
    baseUrl,
    vaultKey,
    client() {
      const holdfast = createHoldfast({ baseUrl, vaultKey });
      opened.push(holdfast);
      const { host, port } = simulator;
      const plain = new Stripe("sk_test_1", { host, port, protocol: "http", telemetry: false });
      return { holdfast, plain, stripe: holdfast.stripe(plain) };
    },
    charges() {
      const counts: Record<string, number> = {};
      for (const { customer } of simulator.movements()) counts[String(customer)] = (counts[String(customer)] ?? 0) + 1;
      return counts;
    },
    async close() {
      simulator.clearFaults();
      await Promise.all(opened.map((holdfast) => holdfast.close()));
      await simulator.close();
      await server.close();
    },
  };
}

/** Customers "cus_1" to "cus_<count>", 5.00 USD each, with a good card. */
export function payers(count: number): Payer[] {
  return Array.from({ length: count }, (_, index) => {
    const number = index + 1;
    const id = `cust_${number}`;
    return { id, customerId: id, stripeCustomer: `cus_${number}`, paymentMethod: "pm_card_visa", amount: 500 };
  });
}

/** One charge for each of "cus_1" to "cus_<count>". */
export function oneEach(count: number): Record<string, number> {
  return Object.fromEntries(payers(count).map(({ stripeCustomer }) => [stripeCustomer, 1]));
}

/** Collects what an example reports, and fails the first report of each payer, as a database may. */
export function failingOnce<Payment>(): {
  readonly seen: Map<string, Payment[]>;
  report(id: string, payment: Payment): Promise<void>;
} {
  const seen = new Map<string, Payment[]>();
  return {
    seen,
    report(id, payment) {
      const payments = [...(seen.get(id) ?? []), payment];
      seen.set(id, payments);
      return payments.length === 1 ? Promise.reject(new Error("The database is away.")) : Promise.resolve();
    },
  };
}

import { randomBytes } from "node:crypto";
import type { SimulatorClock } from "./clock.ts";
import type { Params } from "./form.ts";
import type { MovementLedger } from "./movements.ts";
import type { Charge, Customer, PaymentIntent, Refund, StripeEvent } from "./objects.ts";

/** Everything one Stripe account holds, in order of creation. Lives in memory only: it outlives clients, not us. */
export interface Account {
  readonly id: string;
  readonly customers: Map<string, Customer>;
  readonly charges: Map<string, Charge>;
  readonly paymentIntents: Map<string, PaymentIntent>;
  readonly refunds: Map<string, Refund>;
  readonly events: Map<string, StripeEvent>;
  /** Intents whose customer has passed the bank's check in a browser. */
  readonly authenticated: Set<string>;
}

export function newAccount(id: string): Account {
  return {
    id,
    customers: new Map(),
    charges: new Map(),
    paymentIntents: new Map(),
    refunds: new Map(),
    events: new Map(),
    authenticated: new Set(),
  };
}

/** How long after its creation an object stays invisible to a kind of read, in milliseconds. */
export interface ReadLag {
  readonly search: number;
  readonly lists: number;
  readonly events: number;
}

/** What an endpoint sees of one request. */
export interface Context {
  readonly account: Account;
  readonly params: Params;
  /** The ids in the path, in order. */
  readonly ids: readonly string[];
  /** What events say about their cause; null for what Stripe does by itself. */
  readonly origin: StripeEvent["request"];
  readonly clock: SimulatorClock;
  readonly ledger: MovementLedger;
  readonly lag: ReadLag;
  /** A fault asked for a decline whatever the card says; the text is the decline code. */
  readonly forcedDecline?: string;
}

/**
 * A request that passed validation. `run` is its execution: what it returns or throws is saved under the key.
 * `lock` names the object that only one execution may use at a time.
 */
export interface Prepared {
  readonly lock?: string;
  readonly run: () => object;
}

/** Checks a request (throws what is not saved) and returns its execution. */
export type Endpoint = (context: Context) => Prepared;

export function newId(prefix: string): string {
  return `${prefix}_${randomBytes(12).toString("hex")}`;
}

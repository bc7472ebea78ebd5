import { randomBytes } from "node:crypto";
import type { Agenda } from "./agenda.ts";
import type { SimulatorClock } from "./clock.ts";
import type { Params } from "./form.ts";
import type { MovementLedger } from "./movements.ts";
import type { Charge, Customer, PaymentIntent, Refund, StripeEvent } from "./objects.ts";

/** What every object of Stripe has. `created` is in seconds, in the v2 API an ISO time. */
export interface Stored {
  id: string;
  object: string;
  created: number | string;
}

/** Everything one Stripe account holds, in order of creation. Lives in memory only: it outlives clients, not us. */
export interface Account {
  readonly id: string;
  /** Every object by its kind, those that have a field of their own below included. */
  readonly objects: Map<string, Map<string, Stored>>;
  readonly customers: Map<string, Customer>;
  readonly charges: Map<string, Charge>;
  readonly paymentIntents: Map<string, PaymentIntent>;
  readonly refunds: Map<string, Refund>;
  readonly events: Map<string, StripeEvent>;
  /** Intents whose customer has passed the bank's check in a browser. */
  readonly authenticated: Set<string>;
  /** By intent: what it pays for. */
  readonly causes: Map<string, Cause>;
}

/** An invoice, session or link that an intent pays for. */
export interface Cause {
  readonly id: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Called when all of it is paid. */
  readonly onPaid?: (context: Context) => void;
}

export function newAccount(id: string): Account {
  const account = { id, objects: new Map<string, Map<string, Stored>>() };
  return {
    ...account,
    customers: collectionOf(account, "customer"),
    charges: collectionOf(account, "charge"),
    paymentIntents: collectionOf(account, "payment_intent"),
    refunds: collectionOf(account, "refund"),
    events: collectionOf(account, "event"),
    authenticated: new Set(),
    causes: new Map(),
  };
}

/** The objects of one kind. The caller says which type that kind has. */
export function collectionOf<T extends Stored>(account: Pick<Account, "objects">, kind: string): Map<string, T> {
  const present = account.objects.get(kind);
  if (present !== undefined) return present as Map<string, T>;
  const empty = new Map<string, T>();
  account.objects.set(kind, empty);
  return empty;
}

/** Puts an object among those of its kind. */
export function keep<T extends Stored>(account: Account, object: T): T {
  collectionOf<T>(account, object.object).set(object.id, object);
  return object;
}

/** The object of any kind that has this id. */
export function findObject(account: Account, id: string): Stored | undefined {
  for (const objects of account.objects.values()) {
    const found = objects.get(id);
    if (found !== undefined) return found;
  }
  return undefined;
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
  /** What Stripe will do by itself later. */
  readonly agenda: Agenda;
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

/** `:id` stands for one segment; literal routes come before those that would swallow them. */
export type Routes = readonly (readonly [method: "GET" | "POST" | "DELETE", pattern: string, endpoint: Endpoint])[];

export function newId(prefix: string): string {
  return `${prefix}_${randomBytes(12).toString("hex")}`;
}

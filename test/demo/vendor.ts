import { readMovements } from "../support/stripe-simulator/movements.ts";
import type { Call } from "./billing-job.ts";

/** A charge that really happened, as the vendor itself tells it. */
export interface VendorCharge {
  readonly id: string;
  readonly customerId: string;
  readonly cents: number;
}

/** Who moves the money in this demo. */
export interface Vendor {
  readonly name: string;
  readonly port: number;
  /** The truth: all charges so far. */
  charges(): Promise<readonly VendorCharge[]>;
  /** From now on, cut the connection of every nth charge after it was accepted, `times` times in all. */
  dropConnections(drops: Drops): Promise<void>;
  /** No more drops; tells how many there were. */
  endDrops(): Promise<number>;
  /** Moves the vendor's clock, where it has one that can be moved. */
  advance(ms: number): Promise<void>;
}

export interface Drops {
  readonly call: Call;
  /** True if the guard splits the call into its two steps. */
  readonly isTwoStep: boolean;
  readonly everyNth: number;
  readonly times: number;
}

const controlMs = 60_000;

/** The simulator of this repository, in a process of its own. */
export function simulatorVendor(port: number, movementsFile: string): Vendor {
  const control = async (method: string, path: string, body?: object): Promise<unknown> => {
    const response = await fetch(`http://127.0.0.1:${port}/_simulator/${path}`, {
      method,
      signal: AbortSignal.timeout(controlMs),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const answer: unknown = await response.json();
    if (!response.ok) throw new Error(`The simulator refused ${method} ${path}: ${JSON.stringify(answer)}`);
    return answer;
  };
  const requestsMet = async (): Promise<number> => {
    const requests = (await control("GET", "requests")) as readonly { readonly fault: string | null }[];
    return requests.filter(({ fault }) => fault !== null).length;
  };
  let metBefore = 0;
  return {
    name: "simulator",
    port,
    charges: () =>
      Promise.resolve(
        readMovements(movementsFile)
          .filter(({ kind }) => kind === "charge")
          .map(({ id, metadata, amount }) => ({ id, customerId: metadata["customer_id"] ?? "", cents: amount })),
      ),
    async dropConnections(drops) {
      metBefore = await requestsMet();
      for (const fault of simulatorFaults(drops)) await control("POST", "faults", fault);
    },
    async endDrops() {
      await control("DELETE", "faults");
      return (await requestsMet()) - metBefore;
    },
    async advance(ms) {
      await control("POST", "clock", { advanceMs: ms });
    },
  };
}

function simulatorFaults({ call, isTwoStep, everyNth, times }: Drops): readonly object[] {
  const creation = call === "charge" ? "^/v1/charges$" : "^/v1/payment_intents$";
  const confirmation = "^/v1/payment_intents/[^/]+/confirm$";
  // In the middle of the answer: after a reset before it, Stripe's client repeats the request by itself, with its key.
  const drop = (path: string, nth: number) => ({
    mode: "truncate_body",
    match: { method: "POST", path, nth },
  });
  return Array.from({ length: times }, (_, index) => {
    const nth = everyNth * (index + 1);
    // In two steps the money moves at the confirmation; the creation before it is hit as well.
    if (!isTwoStep) return [drop(creation, nth)];
    // The look at the object after a lost confirmation is lost too, so that the retrying code has something to do.
    const look = { mode: "drop_before_execute", match: { method: "GET", path: "/v1/payment_intents/", nth: 2 } };
    return [drop(confirmation, nth), drop(creation, nth - 1), look];
  }).flat();
}

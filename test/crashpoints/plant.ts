import { randomUUID } from "node:crypto";
import { SpendInDoubtError, stableKey } from "@holdfast/sdk";
import type pg from "pg";
import type Stripe from "stripe";
import type { StripeHttpClient, StripeHttpResponse } from "../../sdk/stripe-http.ts";
import { type BillingCall, billingPeriod, purpose } from "../crash/billing-call.ts";

/** Mistakes that the check must find. */
export const plants = [
  "release on expiry",
  "send again after the hold",
  "void on 5xx",
  "a new key every time",
] as const;

export type Plant = (typeof plants)[number];

/** A control plane that forgets a hold when its time is over. */
export async function plantInDatabase(pool: pg.Pool, plant: Plant): Promise<void> {
  if (plant !== "release on expiry") return;
  await pool.query(
    `create or replace function holdfast.doubt_authorization(p_row holdfast.authorizations, p_now timestamptz)
     returns void language sql volatile
     as $$ select holdfast.void_authorization(p_row, p_now, 'NEVER_SENT', 'too old', 'server', 'sweep', '') $$`,
  );
}

/** A client of the vendor that takes a 5xx for a decline, or makes a new key for every request. */
export function plantedHttpClient(inner: StripeHttpClient, plant: Plant | undefined): StripeHttpClient {
  if (plant !== "void on 5xx" && plant !== "a new key every time") return inner;
  return {
    getClientName: () => inner.getClientName(),
    async makeRequest(host, port, path, method, headers, ...rest) {
      const isNew = plant === "a new key every time" && method === "POST";
      const sent = isNew ? { ...headers, "Idempotency-Key": randomUUID() } : headers;
      const response = await inner.makeRequest(host, port, path, method, sent, ...rest);
      return plant === "void on 5xx" && response.getStatusCode() >= 500 ? decline(response) : response;
    },
  };
}

function decline(response: StripeHttpResponse): StripeHttpResponse {
  const error = { type: "card_error", code: "card_declined", message: "declined" };
  return {
    getStatusCode: () => 402,
    getHeaders: () => ({ "content-type": "application/json", "request-id": "req_planted" }),
    getRawResponse: () => response.getRawResponse(),
    toStream: (done) => response.toStream(done),
    toJSON: () => Promise.resolve({ error }),
  };
}

/** A service that sends the charge again by itself where it was told of a doubt. */
export async function chargeAnyway(
  plain: Stripe,
  call: BillingCall,
  plant: Plant | undefined,
  error: unknown,
): Promise<{ id: string; status: string }> {
  if (plant !== "send again after the hold" || call.kind !== "one_call" || !(error instanceof SpendInDoubtError)) {
    throw error;
  }
  const { amount, customerId: customer } = call;
  const idempotencyKey = stableKey(customer, billingPeriod, purpose);
  return await plain.charges.create({ amount, currency: "usd", customer, source: "tok_visa" }, { idempotencyKey });
}

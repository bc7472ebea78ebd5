import Stripe from "stripe";
import type { StripeSimulator } from "./index.ts";

/** A Stripe client that talks to the simulator, and tries everything once. */
export function clientOf(simulator: Pick<StripeSimulator, "host" | "port">, secret = "sk_test_1"): Stripe {
  return new Stripe(secret, {
    host: simulator.host,
    port: simulator.port,
    protocol: "http",
    telemetry: false,
    maxNetworkRetries: 0,
  });
}

/** The error that a call ends with. Throws when it is not refused by the API. */
export async function refusalOf(call: Promise<unknown>): Promise<Stripe.errors.StripeError> {
  const error: unknown = await call.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (!(error instanceof Stripe.errors.StripeError)) throw new Error("The call was not refused.", { cause: error });
  return error;
}

import type { StripeGet, StripeRead } from "./reconcile-stripe.ts";
import type { StripeLike } from "./stripe.ts";

/** Reads through the application's own Stripe client. */
export function getThrough(stripe: StripeLike): StripeGet {
  return async (path, account): Promise<StripeRead> => {
    try {
      const body = await stripe.rawRequest("GET", path, undefined, account === "" ? {} : { stripeAccount: account });
      return { kind: "answer", status: 200, body };
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      const status = statusOf(error);
      if (status === undefined) return { kind: "lost", why: message };
      return { kind: "answer", status, body: { error: { message } } };
    }
  };
}

function statusOf(error: unknown): number | undefined {
  const status = error instanceof Error && "statusCode" in error ? error.statusCode : undefined;
  return typeof status === "number" ? status : undefined;
}

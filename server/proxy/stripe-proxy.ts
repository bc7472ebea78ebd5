import type { Transport } from "@connectrpc/connect";
import type { Authenticate } from "../rpc/auth.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import { createProxy } from "./proxy.ts";
import { createProxyParts } from "./proxy-parts.ts";
import { type CarrierLimits, createStripeCarrier } from "./stripe-carrier.ts";
import { proxiedStripe } from "./stripe-proxied.ts";
import type { ProxyHandler } from "./vendor.ts";

export interface StripeProxyOptions {
  /** Refuses what the database cannot do now. */
  readonly database: Database;
  readonly cipher: CredentialCipher;
  readonly authenticate: Authenticate;
  /** To the control plane of this process. */
  readonly transport: Transport;
  /** Where Stripe is: scheme, host and port. */
  readonly origin: string;
  /** 32 random hex digits. */
  readonly random: () => string;
  readonly onError: (error: unknown) => void;
  readonly limits?: Partial<CarrierLimits>;
}

/** The proxy of Stripe: what a listener serves. */
export function createStripeProxy(options: StripeProxyOptions): ProxyHandler {
  const { database, cipher, authenticate, transport, origin, random, onError, limits = {} } = options;
  const carrier = createStripeCarrier({ transport, origin, onError, limits });
  const vendor = proxiedStripe(carrier);
  return createProxy(
    createProxyParts({ vendor, database, cipher, authenticate, random, nowMs: () => performance.now(), onError }),
  );
}

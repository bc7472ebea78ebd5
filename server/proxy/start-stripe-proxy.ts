import { randomBytes } from "node:crypto";
import type { Transport } from "@connectrpc/connect";
import type { Logger } from "pino";
import type { ProxyConfig } from "../config.ts";
import { type AuthOptions, createAuthenticator } from "../rpc/auth.ts";
import type { TlsSettings } from "../rpc/listener-tls.ts";
import type { CredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import type { ProxyListener } from "./listener.ts";
import { startProxy } from "./start-proxy.ts";
import { createStripeProxy } from "./stripe-proxy.ts";

export interface StripeProxyParts {
  readonly settings: ProxyConfig;
  /** Refuses what the database cannot do now. */
  readonly database: Database;
  readonly cipher: CredentialCipher;
  readonly lookupToken: AuthOptions["lookupToken"];
  /** To the control plane of this process. */
  readonly inProcess: Transport;
  readonly stripeOrigin: string;
  readonly tls: TlsSettings | undefined;
  readonly log: Logger;
}

/** Serves Stripe's API. Rejects with a StartupError if the address cannot be bound. */
export function startStripeProxy(parts: StripeProxyParts): Promise<ProxyListener> {
  const { settings, database, cipher, lookupToken, inProcess, stripeOrigin, tls, log } = parts;
  const handler = createStripeProxy({
    database,
    cipher,
    authenticate: createAuthenticator({ lookupToken, log }),
    transport: inProcess,
    origin: stripeOrigin,
    random: () => randomBytes(16).toString("hex"),
    onError: (error) => log.warn({ err: error }, "a part of a proxied request failed"),
  });
  return startProxy({ settings, handler, tls, log });
}

import { randomBytes } from "node:crypto";
import { type Runtime, systemClock, systemRandom, systemTimers } from "@holdfast/sdk/stripe-vendor";
import type { CommitCommand } from "../domain/spend.ts";
import type { CredentialTrial } from "../domain/vendor-credential.ts";
import { type CredentialCipher, type CredentialKeys, createCredentialCipher } from "../store/credential-cipher.ts";
import type { Database } from "../store/database.ts";
import type { GroupCommit } from "../store/group-commit.ts";
import type { CommitResult } from "../store/spend.ts";
import { checkVendorCredentials } from "../store/vendor-credential.ts";
import { startReconciler } from "./reconciler.ts";
import { createReconcilerFigures } from "./reconciler-figures.ts";
import { tryStripeSecret } from "./stripe-account.ts";
import { createStripeClient } from "./stripe-client.ts";

export interface VendorSettings {
  readonly credentialKeys?: CredentialKeys;
  readonly stripeOrigin: string;
  readonly reconcileIntervalMs: number;
  readonly reconcileReadsPerSecond: number;
  readonly reconcileReadsPerAuthorization: number;
}

/** What a server has to do with vendors. */
export interface Vendors {
  /** Undefined where the server has no key: no credential can be stored. */
  readonly cipher: CredentialCipher | undefined;
  readonly tryOut: (secret: string) => Promise<CredentialTrial>;
  /** Begins to reconcile, where there is a key. */
  start(options: {
    readonly commits: GroupCommit<CommitCommand, CommitResult>;
    readonly onError: (error: unknown) => void;
  }): void;
  stop(): Promise<void>;
}

/**
 * Opens what is stored for vendors.
 *
 * @throws StartupError 87 where a stored credential cannot be opened with the keys of the settings.
 */
export async function openVendors(database: Database, settings: VendorSettings): Promise<Vendors> {
  const { credentialKeys: keys, stripeOrigin } = settings;
  const cipher = keys === undefined ? undefined : createCredentialCipher(keys, randomBytes);
  await checkVendorCredentials(database, cipher);
  const client = createStripeClient({ origin: stripeOrigin });
  const runtime: Runtime = { clock: systemClock(), timers: systemTimers, random: systemRandom };
  let reconciler: ReturnType<typeof startReconciler> | undefined;
  return {
    cipher,
    tryOut: (secret) => tryStripeSecret(client, secret),
    start({ commits, onError }) {
      if (cipher === undefined) return;
      reconciler = startReconciler({
        database,
        commits,
        client,
        cipher,
        runtime,
        readsPerAuthorization: settings.reconcileReadsPerAuthorization,
        readsPerSecond: settings.reconcileReadsPerSecond,
        intervalMs: settings.reconcileIntervalMs,
        figures: createReconcilerFigures(),
        onError,
      });
    },
    async stop() {
      await reconciler?.stop();
      client.close();
    },
  };
}

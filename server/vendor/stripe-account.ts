import type { CredentialTrial } from "../domain/vendor-credential.ts";
import type { StripeClient } from "./stripe-client.ts";

/** Tries a secret with one harmless read, and learns whose it is. */
export async function tryStripeSecret(client: StripeClient, secret: string): Promise<CredentialTrial> {
  const read = await client.get(secret, "/v1/account", "");
  if (read.kind === "lost") return { kind: "unknown", message: `Stripe did not answer: ${read.why}.` };
  const { status, body } = read;
  const id = fieldOf(body, "id");
  if (status === 200 && typeof id === "string" && /^[!-~]{1,128}$/.test(id)) {
    return { kind: "accepted", vendorAccountId: id };
  }
  if (status === 401) return { kind: "refused", message: "Stripe does not know this secret, or it was revoked (401)." };
  if (status === 403) {
    return {
      kind: "refused",
      message: "The secret may not read the account (403); give a restricted key the permission to read it.",
    };
  }
  return { kind: "unknown", message: `Stripe answered ${status}, which says nothing about the secret.` };
}

function fieldOf(body: unknown, name: string): unknown {
  return typeof body === "object" && body !== null ? (body as Record<string, unknown>)[name] : undefined;
}

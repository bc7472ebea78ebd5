import type { Remembered } from "./carry-out.ts";
import type { Identity } from "./identity.ts";
import { type ProxyRefusal, refuse, type RefusedRequest } from "./refusal.ts";

export function keyRequired(endpoint: string): RefusedRequest {
  return refuse(
    400,
    "idempotency_key_required",
    `${endpoint} moves money and has to say which spend it is: send an Idempotency-Key header, Holdfast-Spend: ` +
      "customer=…; period=…; purpose=…, or the same in the metadata.",
    "Idempotency-Key",
  );
}

export function otherBody(identity: Identity): RefusedRequest {
  return refuse(
    400,
    "idempotency_error",
    identity.kind === "client_key"
      ? "The Idempotency-Key was used before for another request. Send the same request, or another key."
      : "The spend was asked for before with other parameters. Send the same ones, or name another spend.",
  );
}

/** Why a request that was let through before its grant is not sent after all. */
export function stopped(identity: Identity, found: Remembered["kind"] = "go"): ProxyRefusal | undefined {
  switch (found) {
    case "go":
      return undefined;
    case "other_body":
      return otherBody(identity).refusal;
    case "in_doubt":
      return inDoubt;
    case "answer":
      return twinAnswered;
  }
}

export const inDoubt: ProxyRefusal = {
  status: 409,
  code: "spend_in_doubt",
  message:
    "The same request was sent before and its answer is lost, and the vendor may no longer know its Idempotency-Key: " +
    "nothing was sent now. Look at the object; if the change is not there, send it with another key.",
};

const twinAnswered: ProxyRefusal = {
  status: 409,
  code: "idempotency_key_in_use",
  message: "The same request was answered meanwhile, and nothing was sent for this one. Send it again for that answer.",
  retry: true,
};

/**
 * Why a request is not sent with the secret that it was authorized with: the grant's key is good for that one alone, so
 * a rotated secret needs another request.
 */
export function otherCredential(secret: string, stored: string | undefined, vendor: string): ProxyRefusal | undefined {
  if (stored === undefined) return noCredential(vendor);
  return stored === secret ? undefined : credentialRotated;
}

const credentialRotated: ProxyRefusal = {
  status: 503,
  code: "vendor_credential_rotated",
  message: "The vendor's key was exchanged while the request arrived, and nothing was sent. Send it again.",
  retry: true,
};

export function noCredential(vendor: string): ProxyRefusal {
  return {
    status: 403,
    code: "vendor_credential_missing",
    message: `No key of ${vendor} is stored for this workspace. An operator stores one with "holdfast credentials create".`,
  };
}

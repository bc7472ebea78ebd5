import { createCipheriv, createDecipheriv, createHash, createHmac } from "node:crypto";

/** The server's keys for what is stored encrypted: 32 bytes each. */
export interface CredentialKeys {
  /** Encrypts, and opens what it has encrypted. */
  readonly current: Uint8Array;
  /** Only opens: the key before the last exchange, or the one that comes next. */
  readonly previous: Uint8Array | undefined;
}

/** What a stored secret belongs to. It opens in this place only: a row that was moved does not. */
export type SecretPlace = CredentialPlace | AnswerPlace;

/** A vendor's own key. */
interface CredentialPlace {
  readonly workspace: string;
  readonly vendor: string;
  readonly credentialId: string;
}

/** A vendor's answer to a request of the proxy. */
interface AnswerPlace {
  readonly workspace: string;
  readonly vaultKeyId: string;
  readonly requestKey: Uint8Array;
}

/** A secret as it is stored. */
export interface SealedSecret {
  /** Names the key, and tells nothing about it: 16 hex digits. */
  readonly keyId: string;
  readonly nonce: Uint8Array;
  /** With the tag at its end. */
  readonly ciphertext: Uint8Array;
}

export interface CredentialCipher {
  readonly keyId: string;
  seal(secret: string, place: SecretPlace): SealedSecret;
  /** Undefined if none of the server's keys opens it there. */
  open(sealed: SealedSecret, place: SecretPlace): string | undefined;
}

const algorithm = "aes-256-gcm";
const nonceSize = 12;
const tagSize = 16;

/**
 * AES-256-GCM with a random nonce for each row. `random` returns that many random bytes. Answers are without number,
 * and random nonces of one key are not: so each answer has a key of its own, derived from the server's.
 */
export function createCredentialCipher(keys: CredentialKeys, random: (size: number) => Uint8Array): CredentialCipher {
  const byId = new Map(
    [keys.previous, keys.current].filter((key) => key !== undefined).map((key) => [idOf(key), key] as const),
  );
  const keyId = idOf(keys.current);
  return {
    keyId,
    seal(secret, place) {
      const nonce = random(nonceSize);
      const key = keyFor(keys.current, place);
      const cipher = createCipheriv(algorithm, key, nonce, { authTagLength: tagSize }).setAAD(bytesOf(place));
      const ciphertext = Buffer.concat([cipher.update(secret, "utf8"), cipher.final(), cipher.getAuthTag()]);
      return { keyId, nonce, ciphertext };
    },
    open({ keyId: id, nonce, ciphertext }, place) {
      const known = byId.get(id);
      if (known === undefined || ciphertext.length <= tagSize) return undefined;
      const key = keyFor(known, place);
      const end = ciphertext.length - tagSize;
      const decipher = createDecipheriv(algorithm, key, nonce, { authTagLength: tagSize }).setAAD(bytesOf(place));
      decipher.setAuthTag(ciphertext.subarray(end));
      try {
        return Buffer.concat([decipher.update(ciphertext.subarray(0, end)), decipher.final()]).toString("utf8");
      } catch {
        // Another key, another place or a changed row: GCM does not say which, and none of them opens.
        return undefined;
      }
    },
  };
}

/** As JSON, so that no two places have the same bytes. */
function bytesOf(place: SecretPlace): Buffer {
  const { workspace } = place;
  const parts =
    "requestKey" in place
      ? ["holdfast proxied_request 1", workspace, place.vaultKeyId, Buffer.from(place.requestKey).toString("hex")]
      : ["holdfast vendor credential 1", workspace, place.vendor, place.credentialId];
  return Buffer.from(JSON.stringify(parts), "utf8");
}

function keyFor(key: Uint8Array, place: SecretPlace): Uint8Array {
  return "requestKey" in place ? createHmac("sha256", key).update(bytesOf(place)).digest() : key;
}

function idOf(key: Uint8Array): string {
  return createHash("sha256").update("holdfast credential key\n").update(key).digest("hex").slice(0, 16);
}

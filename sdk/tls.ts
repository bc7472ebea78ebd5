import { X509Certificate } from "node:crypto";
import { createSecureContext } from "node:tls";
import { Code, ConnectError } from "@connectrpc/connect";
import { refuseUnknown } from "./option-check.ts";

/** How the connection to the control plane is secured. Everything is PEM text. */
export interface TlsOptions {
  /** Certificates of the authorities to trust instead of the public ones. */
  readonly ca?: string;
  /** This client's certificate and private key, where the server asks for one (mTLS): both or none. */
  readonly cert?: string;
  readonly key?: string;
  /** The name that the server's certificate must carry, if it is not the host of the address. */
  readonly serverName?: string;
}

const TLS_PROPERTIES = { ca: true, cert: true, key: true, serverName: true } as const satisfies Record<
  keyof TlsOptions,
  true
>;

/** Throws a TypeError that names what is wrong; a connection would only fail later. */
export function checkTls(tls: TlsOptions): void {
  refuseUnknown("tls", tls, TLS_PROPERTIES);
  for (const [name, value] of Object.entries(tls)) {
    if (value !== undefined && (typeof value !== "string" || value === "")) {
      throw new TypeError(`tls.${name} must be a text that is not empty. Read the file as UTF-8 first.`);
    }
  }
  if ((tls.cert === undefined) !== (tls.key === undefined)) {
    throw new TypeError("tls.cert and tls.key belong together: give both, or none.");
  }
  try {
    if (tls.ca !== undefined) void new X509Certificate(tls.ca);
  } catch (cause) {
    throw new TypeError('tls.ca must be certificates in PEM, "-----BEGIN CERTIFICATE-----…".', { cause });
  }
  try {
    if (tls.cert !== undefined && tls.key !== undefined) createSecureContext({ cert: tls.cert, key: tls.key });
  } catch (cause) {
    throw new TypeError("tls.cert and tls.key must be a certificate and its own private key, both in PEM.", { cause });
  }
}

// Node's names for what is wrong with a certificate.
const CERTIFICATE_CODES = new Set([
  "CERT_HAS_EXPIRED",
  "CERT_NOT_YET_VALID",
  "CERT_REVOKED",
  "CERT_REJECTED",
  "CERT_UNTRUSTED",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
  "ERR_TLS_CERT_ALTNAME_INVALID",
]);

/**
 * What a failed handshake means; undefined for any other error. It is a mistake in the settings of one of the two
 * sides, which no further try corrects.
 */
export function tlsFailure(error: unknown): ConnectError | undefined {
  if (!(error instanceof Error) || !("code" in error) || typeof error.code !== "string") return undefined;
  const { code } = error;
  if (CERTIFICATE_CODES.has(code)) {
    const remedy = "Check tls.ca and tls.serverName against the server's certificate.";
    return new ConnectError(
      `the server's certificate is not trusted (${code}). ${remedy}`,
      Code.FailedPrecondition,
      undefined,
      undefined,
      error,
    );
  }
  if (!code.startsWith("ERR_SSL_")) return undefined;
  const remedy = "Check that the address speaks TLS, and that tls.cert and tls.key are what the server asks for.";
  return new ConnectError(
    `the TLS handshake failed (${code}). ${remedy}`,
    Code.FailedPrecondition,
    undefined,
    undefined,
    error,
  );
}

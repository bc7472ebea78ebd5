import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { createSecureContext, type SecureVersion } from "node:tls";
import { StartupError } from "../startup-error.ts";

/** Which files secure the port. All are PEM. */
export interface TlsFiles {
  /** The server's certificate, followed by those that lead to its authority. */
  readonly certFile: string;
  readonly keyFile: string;
  /** mTLS: only clients with a certificate of one of these authorities are let in. */
  readonly clientCaFile?: string;
  readonly minVersion: SecureVersion;
}

/** The contents of the files, checked: they are whole, they belong together and the certificate is valid now. */
export interface Certificates {
  readonly cert: string;
  readonly key: string;
  readonly clientCa: string | undefined;
  /** Until when the server's certificate is valid. Milliseconds since 1970. */
  readonly expiresAt: number;
}

/**
 * Reads and checks the files. Throws a StartupError (78) that names, for each file that cannot be used, what is wrong with
 * it and the remedy; no message shows a key.
 */
export function readCertificates(files: TlsFiles, now: () => number): Certificates {
  const problems: string[] = [];
  const attempt = <T>(step: () => T): T | undefined => {
    try {
      return step();
    } catch (error) {
      if (!(error instanceof Unusable)) throw error;
      problems.push(error.message);
      return undefined;
    }
  };
  const own = attempt(() => ownCertificate(files.certFile, now()));
  const key = attempt(() => privateKey(files.keyFile));
  const { clientCaFile } = files;
  const clientCa = clientCaFile === undefined ? undefined : attempt(() => authorities(clientCaFile));
  if (own !== undefined && key !== undefined) attempt(() => belongTogether(files, own.cert, key));
  if (own === undefined || key === undefined || problems.length > 0) {
    throw new StartupError("config", problems.join(" "));
  }
  return { cert: own.cert, key, clientCa, expiresAt: own.expiresAt };
}

/** What one file cannot be used for, and the remedy. */
class Unusable extends Error {}

function ownCertificate(path: string, now: number): { readonly cert: string; readonly expiresAt: number } {
  const named = `HOLDFAST_TLS_CERT_FILE names ${path}`;
  const cert = readFile(named, path);
  const [leaf] = certificatesIn(named, cert);
  const [begins, ends] = [leaf?.validFromDate.getTime() ?? 0, leaf?.validToDate.getTime() ?? 0];
  if (ends <= now) throw new Unusable(`${named}, which expired at ${utc(ends)}; renew it.`);
  if (begins > now) {
    throw new Unusable(`${named}, which is not valid before ${utc(begins)}; check the clock, or use an earlier one.`);
  }
  return { cert, expiresAt: ends };
}

function privateKey(path: string): string {
  const named = `HOLDFAST_TLS_KEY_FILE names ${path}`;
  const key = readFile(named, path);
  if (/-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED/m.test(key)) {
    throw new Unusable(
      `${named}, which is encrypted; decrypt it with "openssl pkey -in encrypted.key -out plain.key" into a file that ` +
        "only the server may read.",
    );
  }
  try {
    createPrivateKey(key);
  } catch (cause) {
    throw new Unusable(`${named}, which is no whole private key in PEM; write the certificate's key there.`, { cause });
  }
  return key;
}

function authorities(path: string): string {
  const named = `HOLDFAST_TLS_CLIENT_CA_FILE names ${path}`;
  const text = readFile(named, path);
  certificatesIn(named, text);
  return text;
}

function belongTogether({ certFile, keyFile }: TlsFiles, cert: string, key: string): void {
  try {
    createSecureContext({ cert, key });
  } catch (cause) {
    const why = (cause as NodeJS.ErrnoException).code ?? "unknown";
    throw new Unusable(
      `HOLDFAST_TLS_KEY_FILE names ${keyFile}, which is not the key of the certificate in ${certFile} (${why}); ` +
        "use the pair that was issued together, the server's own certificate first in its file.",
      { cause },
    );
  }
}

function readFile(named: string, path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    throw new Unusable(
      `${named}, which cannot be read (${code ?? "unknown"}); correct the path, or let the server's user read it.`,
      { cause },
    );
  }
}

/**
 * Every certificate of a file. OpenSSL takes a file of authorities up to the first that it cannot read and says nothing;
 * half a file would then turn away the clients of the authorities in its other half.
 */
function certificatesIn(named: string, pem: string): X509Certificate[] {
  const block = /-----BEGIN ([A-Z0-9 ]+)-----[^]*?-----END \1-----/g;
  const found: X509Certificate[] = [];
  try {
    for (const [text, label] of pem.matchAll(block)) {
      if (label?.endsWith("CERTIFICATE") === true) found.push(new X509Certificate(text));
    }
  } catch (cause) {
    throw new Unusable(`${named}, in which certificate ${found.length + 1} is broken; write the whole file.`, {
      cause,
    });
  }
  if (/^-----/m.test(pem.replace(block, ""))) {
    throw new Unusable(`${named}, which ends within a certificate; write the whole file.`);
  }
  if (found.length === 0) throw new Unusable(`${named}, which is no certificate in PEM; convert or replace it.`);
  return found;
}

function utc(ms: number): string {
  return new Date(ms).toISOString();
}

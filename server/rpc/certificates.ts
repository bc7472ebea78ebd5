import { X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import { createSecureContext, type SecureVersion } from "node:tls";
import { StartupError } from "../startup-error.ts";

/** Which files secure the port. All are PEM. */
export interface TlsFiles {
  /** The server's certificate, followed by those that lead to its authority. */
  readonly certFile: string;
  readonly keyFile: string;
  /** mTLS: only clients with a certificate of this authority are let in. */
  readonly clientCaFile?: string;
  readonly minVersion: SecureVersion;
}

/** The contents of the files, checked: they belong together and the certificate is valid now. */
export interface Certificates {
  readonly cert: string;
  readonly key: string;
  readonly clientCa: string | undefined;
  /** Until when the server's certificate is valid. Milliseconds since 1970. */
  readonly expiresAt: number;
}

/** Reads and checks the files. Throws a StartupError (78) that names the file and the remedy; no message shows a key. */
export function readCertificates(files: TlsFiles, now: () => number): Certificates {
  const cert = readFile("HOLDFAST_TLS_CERT_FILE", files.certFile);
  const key = readFile("HOLDFAST_TLS_KEY_FILE", files.keyFile);
  const clientCa =
    files.clientCaFile === undefined ? undefined : readFile("HOLDFAST_TLS_CLIENT_CA_FILE", files.clientCaFile);
  const parsed = parse("HOLDFAST_TLS_CERT_FILE", files.certFile, cert);
  if (clientCa !== undefined) parse("HOLDFAST_TLS_CLIENT_CA_FILE", files.clientCaFile ?? "", clientCa);
  try {
    createSecureContext({ cert, key });
  } catch (error) {
    throw refused(
      `HOLDFAST_TLS_KEY_FILE names ${files.keyFile}, which is no unencrypted PEM key of the certificate in ${files.certFile}.`,
      error,
    );
  }
  const expiresAt = Date.parse(parsed.validTo);
  if (expiresAt <= now()) throw refused(`The certificate in ${files.certFile} expired at ${parsed.validTo}; renew it.`);
  return { cert, key, clientCa, expiresAt };
}

function readFile(variable: string, path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw refused(`${variable} names ${path}, which cannot be read (${code ?? "unknown"}).`, error);
  }
}

function parse(variable: string, path: string, pem: string): X509Certificate {
  try {
    return new X509Certificate(pem);
  } catch (error) {
    throw refused(`${variable} names ${path}, which is no certificate in PEM.`, error);
  }
}

function refused(message: string, cause?: unknown): StartupError {
  return new StartupError("config", message, cause);
}

export interface CertificateWatch {
  /** Compares the files with what is in use, and hands on what is new and good. */
  look(): void;
  stop(): void;
}

interface WatchOptions {
  readonly files: TlsFiles;
  readonly inUse: Certificates;
  readonly intervalMs: number;
  readonly now: () => number;
  readonly onChange: (certificates: Certificates) => void;
  readonly log: {
    info(details: object, message: string): void;
    warn(details: object, message: string): void;
    error(details: object, message: string): void;
  };
}

const soonMs = 14 * 86_400_000;

/**
 * Looks at the files again and again: a mounted secret is exchanged by renaming folders, which no file watcher sees
 * reliably. What is half written or does not belong together is left alone until it does; the old one stays in use.
 */
export function watchCertificates({ files, inUse, intervalMs, now, onChange, log }: WatchOptions): CertificateWatch {
  let current = inUse;
  let complaint = "";
  const look = (): void => {
    try {
      const read = readCertificates(files, now);
      complaint = "";
      if (read.cert === current.cert && read.key === current.key && read.clientCa === current.clientCa) return;
      current = read;
      onChange(read);
      log.info({ expires: new Date(read.expiresAt).toISOString() }, "new certificates are in use");
      warnOfExpiry(read);
    } catch (error) {
      const { message } = error as Error;
      // Once for each fault, not with every look.
      if (message !== complaint)
        log.error({ problem: message }, "the certificates on disk are not used; the old ones stay");
      complaint = message;
    }
  };
  const warnOfExpiry = ({ expiresAt }: Certificates): void => {
    if (expiresAt - now() > soonMs) return;
    log.warn({ expires: new Date(expiresAt).toISOString() }, "the certificate expires within 14 days; renew it");
  };
  warnOfExpiry(current);
  const timer = setInterval(look, intervalMs).unref();
  return { look, stop: () => clearInterval(timer) };
}

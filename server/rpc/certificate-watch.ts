import { type Certificates, readCertificates, type TlsFiles } from "./certificates.ts";
import type { TlsSettings } from "./listener-tls.ts";

export interface CertificateWatch {
  /** Compares the files with what is in use, and hands on what is new and good. */
  look(): void;
  stop(): void;
}

export interface WatchOptions {
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

const dayMs = 86_400_000;
const soonMs = 14 * dayMs;
const lookMs = 10_000;

/**
 * Looks at the files again and again: a mounted secret is exchanged by renaming folders, which no file watcher sees
 * reliably. What is half written or does not belong together is left alone until it does; the old one stays in use.
 */
export function watchCertificates({ files, inUse, intervalMs, now, onChange, log }: WatchOptions): CertificateWatch {
  let current = inUse;
  let complaint = "";
  let warnedAt = Number.NEGATIVE_INFINITY;
  const look = (): void => {
    try {
      const read = readCertificates(files, now);
      complaint = "";
      if (read.cert !== current.cert || read.key !== current.key || read.clientCa !== current.clientCa) {
        onChange(read);
        current = read;
        warnedAt = Number.NEGATIVE_INFINITY;
        log.info({ expires: new Date(read.expiresAt).toISOString() }, "new certificates are in use");
      }
    } catch (error) {
      const { message } = error as Error;
      // Once for each fault, not with every look.
      if (message !== complaint) {
        log.error({ problem: message }, "the certificates on disk are not used; those in use stay in use");
      }
      complaint = message;
    }
    warnOfExpiry();
  };
  const warnOfExpiry = (): void => {
    const left = current.expiresAt - now();
    if (left > soonMs || now() - warnedAt < dayMs) return;
    warnedAt = now();
    const details = { expires: new Date(current.expiresAt).toISOString() };
    if (left > 0) log.warn(details, "the certificate in use expires within 14 days; renew it");
    else log.error(details, "the certificate in use has expired, and clients refuse it; renew it");
  };
  warnOfExpiry();
  const timer = setInterval(look, intervalMs).unref();
  return { look, stop: () => clearInterval(timer) };
}

/**
 * Reads the certificates, and takes new ones into use while the port is open: within 10 s after they changed, and at once
 * on SIGHUP. Throws as `readCertificates` does.
 */
export function secured(
  files: TlsFiles,
  { log, closers }: { readonly log: WatchOptions["log"]; readonly closers: (() => Promise<void>)[] },
): TlsSettings {
  const certificates = readCertificates(files, Date.now);
  const exchanges: ((certificates: Certificates) => void)[] = [];
  let latest: Certificates | undefined;
  return {
    certificates,
    minVersion: files.minVersion,
    onOpen(exchange) {
      exchanges.push(exchange);
      if (latest !== undefined) exchange(latest);
      // One watch is enough for all ports, and complains once.
      if (exchanges.length > 1) return;
      const watch = watchCertificates({
        files,
        inUse: certificates,
        intervalMs: lookMs,
        now: Date.now,
        onChange(changed) {
          for (const take of exchanges) take(changed);
          latest = changed;
        },
        log,
      });
      const look = (): void => watch.look();
      process.on("SIGHUP", look);
      closers.push(() => {
        process.off("SIGHUP", look);
        watch.stop();
        return Promise.resolve();
      });
    },
  };
}

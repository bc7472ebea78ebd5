import { execFileSync } from "node:child_process";
import { createPrivateKey } from "node:crypto";
import { chmodSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, describe, expect, test, vi } from "vitest";
import { readConfig } from "../../server/config.ts";
import { startApp } from "../../server/app.ts";
import { watchCertificates } from "../../server/rpc/certificate-watch.ts";
import { readCertificates, type TlsFiles } from "../../server/rpc/certificates.ts";
import { type Certificate, createAuthority } from "../support/certificates.ts";

const day = 86_400_000;
const folder = mkdtempSync(join(tmpdir(), "holdfast-certificates-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const authority = createAuthority();
const other = createAuthority("Another authority");
let written = 0;

/** Writes a file that is named once, and returns its path. */
function file(text: string): string {
  written += 1;
  const path = join(folder, `${written}.pem`);
  writeFileSync(path, text);
  return path;
}

function filesOf({ cert, key }: Certificate, clientCa?: string): TlsFiles {
  return {
    certFile: file(cert),
    keyFile: file(key),
    minVersion: "TLSv1.2",
    ...(clientCa === undefined ? {} : { clientCaFile: file(clientCa) }),
  };
}

/** What `readCertificates` says about these files. */
function refusalOf(files: TlsFiles, now = Date.now()): string {
  try {
    readCertificates(files, () => now);
  } catch (error) {
    expect(error).toMatchObject({ name: "StartupError", exitCode: 78 });
    return (error as Error).message;
  }
  return expect.fail("the files were accepted");
}

describe("files that cannot be used", () => {
  const good = authority.issue("localhost");
  const encrypted = createPrivateKey(good.key)
    .export({ type: "pkcs8", format: "pem", cipher: "aes-256-cbc", passphrase: "secret" })
    .toString();

  test.each<[string, TlsFiles, RegExp]>([
    [
      "a certificate that is not there",
      { ...filesOf(good), certFile: "/none.pem" },
      /CERT_FILE names \/none.pem.*ENOENT/,
    ],
    ["a key that is not there", { ...filesOf(good), keyFile: "/none.pem" }, /KEY_FILE names \/none.pem.*ENOENT/],
    ["a folder", { ...filesOf(good), keyFile: folder }, /KEY_FILE.*EISDIR/],
    ["the key of another certificate", filesOf({ ...good, key: authority.issue("x").key }), /not the key of.*MISMATCH/],
    ["an encrypted key", filesOf({ ...good, key: encrypted }), /KEY_FILE.*encrypted; decrypt it with "openssl pkey/],
    ["half a key", filesOf({ ...good, key: good.key.slice(0, 100) }), /KEY_FILE.*no whole private key/],
    ["an empty certificate", filesOf({ ...good, cert: "" }), /CERT_FILE.*no certificate in PEM/],
    ["a key in place of the certificate", filesOf({ ...good, cert: good.key }), /CERT_FILE.*no certificate in PEM/],
    ["half a certificate", filesOf({ ...good, cert: good.cert.slice(0, 200) }), /CERT_FILE.*ends within a certificate/],
    ["half a chain", filesOf({ ...good, cert: good.cert + other.cert.slice(0, 200) }), /CERT_FILE.*ends within/],
    ["half a bundle", filesOf(good, authority.cert + other.cert.slice(0, 200)), /CLIENT_CA_FILE.*ends within/],
    [
      "a bundle with a hole",
      filesOf(good, `${authority.cert}${other.cert.slice(0, 200)}\n-----END CERTIFICATE-----\n`),
      /CLIENT_CA_FILE.*certificate 2 is broken/,
    ],
    ["a client authority that is a key", filesOf(good, good.key), /CLIENT_CA_FILE.*no certificate/],
  ])("%s is refused with its name and the remedy", (_, files, message) => {
    const refusal = refusalOf(files);
    expect(refusal).toMatch(message);
    expect(refusal).not.toContain("PRIVATE KEY");
  });

  test("all of them are reported together", () => {
    const files = { certFile: "/none-1", keyFile: "/none-2", clientCaFile: "/none-3", minVersion: "TLSv1.2" } as const;
    expect(refusalOf(files)).toMatch(
      /CERT_FILE names \/none-1.*KEY_FILE names \/none-2.*CLIENT_CA_FILE names \/none-3/,
    );
  });

  test("certificates of another time are refused", () => {
    const files = filesOf(good);
    expect(refusalOf(files, Date.now() + 2 * day)).toMatch(/CERT_FILE names .* expired at .*; renew it/);
    expect(refusalOf(files, Date.now() - 2 * day)).toMatch(/CERT_FILE names .* not valid before .*; check the clock/);
  });

  test("keys of every usual kind and chains with remarks are accepted", () => {
    const ec = createPrivateKey(good.key).export({ type: "sec1", format: "pem" }).toString();
    expect(readCertificates(filesOf({ ...good, key: ec }), Date.now).key).toBe(ec);
    const chain = `subject=localhost\n${good.cert}\nissuer\n${authority.cert}`;
    expect(readCertificates(filesOf({ ...good, cert: chain }), Date.now).cert).toBe(chain);
  });

  test("the server does not start with them, and touches no database before", async () => {
    const tls = { ...filesOf(good), keyFile: "/none.pem" };
    const config = { ...readConfig({ DATABASE_URL: "postgres://127.0.0.1:1/none" }, []), tls };
    await expect(startApp({ ...config, logLevel: "silent" })).rejects.toMatchObject({ exitCode: 78 });
  });

  test("the program ends with 78 and says so in one message", () => {
    const result = (() => {
      try {
        execFileSync(process.execPath, ["--conditions=holdfast-source", "server/main.ts", "serve"], {
          cwd: join(import.meta.dirname, "../.."),
          env: {
            PATH: process.env["PATH"] ?? "",
            DATABASE_URL: "postgres://127.0.0.1:1/none",
            HOLDFAST_TLS_CERT_FILE: filesOf(good).certFile,
            HOLDFAST_TLS_KEY_FILE: "/none.pem",
          },
          stdio: "pipe",
        });
        return undefined;
      } catch (error) {
        return error as { readonly status: number; readonly stderr: Buffer };
      }
    })();
    expect(result?.status).toBe(78);
    expect(result?.stderr.toString()).toMatch(/HOLDFAST_TLS_KEY_FILE names \/none.pem/);
    expect(result?.stderr.toString()).not.toMatch(/^\s+at /m);
  }, 60_000);
});

describe("a watch", () => {
  const log = { info: vi.fn(), warn: vi.fn(), error: vi.fn() };
  beforeEach(() => void vi.clearAllMocks());

  function watched(files: TlsFiles, now: () => number = Date.now) {
    const onChange = vi.fn();
    const inUse = readCertificates(files, Date.now);
    const watch = watchCertificates({ files, inUse, intervalMs: 10_000, now, onChange, log });
    return { watch, onChange, inUse };
  }

  test("sees a Kubernetes secret that is exchanged by its link, on a timer", () => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
    const mount = join(folder, "mount");
    const version = (name: string, { cert, key }: Certificate): void => {
      mkdirSync(join(mount, name), { recursive: true });
      writeFileSync(join(mount, name, "tls.crt"), cert);
      writeFileSync(join(mount, name, "tls.key"), key);
      symlinkSync(name, join(mount, "..data_tmp"));
      renameSync(join(mount, "..data_tmp"), join(mount, "..data"));
    };
    version("..1", authority.issue("localhost"));
    for (const name of ["tls.crt", "tls.key"]) symlinkSync(`..data/${name}`, join(mount, name));
    const { watch, onChange } = watched({
      certFile: join(mount, "tls.crt"),
      keyFile: join(mount, "tls.key"),
      minVersion: "TLSv1.2",
    });
    vi.advanceTimersByTime(10_000);
    expect(onChange).not.toHaveBeenCalled();
    const next = authority.issue("localhost");
    version("..2", next);
    vi.advanceTimersByTime(10_000);
    expect(onChange).toHaveBeenCalledExactlyOnceWith(expect.objectContaining(next));
    watch.stop();
    vi.advanceTimersByTime(60_000);
    vi.useRealTimers();
  });

  test("tells a fault once, keeps what is in use, and goes on when the fault is gone", () => {
    const files = filesOf(authority.issue("localhost"));
    const { watch, onChange } = watched(files);
    const next = authority.issue("localhost");
    // The certificate arrives before its key.
    writeFileSync(files.certFile, next.cert);
    for (let looks = 0; looks < 3; looks += 1) watch.look();
    expect(log.error).toHaveBeenCalledOnce();
    expect(log.error.mock.calls[0]?.[0]).toMatchObject({ problem: expect.stringContaining(files.keyFile) });
    expect(onChange).not.toHaveBeenCalled();
    writeFileSync(files.keyFile, next.key);
    watch.look();
    watch.look();
    expect(onChange).toHaveBeenCalledExactlyOnceWith(expect.objectContaining(next));
    watch.stop();
  });

  test("takes new client authorities, and not half of them", () => {
    const files = filesOf(authority.issue("localhost"), authority.cert);
    const { watch, onChange } = watched(files);
    writeFileSync(files.clientCaFile ?? "", authority.cert + other.cert.slice(0, 300));
    watch.look();
    expect(onChange).not.toHaveBeenCalled();
    writeFileSync(files.clientCaFile ?? "", authority.cert + other.cert);
    watch.look();
    expect(onChange).toHaveBeenCalledExactlyOnceWith(
      expect.objectContaining({ clientCa: authority.cert + other.cert }),
    );
    watch.stop();
  });

  test("does not take an expired pair", () => {
    const files = filesOf(authority.issue("localhost"));
    const { watch, onChange } = watched(files);
    const past = { from: new Date(Date.now() - 9 * day), to: new Date(Date.now() - day) };
    const expired = authority.issueFor(past, "localhost");
    writeFileSync(files.certFile, expired.cert);
    writeFileSync(files.keyFile, expired.key);
    watch.look();
    expect(onChange).not.toHaveBeenCalled();
    expect(log.error.mock.calls[0]?.[0]).toMatchObject({ problem: expect.stringMatching(/expired at/) });
    watch.stop();
  });

  test("warns from 14 days before the end, once a day, also when nothing changes", () => {
    const start = Date.now();
    let now = start;
    const long = { from: new Date(start - day), to: new Date(start + 30 * day) };
    const { watch } = watched(filesOf(authority.issueFor(long, "localhost")), () => now);
    const warnings: number[] = [];
    for (let hours = 0; hours < 29 * 24; hours += 6) {
      now = start + hours * 3_600_000;
      watch.look();
      warnings.push(...log.warn.mock.calls.map(() => hours / 24));
      log.warn.mockClear();
    }
    expect(warnings.length).toBe(13);
    expect(warnings[0]).toBeGreaterThanOrEqual(16);
    expect(warnings[0]).toBeLessThan(17);
    now = start + 31 * day;
    watch.look();
    expect(log.error).toHaveBeenCalledWith(expect.anything(), expect.stringMatching(/has expired/));
    watch.stop();
  });

  test("keeps what is in use when the new one cannot be taken into use", () => {
    const files = filesOf(authority.issue("localhost"));
    const { watch, onChange } = watched(files);
    const next = authority.issue("localhost");
    writeFileSync(files.certFile, next.cert);
    writeFileSync(files.keyFile, next.key);
    onChange.mockImplementationOnce(() => {
      throw new Error("no memory");
    });
    watch.look();
    expect(log.error).toHaveBeenCalledOnce();
    watch.look();
    expect(onChange).toHaveBeenCalledTimes(2);
    expect(log.info).toHaveBeenCalledOnce();
    watch.stop();
  });
});

test.skipIf(process.getuid?.() === 0)("a key that the server's user may not read is refused with its name", () => {
  const files = filesOf(authority.issue("localhost"));
  chmodSync(files.keyFile, 0o000);
  expect(refusalOf(files)).toMatch(/KEY_FILE.*EACCES/);
});

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { expect, onTestFinished, test } from "vitest";
import { health } from "../../server/health.ts";
import { readCertificates } from "../../server/rpc/certificates.ts";
import { startStubServer } from "../rpc/stub-server.ts";
import { createAuthority } from "../support/certificates.ts";

const main = join(import.meta.dirname, "../../server/main.ts");

async function asked(env: Readonly<Record<string, string>>): Promise<{ code: number; line: string }> {
  let line = "";
  const code = await health(env, (printed) => {
    line += printed;
  });
  return { code, line };
}

async function stub(options: Parameters<typeof startStubServer>[0] = {}) {
  const server = await startStubServer(options);
  onTestFinished(() => server.close(0));
  return server;
}

test("it tells a server that serves from one that does not, and from none", async () => {
  const server = await stub();
  const address = `http://127.0.0.1:${server.port}`;
  const env = { HOLDFAST_HOST: "0.0.0.0", HOLDFAST_PORT: `${server.port}` };
  expect(await asked(env)).toEqual({ code: 0, line: `${address} serves` });
  server.health.setServing(false);
  expect(await asked(env)).toEqual({ code: 69, line: `${address} answers, but does not serve` });
  await server.close(0);
  const away = await asked(env);
  expect(away).toMatchObject({ code: 69, line: expect.stringContaining("ECONNREFUSED") });
});

test("a port that accepts and says nothing does not hold it up", async () => {
  const silent = createServer(() => {}).listen(0, "127.0.0.1");
  onTestFinished(() => void silent.close());
  await once(silent, "listening");
  const { port } = silent.address() as { port: number };
  expect(await asked({ HOLDFAST_PORT: `${port}` })).toMatchObject({
    code: 69,
    line: expect.stringContaining("nothing came within"),
  });
});

test("it asks over TLS where the server has a certificate, also one for other names, and with its own where one is asked for", async () => {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-health-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const authority = createAuthority();
  const { cert, key } = authority.issue("holdfast.internal");
  const [certFile, keyFile, caFile] = ["tls.crt", "tls.key", "ca.crt"].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ];
  await Promise.all([writeFile(certFile, cert), writeFile(keyFile, key), writeFile(caFile, authority.cert)]);
  const env = { HOLDFAST_TLS_CERT_FILE: certFile, HOLDFAST_TLS_KEY_FILE: keyFile };
  for (const clientCa of [{}, { clientCaFile: caFile }]) {
    const files = { certFile, keyFile, minVersion: "TLSv1.3", ...clientCa } as const;
    const certificates = readCertificates(files, Date.now);
    const server = await stub({ tls: { certificates, minVersion: "TLSv1.3", onOpen: () => {} } });
    const asks = "clientCaFile" in clientCa ? { HOLDFAST_TLS_CLIENT_CA_FILE: caFile } : {};
    const answer = await asked({ ...env, ...asks, HOLDFAST_PORT: `${server.port}` });
    expect(answer).toEqual({ code: 0, line: `https://127.0.0.1:${server.port} serves` });
  }
});

test("the program asks without what a server is made of, needs no conditions, and takes no flags", async () => {
  const server = await stub();
  const ran = async (...args: string[]) => {
    const env = { PATH: process.env["PATH"], HOLDFAST_PORT: `${server.port}` };
    const child = spawn(process.execPath, args, { env, stdio: ["ignore", "pipe", "pipe"] });
    const [out, err, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, "close")]);
    return { code: code as unknown, out, err };
  };
  // Without the condition no package of this repository can be loaded.
  expect(await ran(main, "health")).toEqual({ code: 0, out: `http://127.0.0.1:${server.port} serves\n`, err: "" });
  const flagged = await ran("--conditions=holdfast-source", main, "health", "--quiet");
  expect(flagged).toMatchObject({ code: 64, out: "", err: expect.stringContaining("health takes no flags") });
});

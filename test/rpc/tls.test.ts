import { execFile } from "node:child_process";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { request as httpsRequest } from "node:https";
import { connect as connectTcp } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect as connectTls } from "node:tls";
import { promisify } from "node:util";
import { createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { createHoldfast } from "@holdfast/sdk";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { runCommand } from "../../server/cli/program.ts";
import type { TlsFiles } from "../../server/rpc/certificates.ts";
import { readCertificates } from "../../server/rpc/certificates.ts";
import { startListener } from "../../server/rpc/listener.ts";
import { type Authority, createAuthority } from "../support/certificates.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

let folder: string;
let authority: Authority;
let stranger: Authority;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-tls-"));
  authority = createAuthority();
  stranger = createAuthority();
});
afterEach(async () => {
  for (const closer of closers.splice(0)) await closer();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

let written = 0;

/** Files of a certificate for this machine. */
function filesOf(issuer: Authority, options: { readonly mutual?: true } = {}): TlsFiles {
  written += 1;
  const { cert, key } = issuer.issue("localhost", "127.0.0.1");
  const at = (name: string) => join(folder, `${written}-${name}.pem`);
  writeFileSync(at("cert"), cert);
  writeFileSync(at("key"), key);
  writeFileSync(at("ca"), issuer.cert);
  return {
    certFile: at("cert"),
    keyFile: at("key"),
    minVersion: "TLSv1.2",
    ...(options.mutual === true ? { clientCaFile: at("ca") } : {}),
  };
}

async function secureServer(tls: TlsFiles): Promise<TestServer & { readonly url: string }> {
  const server = await startTestServer({ config: { tls } });
  closers.push(() => server.close());
  const url = server.apps[0]?.url ?? "";
  expect(url).toMatch(/^https:/);
  return { ...server, url };
}

interface ClientCertificates {
  readonly ca: string;
  readonly cert?: string;
  readonly key?: string;
}

const protocols = {
  gRPC: (baseUrl: string, nodeOptions: ClientCertificates) => createGrpcTransport({ baseUrl, nodeOptions }),
  "Connect over HTTP/2": (baseUrl: string, nodeOptions: ClientCertificates) =>
    createConnectTransport({ baseUrl, httpVersion: "2", nodeOptions }),
  "Connect over HTTP/1.1": (baseUrl: string, nodeOptions: ClientCertificates) =>
    createConnectTransport({ baseUrl, httpVersion: "1.1", nodeOptions }),
  "gRPC-Web": (baseUrl: string, nodeOptions: ClientCertificates) =>
    createGrpcWebTransport({ baseUrl, httpVersion: "1.1", nodeOptions }),
} as const;

function caps(server: TestServer & { readonly url: string }, name: keyof typeof protocols, files: ClientCertificates) {
  const client = createClient(AdminService, protocols[name](server.url, files));
  return client.listCaps({}, { headers: { authorization: `Bearer ${server.operatorToken}` } });
}

describe("a secured port", () => {
  test("speaks every protocol, and refuses who does not know its authority", async () => {
    const server = await secureServer(filesOf(authority));
    for (const name of Object.keys(protocols) as (keyof typeof protocols)[]) {
      expect(await caps(server, name, { ca: authority.cert })).toMatchObject({ caps: [] });
      await expect(caps(server, name, { ca: stranger.cert })).rejects.toThrow();
    }
  }, 120_000);

  test("serves the SDK", async () => {
    const server = await secureServer(filesOf(authority));
    // The clients of the test server know no authority.
    const admin = createClient(AdminService, protocols.gRPC(server.url, { ca: authority.cert }));
    const headers = { authorization: `Bearer ${server.operatorToken}` };
    const vaultKey = { vendor: "bank", allowedEndpoints: ["POST /v1/payouts"] };
    const { token } = await admin.createVaultKey({ vaultKeyId: "tls", vaultKey }, { headers });
    const holdfast = createHoldfast({ baseUrl: server.url, vaultKey: token, tls: { ca: authority.cert } });
    closers.push(() => holdfast.close());
    const spend = { customerId: "cust_1", billingPeriod: "2026-11", purpose: "tls" };
    const asked = { amount: "5.00", currency: "usd", vendor: "bank", endpoint: "POST /v1/payouts" };
    await holdfast.spend(spend, asked, () => Promise.resolve({ vendorReference: "payout_1" }));
    await holdfast.flush();
    const { authorizations } = await admin.listAuthorizations({ customerId: "cust_1" }, { headers });
    expect(authorizations).toMatchObject([{ vendorReference: "payout_1" }]);
  }, 120_000);

  test("with a client authority lets in only who has a certificate of it", async () => {
    const server = await secureServer(filesOf(authority, { mutual: true }));
    const ours = authority.issue("client");
    const theirs = stranger.issue("client");
    for (const name of Object.keys(protocols) as (keyof typeof protocols)[]) {
      expect(await caps(server, name, { ca: authority.cert, ...ours })).toMatchObject({ caps: [] });
      await expect(caps(server, name, { ca: authority.cert })).rejects.toThrow();
      await expect(caps(server, name, { ca: authority.cert, ...theirs })).rejects.toThrow();
    }
  }, 120_000);

  test("survives cleartext, garbage and a broken handshake, and speaks no version below its least", async () => {
    const server = await secureServer({ ...filesOf(authority), minVersion: "TLSv1.3" });
    const port = Number(new URL(server.url).port);
    for (const bytes of [
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "\u0016\u0003\u0001garbage",
    ]) {
      await new Promise<void>((resolve) => {
        const socket = connectTcp(port, "127.0.0.1", () => socket.write(bytes));
        socket.on("error", () => {});
        socket.on("data", () => {});
        socket.on("close", () => resolve());
        socket.setTimeout(60_000, () => socket.destroy(new Error("the server keeps it open")));
      });
    }
    const older = await new Promise<Error | undefined>((resolve) => {
      const socket = connectTls({ port, host: "127.0.0.1", ca: authority.cert, maxVersion: "TLSv1.2" }, () =>
        resolve(undefined),
      );
      socket.on("error", (error) => resolve(error));
      closers.push(async () => void socket.destroy());
    });
    expect(older).toBeInstanceOf(Error);
    expect(await caps(server, "gRPC", { ca: authority.cert })).toMatchObject({ caps: [] });
  }, 120_000);
});

test("buf curl and the terminal present a certificate of their own", async () => {
  const files = filesOf(authority, { mutual: true });
  const server = await secureServer(files);
  const caFile = files.clientCaFile ?? "";
  const { stdout } = await promisify(execFile)(
    join(import.meta.dirname, "../../node_modules/.bin/buf"),
    [
      ["curl", "--cacert", caFile, "--cert", files.certFile, "--key", files.keyFile],
      ["-H", `Authorization: Bearer ${server.operatorToken}`, "-d", "{}"],
      [`${server.url}/holdfast.v1.AdminService/ListCaps`],
    ].flat(),
  );
  expect(JSON.parse(stdout)).toEqual({});
  let out = "";
  const code = await runCommand(
    [
      "--url",
      server.url,
      "--ca-file",
      caFile,
      "--cert-file",
      files.certFile,
      "--key-file",
      files.keyFile,
      "caps",
      "list",
    ],
    {
      env: { HOLDFAST_OPERATOR_TOKEN: server.operatorToken },
      out: { write: (text) => (out += text) },
      err: { write: (text) => (out += text) },
      input: () => Promise.resolve(""),
      local: () => Promise.resolve(0),
    },
  );
  expect({ code, out }).toEqual({ code: 0, out: "Nothing.\n" });
}, 120_000);

test("a handshake that is not ended in time is cut", async () => {
  const files = filesOf(authority);
  const listener = await startListener({
    host: "127.0.0.1",
    port: 0,
    routes: () => {},
    interceptors: [],
    log: { error: () => {} },
    limits: { firstRequestMs: 200, sweepMs: 50 },
    tls: { certificates: readCertificates(files, Date.now), minVersion: "TLSv1.2", onOpen: () => {} },
  });
  closers.push(() => listener.close(0));
  await new Promise<void>((resolve) => {
    const socket = connectTcp(listener.port, "127.0.0.1");
    socket.on("error", () => {});
    socket.on("close", () => resolve());
  });
}, 60_000);

/** The serial number of the certificate that a new connection is shown. */
function shown(url: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connectTls(
      { port: Number(new URL(url).port), host: "127.0.0.1", servername: "localhost", rejectUnauthorized: false },
      () => {
        resolve(socket.getPeerCertificate().serialNumber);
        socket.end();
      },
    );
    socket.on("error", reject);
  });
}

/** Exchanges files as a mounted secret is: by renaming. */
function exchange(files: TlsFiles, by: { readonly cert?: string; readonly key?: string }): void {
  for (const [path, text] of [
    [files.certFile, by.cert],
    [files.keyFile, by.key],
  ] as const) {
    if (text === undefined) continue;
    writeFileSync(`${path}.new`, text);
    renameSync(`${path}.new`, path);
  }
}

test("new certificates are taken into use under load without a failed call, and bad ones are not", async () => {
  const files = filesOf(authority);
  const server = await secureServer(files);
  const before = await shown(server.url);
  let failed = 0;
  let done = 0;
  let running = true;
  const load = Array.from({ length: 4 }, async (_, at) => {
    while (running) {
      const name = (["gRPC", "Connect over HTTP/1.1"] as const)[at % 2] ?? "gRPC";
      await caps(server, name, { ca: authority.cert }).then(
        () => (done += 1),
        () => (failed += 1),
      );
    }
  });
  const next = authority.issue("localhost", "127.0.0.1");
  // Half of a pair: the key of another certificate.
  exchange(files, { cert: next.cert });
  process.emit("SIGHUP");
  expect(await shown(server.url)).toBe(before);
  exchange(files, { cert: "-----BEGIN CERTIFICATE-----\ncut" });
  process.emit("SIGHUP");
  expect(await shown(server.url)).toBe(before);
  exchange(files, next);
  process.emit("SIGHUP");
  expect(await shown(server.url)).not.toBe(before);
  await vi.waitFor(() => expect(done).toBeGreaterThan(40), { timeout: 60_000 });
  running = false;
  await Promise.all(load);
  expect(failed).toBe(0);
}, 120_000);

test("a request over HTTP/1.1 is kept alive", async () => {
  const server = await secureServer(filesOf(authority));
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const url = `${server.url}/holdfast.v1.AdminService/ListCaps`;
    const headers = { "content-type": "application/json", authorization: `Bearer ${server.operatorToken}` };
    const request = httpsRequest(url, { method: "POST", ca: authority.cert, headers }, (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode));
    });
    request.on("error", reject);
    request.end("{}");
  });
  expect(status).toBe(200);
}, 60_000);

import { execFile, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { createHoldfast } from "@holdfast/sdk";
import { createGrpcJsTransport, type GrpcJsTransport } from "@holdfast/sdk/grpc-js";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { TlsFiles } from "../../server/rpc/certificates.ts";
import { type Certificate, createAuthority } from "../support/certificates.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

interface ClientTls extends Partial<Certificate> {
  readonly ca: string;
}

const run = promisify(execFile);
const day = 86_400_000;
const folder = mkdtempSync(join(tmpdir(), "holdfast-tls-clients-"));
const authority = createAuthority("Authority of the servers");
const clientAuthority = createAuthority("Authority of the clients");
const stranger = createAuthority("Authority of somebody else");
const file = (name: string) => join(folder, name);

let server: TestServer;
let url: string;
let vaultKey: string;

beforeAll(async () => {
  const { cert, key } = authority.issue("localhost", "127.0.0.1");
  const me = clientAuthority.issue("billing");
  for (const [name, text] of Object.entries({ cert, key, ca: authority.cert, clients: clientAuthority.cert })) {
    writeFileSync(file(name), text);
  }
  writeFileSync(file("me.crt"), me.cert);
  writeFileSync(file("me.key"), me.key);
  const tls: TlsFiles = {
    certFile: file("cert"),
    keyFile: file("key"),
    clientCaFile: file("clients"),
    minVersion: "TLSv1.2",
  };
  server = await startTestServer({ config: { tls } });
  url = server.apps[0]?.url ?? "";
  const nodeOptions = { ca: authority.cert, ...clientAuthority.issue("operator") };
  const admin = createClient(AdminService, createGrpcTransport({ baseUrl: url, nodeOptions }));
  const policy = { vendor: "bank", allowedEndpoints: ["POST /v1/payouts"] };
  const { token } = await admin.createVaultKey(
    { vaultKeyId: "tls", vaultKey: policy },
    { headers: { authorization: `Bearer ${server.operatorToken}` } },
  );
  vaultKey = token;
}, 120_000);
afterAll(async () => {
  await server.close();
  rmSync(folder, { recursive: true, force: true });
});

let customers = 0;

// A refused client tries again for as long as it is given; one that is let in needs far less.
const refusedMs = 1_500;
const servedMs = 30_000;

/** Spends once over this connection, and ends it. What the vendor's call answered. */
async function spend(
  connection: { readonly tls: ClientTls } | { readonly transport: Transport },
  timeoutMs: number,
): Promise<string> {
  const where = "tls" in connection ? { baseUrl: url, ...connection } : connection;
  const holdfast = createHoldfast({ ...where, vaultKey, timeoutMs });
  customers += 1;
  try {
    const identity = { customerId: `cust_${customers}`, billingPeriod: "2026-11", purpose: "tls" };
    const asked = { amount: "5.00", currency: "usd", vendor: "bank", endpoint: "POST /v1/payouts" };
    const { vendorReference } = await holdfast.spend(identity, asked, () =>
      Promise.resolve({ vendorReference: `payout_${customers}` }),
    );
    await holdfast.flush();
    return vendorReference ?? "";
  } finally {
    await holdfast.close();
  }
}

type Attempt = (tls: ClientTls, timeoutMs: number) => Promise<string>;

const ownTransport: Attempt = (tls, timeoutMs) => spend({ tls }, timeoutMs);

const transports: Record<string, Attempt> = {
  "its own transport": ownTransport,
  "grpc-js": async (tls, timeoutMs) => {
    const transport: GrpcJsTransport = createGrpcJsTransport({ target: `dns:///127.0.0.1:${new URL(url).port}`, tls });
    try {
      return await spend({ transport }, timeoutMs);
    } finally {
      transport.close();
    }
  },
};

const past = { from: new Date(Date.now() - 9 * day), to: new Date(Date.now() - day) };

describe.each(Object.entries(transports))("the SDK over %s", (_, attempt) => {
  test("spends with a certificate of the clients' authority", async () => {
    expect(await attempt({ ca: authority.cert, ...clientAuthority.issue("billing") }, servedMs)).toBe(
      `payout_${customers}`,
    );
  }, 60_000);

  test.each<[string, () => ClientTls]>([
    ["without a certificate", () => ({ ca: authority.cert })],
    ["with a certificate of another authority", () => ({ ca: authority.cert, ...stranger.issue("billing") })],
    ["with one of the server's own authority", () => ({ ca: authority.cert, ...authority.issue("billing") })],
    ["with one that has expired", () => ({ ca: authority.cert, ...clientAuthority.issueFor(past, "billing") })],
    ["that trusts another authority", () => ({ ca: stranger.cert, ...clientAuthority.issue("billing") })],
  ])(
    "grants nothing to a client %s",
    async (_case, tls) => {
      await expect(attempt(tls(), refusedMs)).rejects.toMatchObject({ name: "HoldfastUnavailableError" });
    },
    60_000,
  );
});

// curl is no part of this repository: where it is missing, or cannot speak HTTP/2, these are skipped.
const curl = spawnSync("curl", ["--version"], { encoding: "utf8" });
const curlSpeaksHttp2 = curl.status === 0 && curl.stdout.includes("HTTP2");

describe.skipIf(!curlSpeaksHttp2).each([
  ["HTTP/1.1", "--http1.1"],
  ["HTTP/2", "--http2"],
])("curl over %s", (_, flag) => {
  const call = (...certificate: string[]) =>
    run(
      "curl",
      [
        ["--silent", "--show-error", "--fail", flag, "--cacert", file("ca"), "--write-out", " %{http_version}"],
        certificate,
        ["-H", "Content-Type: application/json", "-H", `Authorization: Bearer ${server.operatorToken}`],
        ["-d", "{}", `${url}/holdfast.v1.AdminService/ListCaps`],
      ].flat(),
    );

  test("is answered with a certificate, and refused without one", async () => {
    const { stdout } = await call("--cert", file("me.crt"), "--key", file("me.key"));
    expect(stdout).toBe(`{} ${flag === "--http2" ? "2" : "1.1"}`);
    await expect(call()).rejects.toThrow();
  }, 60_000);
});

test.each(["grpc", "grpcweb", "connect"])(
  "buf curl speaks %s with a certificate, and is refused without one",
  async (protocol) => {
    const call = (method: string, ...certificate: string[]) =>
      run(
        join(import.meta.dirname, "../../node_modules/.bin/buf"),
        [
          ["curl", "--protocol", protocol, "--cacert", file("ca"), ...certificate],
          ["-H", `Authorization: Bearer ${server.operatorToken}`, "-d", "{}", `${url}/${method}`],
        ].flat(),
      );
    const mine = ["--cert", file("me.crt"), "--key", file("me.key")];
    const list = "holdfast.v1.AdminService/ListCaps";
    expect(JSON.parse((await call(list, ...mine)).stdout)).toEqual({});
    const { stdout } = await call("grpc.health.v1.Health/Check", ...mine);
    expect(JSON.parse(stdout)).toEqual({ status: "SERVING" });
    await expect(call(list)).rejects.toThrow();
  },
  60_000,
);

test("a new clients' authority lets its clients in and the old one's no longer", async () => {
  const attempt = (identity: Certificate, timeoutMs: number) =>
    ownTransport({ ca: authority.cert, ...identity }, timeoutMs);
  const next = createAuthority("Next authority of the clients");
  const [theirs, ours] = [next.issue("billing"), clientAuthority.issue("billing")];
  await expect(attempt(theirs, refusedMs)).rejects.toThrow();
  writeFileSync(file("clients"), clientAuthority.cert + next.cert);
  process.emit("SIGHUP");
  expect(await attempt(theirs, servedMs)).toMatch(/^payout_/);
  expect(await attempt(ours, servedMs)).toMatch(/^payout_/);
  writeFileSync(file("clients"), next.cert);
  process.emit("SIGHUP");
  expect(await attempt(theirs, servedMs)).toMatch(/^payout_/);
  await expect(attempt(ours, refusedMs)).rejects.toThrow();
  writeFileSync(file("clients"), clientAuthority.cert);
  process.emit("SIGHUP");
}, 120_000);

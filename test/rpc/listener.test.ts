import { execFile } from "node:child_process";
import { connect as connectHttp2 } from "node:http2";
import { connect as connectNet } from "node:net";
import { once } from "node:events";
import { promisify } from "node:util";
import { create, toJsonString } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  AuthorizeSpendRequestSchema,
  BatchAuthorizeSpendRequestSchema,
  SpendControlService,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { hangingHandler, type StubServer, startStubServer, validRequest } from "./stub-server.ts";

const path = "/holdfast.v1.SpendControlService/AuthorizeSpend";
const run = promisify(execFile);

function transports(baseUrl: string): [string, Transport][] {
  return [
    ["Connect over HTTP/1.1", createConnectTransport({ baseUrl, httpVersion: "1.1" })],
    ["Connect over HTTP/2", createConnectTransport({ baseUrl, httpVersion: "2" })],
    ["gRPC", createGrpcTransport({ baseUrl })],
    ["gRPC-Web over HTTP/1.1", createGrpcWebTransport({ baseUrl, httpVersion: "1.1" })],
    ["gRPC-Web over HTTP/2", createGrpcWebTransport({ baseUrl, httpVersion: "2" })],
  ];
}

function bearer(token: string): { headers: { authorization: string } } {
  return { headers: { authorization: `Bearer ${token}` } };
}

function post(
  server: StubServer,
  body: string,
  target = path,
  headers: Record<string, string> = {},
): Promise<Response> {
  return fetch(server.url + target, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${server.vaultKeyToken}`, ...headers },
    body,
  });
}

async function refusal(call: Promise<unknown>): Promise<ConnectError> {
  return await call.then(
    () => expect.fail("the call was not refused"),
    (error: unknown) => ConnectError.from(error),
  );
}

/** Opens a raw connection, sends `bytes`, and resolves with what came back when the server has closed it. */
async function raw(port: number, bytes: string | Uint8Array): Promise<{ readonly text: string; readonly ms: number }> {
  const start = performance.now();
  const socket = connectNet(port, "127.0.0.1");
  socket.on("error", () => {});
  let text = "";
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString("latin1");
  });
  socket.write(bytes);
  await new Promise((resolve) => socket.once("close", resolve));
  return { text, ms: performance.now() - start };
}

describe("one port", () => {
  let server: StubServer;
  beforeAll(async () => {
    server = await startStubServer();
  });
  afterAll(async () => {
    await server.close(1_000);
  });

  test("serves every protocol on HTTP/1.1 and HTTP/2", async () => {
    for (const [name, transport] of transports(server.url)) {
      const client = createClient(SpendControlService, transport);
      const answer = await client.authorizeSpend(validRequest(), bearer(server.vaultKeyToken));
      expect(answer.disposition, name).toBe(Disposition.GRANTED);
      expect(answer.authorization?.spend?.amount?.amount, name).toBe("49.90");
    }
  });

  test("serves plain JSON to fetch", async () => {
    const response = await post(server, toJsonString(AuthorizeSpendRequestSchema, validRequest()));
    expect(response.status).toBe(200);
    expect(await response.json()).toMatchObject({ disposition: "DISPOSITION_GRANTED" });
  });

  test("accepts a request that arrives byte by byte", async () => {
    const socket = connectNet(server.port, "127.0.0.1");
    socket.setNoDelay(true);
    for (const byte of "POST /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n") {
      socket.write(byte);
      await new Promise((resolve) => setImmediate(resolve));
    }
    const [chunk] = (await once(socket, "data")) as [Buffer];
    expect(chunk.toString()).toMatch(/^HTTP\/1\.1 404/);
    socket.destroy();
  });

  test("refuses a JSON field that the contract does not know", async () => {
    const before = server.handled();
    const body = JSON.stringify({
      ...(JSON.parse(toJsonString(AuthorizeSpendRequestSchema, validRequest())) as object),
      dryRunn: true,
    });
    const response = await post(server, body);
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({
      code: "invalid_argument",
      message: expect.stringContaining("dryRunn") as string,
    });
    expect(server.handled()).toBe(before);
  });

  test("refuses messages above 64 KiB, compressed ones too, and accepts larger batches", async () => {
    const before = server.handled();
    const large = { ...validRequest(), vendorAccount: "a".repeat(70_000) };
    for (const [name, transport] of transports(server.url)) {
      const client = createClient(SpendControlService, transport);
      const error = await refusal(client.authorizeSpend(large, bearer(server.vaultKeyToken)));
      expect(error.code, name).toBe(Code.ResourceExhausted);
    }
    const { gzipSync } = await import("node:zlib");
    const bomb = gzipSync(Buffer.alloc(50_000_000, " "));
    expect(bomb.byteLength).toBeLessThan(64 * 1024);
    const response = await fetch(server.url + path, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        "content-encoding": "gzip",
        authorization: `Bearer ${server.vaultKeyToken}`,
      },
      body: bomb,
    });
    expect(await response.json()).toMatchObject({ code: "resource_exhausted" });
    expect(server.handled()).toBe(before);

    const batch = create(BatchAuthorizeSpendRequestSchema, {
      requests: Array.from({ length: 500 }, () => ({ ...validRequest(), endpoint: `POST /${"a".repeat(200)}` })),
    });
    const client = createClient(SpendControlService, createGrpcTransport({ baseUrl: server.url }));
    const answer = await client.batchAuthorizeSpend(batch, bearer(server.vaultKeyToken));
    expect(answer.results).toHaveLength(500);
  });

  test("serves no path but the canonical one", async () => {
    const before = server.handled();
    const body = toJsonString(AuthorizeSpendRequestSchema, validRequest());
    for (const target of [
      `/${path}`,
      `${path}?x=1`,
      `${path}?`,
      `${path}/`,
      "/holdfast.v1.SpendControlService/%41uthorizeSpend",
      "/holdfast.v1.SpendControlService/authorizespend",
      "/HOLDFAST.V1.SPENDCONTROLSERVICE/AUTHORIZESPEND",
    ]) {
      expect((await post(server, body, target)).status, target).toBe(404);
    }
    const session = connectHttp2(server.url);
    for (const target of [path.slice(1), `${path}#f`, `${path}?x=1`, "*"]) {
      const stream = session.request({
        ":method": "POST",
        ":path": target,
        "content-type": "application/grpc",
        authorization: `Bearer ${server.vaultKeyToken}`,
      });
      const status = await new Promise((resolve) => {
        stream.on("response", (headers) => resolve(headers[":status"]));
        stream.on("error", () => resolve("reset"));
      });
      expect([404, "reset"], target).toContain(status);
      stream.close();
    }
    session.destroy();
    expect(server.handled()).toBe(before);
  });

  test("refuses a request with too many headers instead of dropping some", async () => {
    const headers = Object.fromEntries(Array.from({ length: 70 }, (_, index) => [`x-filler-${index}`, "1"]));
    const response = await post(server, "{}", path, headers);
    expect(response.status).toBe(431);
  });

  test("refuses a deadline above the maximum and ends a call whose deadline has passed", async () => {
    const before = server.handled();
    const body = toJsonString(AuthorizeSpendRequestSchema, validRequest());
    const tooLong = await post(server, body, path, { "connect-timeout-ms": "30001" });
    expect(await tooLong.json()).toMatchObject({ code: "invalid_argument" });
    const over = await post(server, body, path, { "connect-timeout-ms": "0" });
    expect(await over.json()).toMatchObject({ code: "deadline_exceeded" });
    expect(server.handled()).toBe(before);
  });

  test("survives garbage on the wire", async () => {
    const magic = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    const headerFrame = (payload: Buffer) =>
      Buffer.concat([Buffer.from([0, 0, payload.length, 1, 4, 0, 0, 0, 1]), payload]);
    for (const bytes of [
      "PRI * HTTP/9.9\r\n\r\n",
      "PRI ",
      "\u0000\u0001\u0002\u0003\u0004",
      "GET\r\n\r\n",
      `POST ${path} HTTP/1.1\r\n\r\n`,
      `POST ${path} HTTP/1.1\r\nhost: a b ^\r\nconnection: close\r\n\r\n`,
      `POST ${path} HTTP/1.1\r\nhost: :::\r\ncontent-length: 0\r\nconnection: close\r\n\r\n`,
      `POST ${path} HTTP/1.0\r\n\r\n`,
      `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzzz`,
      "CONNECT evil:443 HTTP/1.1\r\nhost: evil\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
      `GET / HTTP/1.1\r\nhost: x\r\nx: ${"a".repeat(20_000)}\r\n\r\n`,
      Buffer.concat([Buffer.from(magic), Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])]),
      Buffer.concat([Buffer.from(magic), settings, headerFrame(Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff]))]),
      // WINDOW_UPDATE of zero on the connection.
      Buffer.concat([Buffer.from(magic), settings, Buffer.from([0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0])]),
    ]) {
      const socket = connectNet(server.port, "127.0.0.1");
      socket.on("error", () => {});
      socket.end(bytes);
      socket.resume();
      await new Promise((resolve) => socket.once("close", resolve));
    }
    expect((await raw(server.port, `POST ${path} HTTP/1.1\r\nhost: a b ^\r\nconnection: close\r\n\r\n`)).text).toMatch(
      /^HTTP\/1\.1 400/,
    );
    expect((await post(server, toJsonString(AuthorizeSpendRequestSchema, validRequest()))).status).toBe(200);
    expect(server.defects).toEqual([]);
  });

  test("aborts the call of a client that vanishes, and survives", async () => {
    const body = toJsonString(AuthorizeSpendRequestSchema, validRequest());
    for (const http of ["HTTP/1.1", "HTTP/2"]) {
      const hanging = hangingHandler();
      const other = await startStubServer({ spend: { authorizeSpend: hanging.authorizeSpend } });
      const vanish = http === "HTTP/2" ? callOverHttp2(other, body) : callOverHttp1(other, body);
      const { signal } = await hanging.entered;
      const start = performance.now();
      vanish();
      if (!signal.aborted) await once(signal, "abort");
      // By the cut connection and not by the longest deadline of 30 s.
      expect(performance.now() - start, http).toBeLessThan(20_000);
      expect(other.defects, http).toEqual([]);
      await other.close(1_000);
    }
  });
});

function callOverHttp1(server: StubServer, body: string): () => void {
  const abort = new AbortController();
  const headers = { "content-type": "application/json", authorization: `Bearer ${server.vaultKeyToken}` };
  fetch(server.url + path, { method: "POST", body, headers, signal: abort.signal }).catch(() => {});
  return () => abort.abort();
}

function callOverHttp2(server: StubServer, body: string): () => void {
  const session = connectHttp2(server.url);
  session.on("error", () => {});
  const stream = session.request({
    ":method": "POST",
    ":path": path,
    "content-type": "application/json",
    authorization: `Bearer ${server.vaultKeyToken}`,
  });
  stream.on("error", () => {});
  stream.end(body);
  return () => session.destroy();
}

describe("roles", () => {
  test("a vault key cannot call the admin service and an operator cannot authorize", async () => {
    const server = await startStubServer();
    const transport = createGrpcTransport({ baseUrl: server.url });
    const admin = createClient(AdminService, transport);
    const spend = createClient(SpendControlService, transport);
    expect((await refusal(admin.listCaps({}, bearer(server.vaultKeyToken)))).code).toBe(Code.PermissionDenied);
    expect((await refusal(spend.authorizeSpend(validRequest(), bearer(server.operatorToken)))).code).toBe(
      Code.PermissionDenied,
    );
    await expect(admin.listCaps({}, bearer(server.operatorToken))).resolves.toBeDefined();
    await server.close(1_000);
  });
});

describe("buf curl", () => {
  test("lists and calls with reflection alone", async () => {
    const server = await startStubServer();
    const buf = new URL("../../node_modules/.bin/buf", import.meta.url).pathname;
    const listed = await run(buf, ["curl", "--http2-prior-knowledge", "--list-services", server.url]);
    expect(listed.stdout.trim().split("\n")).toContain("holdfast.v1.SpendControlService");
    for (const protocol of ["grpc", "connect", "grpcweb"]) {
      const called = await run(buf, [
        "curl",
        "--protocol",
        protocol,
        "--http2-prior-knowledge",
        "--header",
        `authorization: Bearer ${server.vaultKeyToken}`,
        "--data",
        toJsonString(AuthorizeSpendRequestSchema, validRequest()),
        server.url + path,
      ]);
      expect(JSON.parse(called.stdout), protocol).toMatchObject({ disposition: "DISPOSITION_GRANTED" });
    }
    await server.close(1_000);
  });
});

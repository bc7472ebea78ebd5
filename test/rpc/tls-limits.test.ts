import { once } from "node:events";
import { constants, connect as connectHttp2 } from "node:http2";
import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls, type TLSSocket } from "node:tls";
import { toJsonString } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import type { ListenerLimits } from "@holdfast/server/rpc/listener-limits";
import { AuthorizeSpendRequestSchema, SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { afterEach, describe, expect, test } from "vitest";
import { createAuthority } from "../support/certificates.ts";
import { type StubServer, startStubServer, validRequest } from "./stub-server.ts";

const path = "/holdfast.v1.SpendControlService/AuthorizeSpend";
const authority = createAuthority();
const servers: StubServer[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close(1_000);
});

async function secureStub(limits: Partial<ListenerLimits> = {}): Promise<StubServer> {
  const certificates = {
    ...authority.issue("localhost", "127.0.0.1"),
    clientCa: undefined,
    expiresAt: Date.now() + 3_600_000,
  };
  const server = await startStubServer({ limits, tls: { certificates, minVersion: "TLSv1.2", onOpen: () => {} } });
  servers.push(server);
  return server;
}

/** A call as every client makes it: the server still works. */
async function served(server: StubServer): Promise<void> {
  const transport = createConnectTransport({
    baseUrl: server.url,
    httpVersion: "1.1",
    nodeOptions: { ca: authority.cert, agent: false },
  });
  const client = createClient(SpendControlService, transport);
  await client.authorizeSpend(validRequest(), { headers: { authorization: `Bearer ${server.vaultKeyToken}` } });
}

async function handshake(port: number, protocol?: "h2" | "http/1.1"): Promise<TLSSocket> {
  const socket = connectTls({
    port,
    host: "127.0.0.1",
    ca: authority.cert,
    ...(protocol === undefined ? {} : { ALPNProtocols: [protocol] }),
  });
  socket.on("error", () => {});
  await once(socket, "secureConnect");
  return socket;
}

/** Sends `bytes` and resolves with what came back when the server has closed the connection. */
async function ended(socket: Socket, bytes: string | Uint8Array = ""): Promise<string> {
  let text = "";
  socket.on("error", () => {});
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString("latin1");
  });
  if (bytes.length > 0) socket.write(bytes);
  await new Promise((resolve) => socket.once("close", resolve));
  return text;
}

/** One HTTP/2 frame. */
function frame(type: number, flags: number, stream: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head.writeUInt8(type, 3);
  head.writeUInt8(flags, 4);
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

const preface = Buffer.concat([Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0)]);

describe("over TLS", () => {
  test("silence, half a handshake, and silence or half a request after it are cut off", async () => {
    const server = await secureStub({ firstRequestMs: 300, requestMs: 300, sweepMs: 50 });
    const tcp = () => connectTcp(server.port, "127.0.0.1");
    const halfHello = Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]);
    await Promise.all([
      ended(tcp()),
      ended(tcp(), halfHello),
      handshake(server.port).then((socket) => ended(socket)),
      handshake(server.port, "h2").then((socket) => ended(socket)),
      handshake(server.port, "http/1.1").then((socket) => ended(socket, `POST ${path} HTTP/1.1\r\nhost: x\r\n`)),
      handshake(server.port, "h2").then((socket) => ended(socket, preface)),
      handshake(server.port, "h2").then((socket) =>
        ended(socket, Buffer.concat([preface, frame(1, 0, 1, Buffer.from([0x83]))])),
      ),
    ]);
    expect(server.handled()).toBe(0);
  }, 60_000);

  test("one peer cannot take all connections, in a handshake or after it, and gets them back", async () => {
    const server = await secureStub({ connectionsPerPeerMax: 2 });
    const open = connectTcp(server.port, "127.0.0.1");
    await once(open, "connect");
    const held = [open, await handshake(server.port, "h2")];
    expect(await ended(connectTls({ port: server.port, host: "127.0.0.1", ca: authority.cert }))).toBe("");
    await expect(served(server)).rejects.toThrow();
    for (const socket of held) socket.destroy();
    await expect.poll(() => served(server).then(() => "served", String), { timeout: 30_000 }).toBe("served");
  }, 60_000);

  test("a client that opens and cancels calls in a loop loses its session", async () => {
    const server = await secureStub({ resetBurst: 50, resetsPerSecond: 1 });
    const session = connectHttp2(server.url, { ca: authority.cert });
    session.on("error", () => {});
    let opened = 0;
    while (!session.destroyed && !session.closed && opened < 2_000) {
      const stream = session.request({ ":method": "POST", ":path": path, "content-type": "application/grpc" });
      stream.on("error", () => {});
      stream.close(constants.NGHTTP2_CANCEL);
      opened += 1;
      if (opened % 20 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    if (!session.destroyed) await once(session, "close");
    expect(server.handled()).toBe(0);
    await served(server);
  }, 60_000);

  test.each([
    ["a CONTINUATION frame without its request", frame(9, 0, 1, Buffer.alloc(100))],
    ["a request of CONTINUATION frames without end", floodOfContinuations()],
    ["WINDOW_UPDATE beyond the largest window", frame(8, 0, 0, Buffer.from([0x7f, 0xff, 0xff, 0xff]))],
    ["headers that HPACK cannot read", frame(1, 5, 1, Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]))],
    ["SETTINGS with half an entry", frame(4, 0, 0, Buffer.alloc(5))],
    ["a frame beyond the largest size", frame(0, 0, 1, Buffer.alloc(20_000))],
    ["PING on a stream", frame(6, 0, 1, Buffer.alloc(8))],
  ])(
    "%s ends the connection and nothing else",
    async (_, bytes) => {
      const server = await secureStub();
      await ended(await handshake(server.port, "h2"), Buffer.concat([preface, bytes]));
      expect(server.handled()).toBe(0);
      await served(server);
    },
    60_000,
  );

  test("a message of 8 MB is refused without being read", async () => {
    const server = await secureStub();
    const headers = { "content-type": "application/json", authorization: `Bearer ${server.vaultKeyToken}` };
    const transport = createConnectTransport({
      baseUrl: server.url,
      httpVersion: "2",
      nodeOptions: { ca: authority.cert },
    });
    const huge = { ...validRequest(), endpoint: "x".repeat(8_000_000) };
    const call = createClient(SpendControlService, transport).authorizeSpend(huge, { headers });
    expect(ConnectError.from(await call.catch((error: unknown) => error)).code).toBe(Code.ResourceExhausted);
    await served(server);
  }, 60_000);

  test("clients that vanish within their handshake leave nothing behind", async () => {
    const server = await secureStub({ connectionsPerPeerMax: 40, firstRequestMs: 600_000 });
    for (let round = 0; round < 4; round += 1) {
      await Promise.all(
        Array.from({ length: 30 }, async (_, at) => {
          const socket = connectTcp(server.port, "127.0.0.1");
          socket.on("error", () => {});
          await once(socket, "connect");
          if (at % 3 > 0) socket.write(Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]));
          if (at % 3 === 1) socket.destroy();
          else socket.resetAndDestroy();
        }),
      );
      await expect.poll(() => served(server).then(() => "served", String), { timeout: 30_000 }).toBe("served");
    }
  }, 120_000);

  test("a client that closes its side still reads its answer over HTTP/1.1", async () => {
    const server = await secureStub();
    const socket = await handshake(server.port, "http/1.1");
    const body = toJsonString(AuthorizeSpendRequestSchema, validRequest());
    const lines = [
      `POST ${path} HTTP/1.1`,
      "host: x",
      "content-type: application/json",
      `authorization: Bearer ${server.vaultKeyToken}`,
      `content-length: ${body.length}`,
    ];
    const answer = ended(socket, `${lines.join("\r\n")}\r\n\r\n${body}`);
    socket.end();
    expect(await answer).toMatch(/^HTTP\/1.1 200 OK[^]*DISPOSITION_GRANTED/);
  }, 60_000);

  test("closing waits for no handshake and no idle connection", async () => {
    const server = await secureStub({ firstRequestMs: 600_000, callMs: 600_000 });
    const tcp = connectTcp(server.port, "127.0.0.1");
    await once(tcp, "connect");
    const ends = [tcp, await handshake(server.port, "h2"), await handshake(server.port, "http/1.1")].map((socket) =>
      ended(socket),
    );
    await served(server);
    const start = performance.now();
    await server.close(600_000);
    await Promise.all(ends);
    expect(performance.now() - start).toBeLessThan(60_000);
  }, 120_000);
});

/** More header bytes than a request may have, in one request that never ends. */
function floodOfContinuations(): Buffer {
  const piece = Buffer.concat([Buffer.from([0x00, 0x01, 0x61, 0x7f, 0x81, 0x07]), Buffer.alloc(256, 0x62)]);
  const flood = Array.from({ length: 2_000 }, () => frame(9, 0, 1, piece));
  return Buffer.concat([frame(1, 0, 1, piece), ...flood]);
}

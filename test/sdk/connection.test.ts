import { once } from "node:events";
import { createServer, type Socket } from "node:net";
import type { AddressInfo } from "node:net";
import { createHoldfast, type Holdfast, HoldfastUnavailableError } from "@holdfast/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createFakeControlPlane, type FakeControlPlane } from "../support/fake-control-plane.ts";
import { type Front, startFront } from "../support/front.ts";
import { type PlaneServer, servePlane } from "../support/plane-server.ts";
import { rejection, SPEND } from "./setup.ts";

const MAIL = { amount: "0.0079", currency: "usd", vendor: "resend", endpoint: "POST /emails" };

let plane: FakeControlPlane;
let server: PlaneServer;
let front: Front;
let holdfast: Holdfast;
const defects: unknown[] = [];
const onDefect = (error: unknown) => void defects.push(error);

beforeEach(async () => {
  process.on("uncaughtException", onDefect);
  process.on("unhandledRejection", onDefect);
  plane = createFakeControlPlane();
  server = await servePlane(plane);
  front = await startFront(() => server.port);
  holdfast = clientOf(front.port);
});
afterEach(async () => {
  await holdfast.close({ timeoutMs: 1_000 });
  await front.close();
  await server.close();
  await new Promise((resolve) => setImmediate(resolve));
  process.off("uncaughtException", onDefect);
  process.off("unhandledRejection", onDefect);
  expect(defects.splice(0)).toEqual([]);
});

function clientOf(port: number, timeoutMs = 30_000): Holdfast {
  return createHoldfast({ baseUrl: `http://127.0.0.1:${port}`, vaultKey: "vk_test_main_secret", timeoutMs });
}

let spends = 0;
function spend(client = holdfast): Promise<unknown> {
  spends += 1;
  const vendorReference = `mail_${spends}`;
  return client.spend({ ...SPEND, purpose: vendorReference }, MAIL, async () => ({ vendorReference }));
}

describe("the connection to the control plane", () => {
  it("is one for all calls", async () => {
    await Promise.all([spend(), spend(), spend()]);
    await spend();
    expect(front.accepted()).toBe(1);
  });

  it("is replaced when it was half-open for the whole time, well before the deadline", async () => {
    await spend();
    front.freeze();
    // One call, whose first try gets no answer.
    await spend();
    expect(front.accepted()).toBe(2);
  });

  it("is replaced when the server told it to go elsewhere", async () => {
    await spend();
    server.goAway();
    await spend();
    expect(front.accepted()).toBe(2);
  });

  it("is replaced when it was reset, also in the middle of a call", async () => {
    await spend();
    front.reset();
    await spend();
    let resets = 0;
    plane.intercept = () => {
      resets += 1;
      if (resets === 1) front.reset();
    };
    await spend();
    expect(front.accepted()).toBe(3);
  });

  it("is replaced when somebody in between writes garbage into it", async () => {
    await spend();
    front.inject(Buffer.from("HTTP/1.1 502 Bad Gateway\r\n\r\n<html>"));
    await spend();
    front.inject(Buffer.alloc(70_000, 0xff));
    await spend();
    expect(front.accepted()).toBe(3);
  });

  it("is opened again after close for what still runs", async () => {
    await holdfast.withBillingLease({ lease: "l", billingPeriod: "p" }, async () => {
      await holdfast.close();
    });
    expect(plane.names()).toContain("releaseLease");
  });
});

describe("a server that is none", () => {
  const sockets = new Set<Socket>();
  const answering = async (answer: (socket: Socket) => void): Promise<[number, () => void]> => {
    const wrong = createServer((socket) => {
      sockets.add(socket);
      socket.on("error", () => undefined);
      socket.once("data", () => answer(socket));
    }).listen(0, "127.0.0.1");
    await once(wrong, "listening");
    return [
      (wrong.address() as AddressInfo).port,
      () => {
        wrong.close();
        for (const socket of sockets) socket.destroy();
      },
    ];
  };

  // An empty SETTINGS frame, then what no client should survive unharmed but has to.
  const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
  const frame = (type: number, flags: number, stream: number, payload: Buffer): Buffer => {
    const head = Buffer.alloc(9);
    head.writeUIntBE(payload.length, 0, 3);
    head.writeUInt8(type, 3);
    head.writeUInt8(flags, 4);
    head.writeUInt32BE(stream, 5);
    return Buffer.concat([head, payload]);
  };
  const code = (value: number): Buffer => {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32BE(value);
    return bytes;
  };

  it.each<[string, (socket: Socket) => void]>([
    ["answers nothing", () => undefined],
    ["ends every connection", (socket) => socket.end()],
    ["resets every connection", (socket) => socket.resetAndDestroy()],
    ["answers in HTTP/1", (socket) => socket.end("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK")],
    ["answers with noise", (socket) => socket.write(Buffer.alloc(4_096, 0xa5))],
    [
      "says GOAWAY to everything",
      (socket) => socket.write(Buffer.concat([settings, frame(7, 0, 0, Buffer.concat([code(0), code(11)]))])),
    ],
    [
      "says GOAWAY without an error",
      (socket) => socket.write(Buffer.concat([settings, frame(7, 0, 0, Buffer.concat([code(0), code(0)]))])),
    ],
    ["resets every call", (socket) => socket.write(Buffer.concat([settings, frame(3, 0, 1, code(2))]))],
    ["refuses every call", (socket) => socket.write(Buffer.concat([settings, frame(3, 0, 1, code(7))]))],
    [
      "answers headers that are none",
      (socket) => socket.write(Buffer.concat([settings, frame(1, 4, 1, Buffer.alloc(20, 0xff))])),
    ],
    ["answers an odd status", (socket) => socket.write(Buffer.concat([settings, frame(1, 5, 1, Buffer.from([0x8d]))]))],
  ])("and %s: a typed error by the deadline", async (_what, answer) => {
    const [port, close] = await answering(answer);
    const client = clientOf(port, 700);
    try {
      expect(await rejection(spend(client))).toBeInstanceOf(HoldfastUnavailableError);
    } finally {
      await client.close({ timeoutMs: 1 });
      close();
    }
  });
});

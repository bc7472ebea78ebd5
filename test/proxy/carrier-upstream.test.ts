import { once } from "node:events";
import { createServer as createHttpsServer } from "node:https";
import { type AddressInfo, createServer, type Server, type Socket } from "node:net";
import { getCACertificates, setDefaultCACertificates } from "node:tls";
import { gzipSync } from "node:zlib";
import { afterEach, describe, expect, test } from "vitest";
import {
  createStripeUpstream,
  defaultUpstreamLimits,
  type Upstream,
  type UpstreamLimits,
} from "../../server/proxy/stripe-upstream.ts";
import { type Authority, createAuthority } from "../support/certificates.ts";
import { nothingLeft } from "../../sdk/stripe-send.ts";

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const closer of closers.splice(0).toReversed()) await closer();
});

/** A vendor that answers with exactly these bytes, and what it was sent. */
async function startVendor(answer: (socket: Socket, request: string) => void) {
  const requests: string[] = [];
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    let text = "";
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
      const head = text.indexOf("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
      if (head < 0 || text.length < head + 4 + length) return;
      const request = text;
      text = "";
      requests.push(request);
      answer(socket, request);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { requests, sockets, origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

function open(origin: string, limits: Partial<UpstreamLimits> = {}): Upstream {
  const upstream = createStripeUpstream(origin, { ...defaultUpstreamLimits, ...limits });
  closers.push(() => upstream.close());
  return upstream;
}

const ask = (upstream: Upstream, method = "POST", path = "/v1/charges", headers: Record<string, unknown> = {}) =>
  upstream.client.makeRequest("elsewhere.example", 1, path, method, headers, "amount=1", "ftp", 60_000);

async function failure(call: Promise<unknown>): Promise<Error> {
  const thrown: unknown = await call.then(
    () => undefined,
    (error: unknown) => error,
  );
  if (!(thrown instanceof Error)) throw new Error("the request was answered", { cause: thrown });
  return thrown;
}

const json = '{"id": "ch_1",  "amount": 1}';
const ok = (more = "", body = json) => `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n${more}\r\n${body}`;

describe("a request", () => {
  test("has the headers that are named, the origin's host, and none of the caller's other ones", async () => {
    const vendor = await startVendor((socket) => socket.write(ok()));
    const response = await ask(open(vendor.origin), "POST", "/v1/charges", {
      authorization: "Bearer sk",
      "Content-Type": "application/x-www-form-urlencoded",
      "Stripe-Version": "2025-03-31.basil",
      "Stripe-Account": "acct_1",
      "Idempotency-Key": "key",
      "X-Forwarded-For": "1.2.3.4",
      Cookie: "a=b",
      Host: "elsewhere.example",
      "Accept-Encoding": "gzip",
      "Transfer-Encoding": "chunked",
      "Content-Length": "3",
    });
    expect(await response.toJSON()).toEqual({ id: "ch_1", amount: 1 });
    const [head = "", body] = (vendor.requests[0] ?? "").split("\r\n\r\n");
    expect(body).toBe("amount=1");
    const [line, ...headers] = head.split("\r\n");
    expect(line).toBe("POST /v1/charges HTTP/1.1");
    expect(headers.map((header) => header.toLowerCase()).toSorted()).toEqual([
      "accept-encoding: identity",
      "authorization: bearer sk",
      "connection: keep-alive",
      "content-length: 8",
      "content-type: application/x-www-form-urlencoded",
      `host: ${new URL(vendor.origin).host}`,
      "idempotency-key: key",
      "stripe-account: acct_1",
      "stripe-version: 2025-03-31.basil",
      "user-agent: holdfast-proxy",
    ]);
  });

  test("goes to the origin whatever its path looks like", async () => {
    const vendor = await startVendor((socket) => socket.write(ok()));
    const upstream = open(vendor.origin);
    for (const path of ["//elsewhere.example/v1/charges", "http://elsewhere.example/", "/v1/charges?a=//b"]) {
      await ask(upstream, "GET", path);
    }
    expect(vendor.requests.map((request) => request.split(" ")[1])).toEqual([
      "//elsewhere.example/v1/charges",
      "http://elsewhere.example/",
      "/v1/charges?a=//b",
    ]);
  });

  test("is sent once: a connection that dies under it is no reason to send it again", async () => {
    const vendor = await startVendor((socket, request) => {
      if (request.startsWith("GET")) socket.write(ok());
      else socket.destroy();
    });
    const upstream = open(vendor.origin);
    await ask(upstream, "GET");
    const error = await failure(ask(upstream));
    expect(nothingLeft(error)).toBe(false);
    expect(vendor.requests).toHaveLength(2);
    expect(vendor.sockets.size).toBe(1);
  });

  test("that must not be repeated has a connection of its own", async () => {
    const vendor = await startVendor((socket) => socket.write(ok()));
    const upstream = open(vendor.origin);
    await ask(upstream, "GET");
    await ask(upstream, "POST", "/v2/money_management/outbound_payments");
    expect(vendor.sockets.size).toBe(2);
  });
});

describe("an answer counts as lost", () => {
  const bad: readonly (readonly [string, string | ((socket: Socket) => void)])[] = [
    ["with a line feed inside a header", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: a\nb\r\n\r\n{}"],
    ["with two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} "],
    [
      "with a length and chunks",
      "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
    ["that redirects", "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\n{}"],
    ["that is another protocol", "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
    ["that was cut", (socket) => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"id":')],
    ["that is no HTTP", "SSH-2.0-OpenSSH\r\n\r\n"],
    [
      "that is no UTF-8",
      (socket) => socket.write(Buffer.from('HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"\xff\xfe"', "latin1")),
    ],
    ["with endless headers", `HTTP/1.1 200 OK\r\n${"x: y\r\n".repeat(10_000)}\r\n`],
    [
      "that is compressed, and it is not inflated",
      (socket) => {
        const bomb = gzipSync(Buffer.alloc(5_000_000));
        socket.write(`HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: ${bomb.length}\r\n\r\n`);
        socket.write(bomb);
      },
    ],
  ];
  test.each(bad)("%s", async (_, answer) => {
    const vendor = await startVendor((socket) => {
      if (typeof answer === "string") socket.write(answer);
      else answer(socket);
    });
    const error = await failure(ask(open(vendor.origin)));
    expect(error.message).not.toMatch(/in 60000 ms/);
    expect(nothingLeft(error)).toBe(false);
    expect(vendor.requests).toHaveLength(1);
  });

  test("that is larger than the limit, and is not read to its end", async () => {
    let written = 0;
    const vendor = await startVendor((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${100 * 1024 * 1024}\r\n\r\n`);
      const chunk = Buffer.alloc(64 * 1024, 0x20);
      const more = (): void => {
        if (socket.destroyed) return;
        written += chunk.length;
        socket.write(chunk, more);
      };
      more();
    });
    const error = await failure(ask(open(vendor.origin)));
    expect(error.message).toMatch(/too large/);
    expect(written).toBeLessThan(50 * 1024 * 1024);
  });

  test("after a flood of interim answers", async () => {
    const vendor = await startVendor((socket) => {
      const flood = (): void => {
        if (!socket.destroyed) socket.write("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(4), flood);
      };
      flood();
    });
    expect((await failure(ask(open(vendor.origin)))).message).toMatch(/interim/);
  });

  test("when it does not come in time, and when it trickles", async () => {
    const trickling: NodeJS.Timeout[] = [];
    const vendor = await startVendor((socket, request) => {
      if (!request.startsWith("POST /v1/trickle")) return;
      socket.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n");
      trickling.push(setInterval(() => socket.write(" "), 20));
    });
    closers.push(() => trickling.forEach((timer) => clearInterval(timer)));
    const upstream = open(vendor.origin, { requestMs: 300 });
    for (const path of ["/v1/silent", "/v1/trickle"]) {
      const error = await failure(ask(upstream, "POST", path));
      expect(error.message).toMatch(/300 ms/);
      expect(nothingLeft(error)).toBe(false);
    }
  });
});

describe("an answer", () => {
  test("keeps its status, its headers and its text; a Set-Cookie is left out", async () => {
    const vendor = await startVendor((socket) =>
      socket.write(
        ok("Request-Id: req_1\r\nset-cookie: a=b\r\nX-Other: 1\r\n").replace("200 OK", "402 Payment Required"),
      ),
    );
    const response = await ask(open(vendor.origin));
    expect(response.getStatusCode()).toBe(402);
    expect(response.getHeaders()).toEqual({
      "content-length": String(json.length),
      "request-id": "req_1",
      "x-other": "1",
    });
    expect(response.getRawResponse()).toMatchObject({ text: json });
  });

  test("may be in chunks, after an interim answer", async () => {
    const vendor = await startVendor((socket) =>
      socket.write(
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      ),
    );
    expect(await (await ask(open(vendor.origin))).toJSON()).toEqual({});
  });
});

describe("a vendor that cannot be connected to", () => {
  test("was sent nothing when it refuses, when its name is unknown, and when it does not accept in time", async () => {
    const vendor = await startVendor(() => undefined);
    closers.splice(0).forEach((closer) => closer());
    expect(nothingLeft(await failure(ask(open(vendor.origin))))).toBe(true);
    expect(nothingLeft(await failure(ask(open("http://nobody.invalid"))))).toBe(true);
    // A vendor that accepts the connection and never ends the handshake.
    const silent = await startVendor(() => undefined);
    const upstream = open(silent.origin.replace("http:", "https:"), { connectMs: 300 });
    expect(nothingLeft(await failure(ask(upstream)))).toBe(true);
  });
});

describe("a vendor over TLS", () => {
  const authority = createAuthority();
  const stranger = createAuthority();

  async function startSecure(issuer: Authority, name: string) {
    const requests: string[] = [];
    const server = createHttpsServer(issuer.issue(name), (request, response) => {
      requests.push(`${request.method} ${request.url}`);
      request.resume();
      response.end("{}");
    });
    server.on("tlsClientError", () => undefined);
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    closers.push(() => {
      server.closeAllConnections();
      server.close();
    });
    return { requests, origin: `https://localhost:${(server.address() as AddressInfo).port}` };
  }

  /** Until the end of the test, the authority is one of those that this process trusts. */
  function trust(cert: string): void {
    const before = getCACertificates("default");
    closers.push(() => setDefaultCACertificates(before));
    setDefaultCACertificates([...before, cert]);
  }

  /** The setting by which everybody else in the process verifies nothing. */
  function verifyNothing(): void {
    const before = process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
    closers.push(() => {
      if (before === undefined) delete process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
      else process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = before;
    });
    process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = "0";
  }

  test("is asked where its certificate is good", async () => {
    trust(authority.cert);
    const vendor = await startSecure(authority, "localhost");
    expect(await (await ask(open(vendor.origin))).toJSON()).toEqual({});
    expect(vendor.requests).toEqual(["POST /v1/charges"]);
  });

  test.each([
    ["an authority that nobody trusts", stranger, "localhost"],
    ["another name", authority, "elsewhere.example"],
  ] as const)(
    "is sent nothing with a certificate of %s, also where verifying is turned off",
    async (_, issuer, name) => {
      trust(authority.cert);
      verifyNothing();
      const vendor = await startSecure(issuer, name);
      const upstream = open(vendor.origin);
      for (const path of ["/v1/charges", "/v2/money_management/outbound_payments"]) {
        expect(nothingLeft(await failure(ask(upstream, "POST", path)))).toBe(true);
      }
      expect(vendor.requests).toEqual([]);
    },
  );
});

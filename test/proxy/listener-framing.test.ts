import { afterEach, expect, test } from "vitest";
import { closeWorlds, denied, exchange, post, startWorld, Wire, type World } from "./listener-world.ts";

afterEach(closeWorlds);

const refusalHeaders = (code: string) => ({
  "content-type": "application/json",
  "request-id": "hf_test",
  "stripe-should-retry": "false",
  "content-length": String(JSON.stringify({ error: { code } }).length),
  connection: "close",
});

/** The only answer: its status and code, the connection's end after it, and nothing that reached the handler. */
async function expectRefused(world: World, bytes: string, status: number, code: string): Promise<void> {
  const before = world.handler.heads.length;
  const wire = await Wire.open(world);
  const answer = await wire.send(bytes).answer();
  expect({ ...answer, headers: Object.fromEntries(answer?.headers ?? []) }, bytes.slice(0, 120)).toEqual({
    status,
    headers: refusalHeaders(code),
    body: JSON.stringify({ error: { code } }),
  });
  expect(await wire.end(), "nothing follows the refusal").toBe("");
  expect(world.handler.heads).toHaveLength(before);
  wire.socket.destroy();
}

const chunkedHead = "POST /v1/charges HTTP/1.1\r\nHost: x\r\n";

const noHttp: readonly (readonly [what: string, bytes: string])[] = [
  ["NUL in the target", "GET /v1/\0 HTTP/1.1\r\nHost: x\r\n\r\n"],
  ["a tab in the target", "GET /v1/\tx HTTP/1.1\r\nHost: x\r\n\r\n"],
  ["raw UTF-8 in the target", "GET /v1/\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n"],
  ["no leading slash", "GET v1/charges HTTP/1.1\r\nHost: x\r\n\r\n"],
  ["a length and a coding", `${chunkedHead}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
  ["a coding and a length", `${chunkedHead}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n`],
  ["two different lengths", `${chunkedHead}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde`],
  ["the same length twice", `${chunkedHead}Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd`],
  ["a length with a sign", `${chunkedHead}Content-Length: +4\r\n\r\nabcd`],
  ["a list of lengths", `${chunkedHead}Content-Length: 4, 4\r\n\r\nabcd`],
  ["a length of 20 digits", `${chunkedHead}Content-Length: 99999999999999999999\r\n\r\nabcd`],
  ["a coding behind chunked", `${chunkedHead}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n`],
  ["a space before the colon", `${chunkedHead}Content-Length : 4\r\n\r\nabcd`],
  ["a folded line", `${chunkedHead}X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n`],
  ["bare line feeds", "POST /v1/charges HTTP/1.1\nHost: x\nContent-Length: 0\n\n"],
  ["a bare carriage return in a value", `${chunkedHead}X-A: b\rc\r\nContent-Length: 0\r\n\r\n`],
  ["a header name of other characters", `${chunkedHead}X(A): b\r\nContent-Length: 0\r\n\r\n`],
  ["an unknown method", "CHARGE /v1/charges HTTP/1.1\r\nHost: x\r\n\r\n"],
  ["an unknown version", "GET /v1/charges HTTP/3.7\r\nHost: x\r\n\r\n"],
  ["the preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
  ["a TLS handshake", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
  ["no HTTP at all", "hello\r\n\r\n"],
];

test.each(noHttp)("%s is no request: 400 in the vendor's shape, and the connection ends", async (_what, bytes) => {
  await expectRefused(await startWorld(), bytes, 400, "invalid_request");
});

const ambiguous: readonly (readonly [what: string, lines: string, status: number, code: string])[] = [
  ["identity before chunked", "Host: x\r\nTransfer-Encoding: identity, chunked\r\n", 400, "invalid_framing"],
  [
    "chunked after another coding on a line of its own",
    "Host: x\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
    400,
    "invalid_framing",
  ],
  ["an unknown coding", "Host: x\r\nTransfer-Encoding: xchunked\r\n", 400, "invalid_framing"],
  ["gzip before chunked", "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 400, "invalid_framing"],
  ["two Hosts", "Host: x\r\nHost: y\r\nContent-Length: 0\r\n", 400, "invalid_host"],
  ["two equal Hosts", "Host: x\r\nhOST: x\r\nContent-Length: 0\r\n", 400, "invalid_host"],
  ["no Host", "Content-Length: 0\r\n", 400, "invalid_host"],
  ["65 header lines", `Host: x\r\n${"X-A: b\r\n".repeat(63)}Content-Length: 0\r\n`, 431, "too_many_headers"],
  ["2 500 header lines", `Host: x\r\n${"a:\r\n".repeat(2_498)}Content-Length: 0\r\n`, 431, "too_many_headers"],
];

test.each(ambiguous)("%s is refused before the handler is asked", async (_what, lines, status, code) => {
  await expectRefused(await startWorld(), `POST /v1/charges HTTP/1.1\r\n${lines}\r\n0\r\n\r\n`, status, code);
});

test("what would be read past the limits of a head is refused: 431 for 64 KB, 414 for a target of 9 KB", async () => {
  const world = await startWorld();
  const long = `/${"a".repeat(65_536)}`;
  await expectRefused(world, `GET ${long} HTTP/1.1\r\nHost: x\r\n\r\n`, 431, "headers_too_large");
  await expectRefused(world, `GET /v1/charges HTTP/1.1\r\nHost: x\r\nX-A: ${long}\r\n\r\n`, 431, "headers_too_large");
  await expectRefused(world, `GET /v1?${"a".repeat(9_216)} HTTP/1.1\r\nHost: x\r\n\r\n`, 414, "uri_too_long");
  const fits = await exchange(world, `GET /${"a".repeat(8_191)} HTTP/1.1\r\nHost: x\r\n\r\n`);
  expect(fits?.status).toBe(200);
});

test("64 header lines are taken, and reach the handler as they came", async () => {
  const world = await startWorld();
  const lines = [
    "Host: x",
    ...Array.from({ length: 60 }, (_, at) => `X-${at}: b`),
    "AUTHorization: a",
    "authorization: b",
  ];
  const answer = await exchange(world, ["POST /v1?x=1 HTTP/1.1", ...lines, "Content-Length: 2", "", "ab"].join("\r\n"));
  expect(answer?.status).toBe(200);
  expect(world.handler.heads).toMatchObject([{ method: "POST", target: "/v1?x=1" }]);
  const raw = world.handler.heads[0]?.rawHeaders ?? [];
  expect(raw).toHaveLength(128);
  expect(raw.slice(-6)).toEqual(["AUTHorization", "a", "authorization", "b", "Content-Length", "2"]);
});

test("targets of every form reach the handler unresolved", async () => {
  const world = await startWorld();
  const targets = [
    "http://evil.test/v1/refunds",
    "//evil.test/v1",
    "/\\evil.test",
    "/v1/%2e%2e/x",
    "/v1/charges#/x",
    "*",
  ];
  for (const target of targets) {
    await exchange(world, `${target === "*" ? "OPTIONS" : "GET"} ${target} HTTP/1.1\r\nHost: x\r\n\r\n`);
  }
  expect(world.handler.heads.map(({ target }) => target)).toEqual(targets);
  await exchange(world, "TRACE / HTTP/1.1\r\nHost: x\r\n\r\n");
  expect(world.handler.heads.at(-1)?.method).toBe("TRACE");
});

test("CONNECT ends the connection without a word", async () => {
  const world = await startWorld();
  const wire = await Wire.open(world);
  expect(await wire.send("CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n").end()).toBe("");
  expect(world.handler.heads).toEqual([]);
});

test("an Upgrade is dropped: the request is served as HTTP/1.1", async () => {
  const world = await startWorld();
  const upgrade = ["Connection: Upgrade, HTTP2-Settings, Authorization", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"];
  const answer = await exchange(world, post("a=1", ...upgrade, "Authorization: Bearer vk"));
  expect(answer).toMatchObject({ status: 200, body: "{}" });
  expect(world.handler.bodies).toEqual(["a=1"]);
  // Whether a hop would have taken it away is of no weight here.
  expect(world.handler.heads[0]?.rawHeaders).toContain("Bearer vk");
});

test("a Host is compared with the names that are set, and used for nothing else", async () => {
  const named = await startWorld({ names: ["Pay.Example.com", "[::1]"] });
  const get = (host: string) => `GET /v1/charges HTTP/1.1\r\nHost: ${host}\r\n\r\n`;
  for (const host of ["evil", "evil/?", "pay.example.com.evil", "pay.example.com:x", "x#pay.example.com", ""]) {
    await expectRefused(named, get(host), 421, "unknown_host");
  }
  for (const host of ["pay.example.com", "PAY.example.com:8443", "[::1]:12111"]) {
    expect((await exchange(named, get(host)))?.status, host).toBe(200);
  }
  const any = await startWorld();
  expect((await exchange(any, get("evil/?")))?.status).toBe(200);
});

test("header names of a prototype are names like any other", async () => {
  const world = await startWorld();
  const names = ["__proto__: x", "constructor: y", "hasOwnProperty: z"];
  expect((await exchange(world, post("", ...names)))?.status).toBe(200);
  expect(world.handler.heads[0]?.rawHeaders).toEqual(expect.arrayContaining(["__proto__", "constructor"]));
});

test("a handler's header that HTTP does not know becomes a 500 without detail", async () => {
  const bad = { status: 200, headers: { "x-echo": "a\r\nSet-Cookie: b" }, body: "{}" };
  const world = await startWorld({ answer: () => bad });
  await exchange(world, post("a=1")).then((answer) => {
    expect(answer).toMatchObject({ status: 500, body: JSON.stringify({ error: { code: "internal_error" } }) });
  });
  expect(world.errors).toHaveLength(1);
});

test("an answer has the handler's headers, a length and what keeps the connection, and nothing else", async () => {
  const world = await startWorld({ begin: ({ target }) => (target === "/denied" ? denied : undefined) });
  const wire = await Wire.open(world);
  expect((await wire.send(post("a=1")).answer())?.headers).toEqual([
    ["content-type", "application/json"],
    ["content-length", "2"],
    ["keep-alive", "timeout=600"],
    ["connection", "keep-alive"],
  ]);
  const refused = await wire.send("GET /denied HTTP/1.1\r\nHost: x\r\n\r\n").answer();
  expect(refused?.status).toBe(403);
  expect(refused?.headers).toContainEqual(["connection", "keep-alive"]);
  const last = await wire.send(post("a=1", "Connection: close")).answer();
  expect(last?.headers).toContainEqual(["connection", "close"]);
  expect(last?.headers.map(([name]) => name)).not.toContain("keep-alive");
  expect(await wire.end()).toBe("");
});

test("HTTP/1.0 is served, without chunks", async () => {
  const world = await startWorld();
  const wire = await Wire.open(world);
  const answer = await wire.send("POST /v1 HTTP/1.0\r\nHost: x\r\nContent-Length: 3\r\n\r\na=1").answer();
  expect(answer?.headers).toContainEqual(["connection", "close"]);
  expect(await wire.end()).toBe("");
  const chunked = "POST /v1 HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  await expectRefused(world, chunked, 400, "invalid_framing");
});

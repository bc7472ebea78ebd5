import { afterEach, expect, test } from "vitest";
import { answerOf, closeWorlds, denied, done, exchange, post, startWorld, Wire } from "./listener-world.ts";

afterEach(closeWorlds);

const chunked = (...chunks: readonly string[]): string =>
  ["POST /v1/charges HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n", ...chunks].join("");
const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;
const lastChunk = "0\r\n\r\n";

test("a body arrives whole, by its length or in chunks, in one piece or byte by byte", async () => {
  const world = await startWorld();
  const large = "x".repeat(65_536);
  for (const body of ["a=1", large]) expect(await exchange(world, post(body))).toMatchObject({ status: 200 });
  expect(await exchange(world, chunked(chunk("a="), chunk("1"), lastChunk))).toMatchObject({ status: 200 });
  expect(await exchange(world, chunked(...Array.from(large, chunk), lastChunk))).toMatchObject({ status: 200 });
  const wire = await Wire.open(world);
  for (const byte of post("b=2")) {
    wire.send(byte);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(await wire.answer()).toMatchObject({ status: 200 });
  expect(world.handler.bodies.map((body) => (body === large ? "large" : body))).toEqual([
    "a=1",
    "large",
    "a=1",
    "large",
    "b=2",
  ]);
});

test("a body that is too large is refused with its length, or where it grows too large, and the connection ends", async () => {
  const world = await startWorld({ bytesMax: 1000 });
  const announced = await Wire.open(world);
  const refused = await announced.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n").answer();
  expect(refused).toMatchObject({ status: 413, body: JSON.stringify({ error: { code: "body_too_large" } }) });
  expect(refused?.headers).toContainEqual(["connection", "close"]);
  const grown = await Wire.open(world);
  grown.send(chunked(chunk("x".repeat(1000)), chunk("x")));
  expect(await grown.answer()).toMatchObject({ status: 413 });
  expect(world.handler.refusals.map(({ code }) => code)).toEqual(["body_too_large", "body_too_large"]);
  expect(world.handler.bodies).toEqual([]);
});

test("a client that still sends megabytes gets to read its refusal", async () => {
  const world = await startWorld({ bytesMax: 1000, limits: { lingerMs: 60_000 } });
  const size = 8_000_000;
  const wire = await Wire.open(world);
  wire.send(`POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ${size}\r\n\r\n`);
  // Not read before all is sent, as the simplest of clients do.
  const sent = new Promise((resolve) => wire.socket.write("x".repeat(size), resolve));
  await sent;
  expect(await wire.answer()).toMatchObject({ status: 413 });
  expect(await wire.end()).toBe("");
});

test("GET and DELETE with a body are refused and recorded, without one they are served", async () => {
  const world = await startWorld();
  for (const method of ["GET", "DELETE"]) {
    for (const body of ["Content-Length: 3\r\n\r\na=1", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]) {
      const wire = await Wire.open(world);
      const refused = await wire.send(`${method} /v1/x HTTP/1.1\r\nHost: x\r\n${body}`).answer();
      expect(refused).toMatchObject({ status: 400, body: JSON.stringify({ error: { code: "unexpected_body" } }) });
      expect(refused?.headers).toContainEqual(["connection", "close"]);
      expect(await wire.end()).toBe("");
    }
    const empty = `${method} /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n`;
    expect(await exchange(world, empty)).toMatchObject({ status: 200 });
  }
  expect(world.handler.refusals).toHaveLength(4);
  expect(world.handler.bodies).toEqual(["", ""]);
});

test("a request hidden in the body of a GET is never begun", async () => {
  const world = await startWorld();
  const hidden = "POST /v1/refunds HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
  const wire = await Wire.open(world);
  wire.send(`GET /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: ${hidden.length}\r\n\r\n${hidden}${hidden}`);
  expect(await wire.answer()).toMatchObject({ status: 400 });
  expect(await wire.end()).toBe("");
  expect(world.handler.heads.map(({ method }) => method)).toEqual(["GET"]);
});

test("who waits for a go-ahead gets it after the head was accepted, and only then", async () => {
  const begun = Promise.withResolvers<undefined>();
  const world = await startWorld({
    bytesMax: 100,
    begin: ({ target }) => (target === "/denied" ? denied : begun.promise),
  });
  const expecting = (target: string, length: number): string =>
    `POST ${target} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: ${length}\r\n\r\n`;
  const wire = await Wire.open(world);
  const interim = wire.send(expecting("/v1/charges", 3)).answer();
  await expect.poll(() => world.handler.heads).toHaveLength(1);
  // A round trip to the server: what it would have sent at once were here by now.
  expect(await exchange(world, expecting("/denied", 3))).toMatchObject({ status: 403 });
  expect(wire.socket.bytesRead).toBe(0);
  begun.resolve(undefined);
  expect(await interim).toEqual({ status: 100, headers: [], body: "" });
  expect(await wire.send("a=1").answer()).toMatchObject({ status: 200 });
  // Refused without an interim answer: by the policy, and by the announced size.
  for (const [target, status] of [
    ["/denied", 403],
    ["/large", 413],
  ] as const) {
    const refused = await Wire.open(world);
    const answer = await refused.send(expecting(target, 101)).answer();
    expect(answer?.status).toBe(status);
    expect(answer?.headers).toContainEqual(["connection", "close"]);
    refused.socket.destroy();
  }
  expect(world.handler.bodies).toEqual(["a=1"]);
});

test("a refusal at the head ends the connection only where a body is left unread", async () => {
  const world = await startWorld({ begin: () => denied });
  const wire = await Wire.open(world);
  const first = await wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").answer();
  expect(first?.headers).toContainEqual(["connection", "keep-alive"]);
  const second = await wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").answer();
  expect(second?.headers).toContainEqual(["connection", "close"]);
  // What comes now is the rest of that body, whatever it looks like.
  wire.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  expect(await wire.end()).toBe("");
  expect(world.handler.heads).toHaveLength(2);
});

const brokenChunks: readonly (readonly [what: string, chunks: string])[] = [
  ["a size that is no number", "zz\r\nabc\r\n"],
  ["a size with a sign", "+3\r\nabc\r\n0\r\n\r\n"],
  ["a size in 0x", "0x3\r\nabc\r\n0\r\n\r\n"],
  ["a size past 2^64", "10000000000000003\r\nabc\r\n0\r\n\r\n"],
  ["bytes past a chunk", "3\r\nabcd\r\n0\r\n\r\n"],
  ["line feeds alone", "3\nabc\n0\n\n"],
  ["an extension of 20 KB", `3;${"a".repeat(20_000)}\r\nabc\r\n0\r\n\r\n`],
  ["trailers of 1 MB", `3\r\nabc\r\n0\r\nX-A: ${"a".repeat(1_000_000)}\r\n\r\n`],
];

test.each(brokenChunks)("chunks with %s are refused, and nothing is carried out", async (_what, chunks) => {
  const world = await startWorld({ limits: { lingerMs: 20 } });
  const wire = await Wire.open(world);
  const answer = await wire.send(chunked(chunks)).answer();
  expect([400, 431]).toContain(answer?.status);
  expect(answer?.headers).toContainEqual(["connection", "close"]);
  expect(await wire.end()).toBe("");
  expect(world.handler.heads).toHaveLength(1);
  expect(world.handler.refusals).toHaveLength(1);
  expect(world.handler.bodies).toEqual([]);
});

test("trailers are ignored, credentials in them too", async () => {
  const world = await startWorld();
  const trailed = chunked(chunk("a=1"), "0\r\nAuthorization: Bearer vk\r\nIdempotency-Key: k\r\n\r\n");
  expect(await exchange(world, trailed)).toMatchObject({ status: 200 });
  expect(world.handler.bodies).toEqual(["a=1"]);
  expect(world.handler.heads[0]?.rawHeaders).toEqual(["Host", "x", "Transfer-Encoding", "Chunked"]);
});

test("a body that ends too early, by a closed side or a cut, is recorded and never carried out", async () => {
  const world = await startWorld();
  const half = "POST /v1/charges HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\na=1";
  const closing = await Wire.open(world);
  closing.send(half).socket.end();
  expect(await closing.answer()).toMatchObject({ status: 400 });
  const cut = await Wire.open(world);
  cut.send(half);
  await expect.poll(() => world.handler.heads).toHaveLength(2);
  cut.socket.resetAndDestroy();
  await expect.poll(() => world.handler.refusals).toHaveLength(2);
  expect(world.handler.refusals[1]).toMatchObject({ code: "incomplete_body" });
  expect(world.handler.bodies).toEqual([]);
});

test("pipelined requests are carried out one after the other and answered in their order", async () => {
  const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const world = await startWorld({
    answer: async (body) => {
      await gates[Number(body)]?.promise;
      return { ...done, body };
    },
  });
  const wire = await Wire.open(world);
  wire.send(post("0") + post("1") + post("2"));
  gates[2]?.resolve();
  gates[1]?.resolve();
  await expect.poll(() => world.handler.bodies).toHaveLength(1);
  // A round trip: what would be begun at once has been begun by now.
  await exchange(world, post("other"));
  expect(world.handler.bodies).toEqual(["0", "other"]);
  gates[0]?.resolve();
  const bodies = [await wire.answer(), await wire.answer(), await wire.answer()].map((answer) => answer?.body);
  expect(bodies).toEqual(["0", "1", "2"]);
  wire.socket.destroy();
});

test("behind an answer that ends the connection nothing is begun", async () => {
  const world = await startWorld();
  const wire = await Wire.open(world);
  wire.send(post("0") + post("1", "Connection: close") + post("2"));
  expect(await wire.answer()).toMatchObject({ status: 200 });
  expect(await wire.answer()).toMatchObject({ status: 200 });
  expect(await wire.end()).toBe("");
  expect(world.handler.bodies).toEqual(["0", "1"]);
});

test("garbage behind a request does not cost it its answer", async () => {
  const answered = Promise.withResolvers<void>();
  const world = await startWorld({ answer: () => answered.promise.then(() => done) });
  const wire = await Wire.open(world);
  wire.send(`${post("0")}garbage\r\n\r\n`);
  await expect.poll(() => world.handler.bodies).toHaveLength(1);
  answered.resolve();
  const answer = await wire.answer();
  expect(answer?.status).toBe(200);
  expect(answer?.headers).toContainEqual(["connection", "close"]);
  expect(await wire.end()).toBe("");
});

test("a thousand pipelined requests are not all kept waiting", async () => {
  const answered = Promise.withResolvers<void>();
  const world = await startWorld({ answer: () => answered.promise.then(() => done), limits: { pipelinedMax: 2 } });
  const wire = await Wire.open(world);
  wire.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000));
  await expect.poll(() => world.handler.heads).toHaveLength(1);
  answered.resolve();
  expect((await wire.answer())?.headers).toContainEqual(["connection", "close"]);
  expect(await wire.end()).toBe("");
  expect(world.handler.heads).toHaveLength(1);
});

test("a handler that fails is a 500 without detail, at the head and later", async () => {
  const broken = () => Promise.reject(new Error("secret detail"));
  for (const world of [await startWorld({ begin: broken }), await startWorld({ answer: broken })]) {
    const expected = answerOf({ status: 500, code: "internal_error", message: "" }).body;
    expect(await exchange(world, post("a=1"))).toMatchObject({ status: 500, body: expected });
    expect(world.errors).toHaveLength(1);
  }
});

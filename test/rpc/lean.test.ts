import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { OutgoingHttpHeaders, ServerHttp2Stream } from "node:http2";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import type { HandlerContext, Interceptor } from "@connectrpc/connect";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import {
  type AuthorizeSpendRequest,
  AuthorizeSpendRequestSchema,
  AuthorizeSpendResponseSchema,
  BatchAuthorizeSpendRequestSchema,
} from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError } from "@holdfast/server/domain/errors";
import { LeanCall } from "@holdfast/server/rpc/lean-call";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { compressed, frame, openRaw, type RawAnswer, type RawCall, type RawClient } from "./raw-grpc.ts";
import { hangingHandler, type StubServer, startStubServer, validRequest } from "./stub-server.ts";

const service = "/holdfast.v1.SpendControlService";
const none: ReadonlySet<string> = new Set();

/** A server and how the calls of its handlers have come there. */
interface Path {
  readonly server: StubServer;
  readonly client: RawClient;
  readonly lean: boolean[];
}

let lean: Path;
let adapted: Path;

beforeAll(async () => {
  lean = await startPath();
  adapted = await startPath(none);
});
afterAll(async () => {
  // Both clients stay connected: this ends only when every stream has.
  await Promise.all([lean.server.close(600_000), adapted.server.close(600_000)]);
  for (const { client } of [lean, adapted]) client.session.destroy();
});

async function startPath(leanMethods?: ReadonlySet<string>, spend: object = { authorizeSpend: odd }): Promise<Path> {
  const taken: boolean[] = [];
  const note: Interceptor = (next) => (request) => {
    taken.push(request instanceof LeanCall);
    return next(request);
  };
  const server = await startStubServer({
    ...(leanMethods === undefined ? {} : { leanMethods }),
    interceptors: [note],
    spend,
  });
  return { server, client: openRaw(server.url), lean: taken };
}

/** Does what the customer's name says. */
function odd(request: AuthorizeSpendRequest, context: HandlerContext) {
  switch (request.spend?.customerId) {
    case "defect":
      throw new Error("secret");
    case "refused":
      throw new HoldfastError("QUEUE_FULL", "Zu viele: 100 % → «später» 💸\n", { retryAfterMs: 1_500 });
    case "unwritable":
      throw new HoldfastError("NOT_FOUND", "half a character: \ud83d");
    case "large":
      return { differingFields: Array.from({ length: 5 }, () => "x".repeat(1024 * 1024)) };
    case "headers":
      context.responseHeader.set("x-head", "one");
      context.responseTrailer.append("x-tail", "two");
      context.responseTrailer.append("x-tail", "three");
      return { disposition: Disposition.DENIED };
    case "shows":
      return { differingFields: [context.url.replace(/:\d+/, ""), ...shown(context)] };
    default:
      return { disposition: Disposition.GRANTED };
  }
}

function shown(context: HandlerContext): string[] {
  const { requestMethod, protocolName, service: called, method, requestHeader } = context;
  const headers = [...requestHeader].filter(([name]) => name !== "authorization");
  return [requestMethod, protocolName, called.typeName, method.name, JSON.stringify(headers)];
}

function spendOf(customerId: string): Uint8Array {
  const request = validRequest();
  if (request.spend !== undefined) request.spend.customerId = customerId;
  return toBinary(AuthorizeSpendRequestSchema, request);
}

const valid = spendOf("cust_1");
const unknownField = Buffer.concat([valid, Buffer.from([0xf8, 0x3f, 0x01])]);
const batch = toBinary(
  BatchAuthorizeSpendRequestSchema,
  create(BatchAuthorizeSpendRequestSchema, { requests: Array.from({ length: 300 }, validRequest) }),
);
const big = Buffer.alloc(70_000, 1);

/** By what is odd about it: the bytes, and whether the client then ends its side. */
const bodies: Readonly<Record<string, readonly [Uint8Array, boolean]>> = {
  good: [frame(valid), true],
  "a defect": [frame(spendOf("defect")), true],
  "a refusal with odd text": [frame(spendOf("refused")), true],
  "an error that no header can carry": [frame(spendOf("unwritable")), true],
  "an answer that is too large": [frame(spendOf("large")), true],
  "headers and trailers of the handler": [frame(spendOf("headers")), true],
  "what a handler is told": [frame(spendOf("shows")), true],
  "no field set": [frame(new Uint8Array()), true],
  "a field that breaks a rule": [frame(spendOf("a:b")), true],
  "a field of another version": [frame(unknownField), true],
  "a batch above the limit of a single request": [frame(batch), true],
  nothing: [new Uint8Array(), true],
  "half a prefix": [frame(valid).subarray(0, 3), true],
  "half a message": [frame(valid).subarray(0, 20), true],
  "two messages": [Buffer.concat([frame(valid), frame(valid)]), true],
  "a message and half of another": [Buffer.concat([frame(valid), frame(valid).subarray(0, 9)]), true],
  "a message and a byte": [Buffer.concat([frame(valid), Buffer.from([0])]), true],
  "no message of the contract": [frame(Buffer.from("ffffffffff", "hex")), true],
  "no message, and the client goes on": [frame(Buffer.from("ffffffffff", "hex")), false],
  compressed: [compressed(valid), true],
  "compressed, of nothing": [frame(new Uint8Array(), { flags: 1 }), true],
  "compressed, and broken": [frame(valid, { flags: 1 }), true],
  "compressed, and cut": [frame(compressed(valid).subarray(5, 40), { flags: 1 }), true],
  "a bomb": [compressed(Buffer.alloc(1024 * 1024)), true],
  "a flag that nobody has defined": [frame(valid, { flags: 2 }), true],
  "too large": [frame(big), true],
  "too large, and the client goes on": [frame(big), false],
  "too large by its prefix, and ended before": [frame(big.subarray(0, 40_000), { length: 1_000_000 }), true],
  "too large by its prefix alone": [frame(new Uint8Array(), { length: 2 ** 32 - 1 }), false],
};

const tokens = ["vault key", "operator", "unknown", "two", "none"] as const;
const given = {
  token: fc.constantFrom<(typeof tokens)[number]>("vault key", "vault key", "vault key", ...tokens),
  rpc: fc.constantFrom("AuthorizeSpend", "AuthorizeSpend", "BatchAuthorizeSpend", "CommitSpend", "AuthorizeSpendd"),
  verb: often("POST", "GET", "PUT"),
  type: often(
    "application/grpc",
    "application/grpc+proto",
    "Application/gRPC",
    "application/grpc+json",
    "text/plain",
    "",
  ),
  timeout: often(undefined, "5S", "0m", "30001m", "1H", "-1m", "five", "", "123456789m"),
  encoding: often(undefined, "identity", "gzip", "gzip", "br", ""),
  accepts: often(undefined, "gzip", "identity,deflate, gzip", "identity", ""),
  other: often("none", "no te", "expects", "many headers", "no authority", "impossible authority", "Host"),
  body: fc.constantFrom("good", ...Object.keys(bodies)),
  pieces: fc.constantFrom<number>(1, 1, 2, 7),
};
type Given = { readonly [Key in keyof typeof given]: (typeof given)[Key] extends fc.Arbitrary<infer T> ? T : never };

/** Mostly the first: two odd things at once hide one another. */
function often<T>(usual: T, ...others: T[]): fc.Arbitrary<T> {
  return fc.oneof({ weight: 4, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: fc.constantFrom(...others) });
}

const usual: Given = {
  token: "vault key",
  rpc: "AuthorizeSpend",
  verb: "POST",
  type: "application/grpc",
  timeout: undefined,
  encoding: undefined,
  accepts: undefined,
  other: "none",
  body: "good",
  pieces: 1,
};

function headersOf(one: Given, server: StubServer): OutgoingHttpHeaders {
  const bearer = {
    "vault key": { authorization: `Bearer ${server.vaultKeyToken}` },
    operator: { authorization: `bearer  ${server.operatorToken}` },
    unknown: { authorization: `Bearer vk_acme_billing_${"x".repeat(43)}` },
    two: { authorization: `Bearer ${server.vaultKeyToken}, Bearer ${server.vaultKeyToken}` },
    none: {},
  }[one.token];
  const other = {
    none: {},
    "no te": { te: undefined },
    expects: { expect: "100-continue" },
    "many headers": Object.fromEntries(Array.from({ length: 70 }, (_, index) => [`x-${index}`, "1"])),
    "no authority": { ":authority": undefined, host: "localhost" },
    "impossible authority": { ":authority": "local host:1:2" },
    Host: { ":authority": "LOCALHOST:80" },
  }[one.other];
  return {
    ":method": one.verb,
    ":path": `${service}/${one.rpc}`,
    ":authority": "localhost",
    te: "trailers",
    ...(one.type === "" ? {} : { "content-type": one.type }),
    ...(one.timeout === undefined ? {} : { "grpc-timeout": one.timeout }),
    ...(one.encoding === undefined ? {} : { "grpc-encoding": one.encoding }),
    ...(one.accepts === undefined ? {} : { "grpc-accept-encoding": one.accepts }),
    ...bearer,
    ...other,
  };
}

function callOf(one: Given, server: StubServer): RawCall {
  const [bytes, end] = bodies[one.body] as readonly [Uint8Array, boolean];
  const size = Math.max(1, Math.ceil(bytes.length / one.pieces));
  const count = Math.ceil(bytes.length / size);
  const chunks = Array.from({ length: count }, (_, index) => bytes.subarray(index * size, (index + 1) * size));
  // GET has no body for Node's client.
  const bare = one.verb === "GET";
  return { headers: headersOf(one, server), chunks: bare ? [] : chunks, end: end || bare };
}

async function bothOf(one: Given): Promise<{ readonly lean: RawAnswer; readonly adapted: RawAnswer }> {
  const [ofLean, ofAdapted] = await Promise.all([
    lean.client.call(callOf(one, lean.server)),
    adapted.client.call(callOf(one, adapted.server)),
  ]);
  return { lean: ofLean, adapted: ofAdapted };
}

describe("a client cannot tell the lean path from the adapter", () => {
  test.each(Object.keys(bodies))("by a body: %s", async (body) => {
    for (const encoding of [undefined, "gzip"]) {
      for (const pieces of [1, 2, 9]) {
        const answers = await bothOf({ ...usual, body, pieces, encoding });
        expect(answers.lean).toEqual(answers.adapted);
      }
    }
  });

  test("by anything about a request", async () => {
    const property = fc.asyncProperty(fc.record(given), async (one) => {
      // The adapter says what its decoder says to who has sent garbage past the deadline.
      fc.pre(one.timeout !== "0m" || (one.body === "good" && one.rpc === "AuthorizeSpend"));
      const answers = await bothOf(one);
      expect(answers.lean).toEqual(answers.adapted);
    });
    await fc.assert(property, { numRuns: 400, interruptAfterTimeLimit: 60_000 });
  }, 120_000);

  test("by what is logged", () => {
    const logged = (path: Path) => new Set(path.server.defects.map(({ message }) => message));
    expect(logged(lean)).toEqual(logged(adapted));
  });
});

test("a server keeps no stream that it has answered", async () => {
  const open = new Set<ServerHttp2Stream>();
  let seen = 0;
  const created = (message: unknown): void => {
    const { stream } = message as { readonly stream: ServerHttp2Stream };
    open.add(stream);
    seen += 1;
    stream.once("close", () => open.delete(stream));
  };
  subscribe("http2.server.stream.created", created);
  for (const body of Object.keys(bodies)) {
    for (const pieces of [1, 9]) {
      for (const token of tokens) await lean.client.call(callOf({ ...usual, token, body, pieces }, lean.server));
    }
  }
  unsubscribe("http2.server.stream.created", created);
  expect(seen).toBeGreaterThan(100);
  await expect.poll(() => open.size).toBe(0);
});

test("plain calls of the hot RPCs take the lean path, all others the adapter", async () => {
  const taken = async (one: Partial<Given>): Promise<boolean[]> => {
    lean.lean.length = 0;
    await lean.client.call(callOf({ ...usual, ...one }, lean.server));
    return [...lean.lean];
  };
  expect(await taken({})).toEqual([true]);
  expect(await taken({ type: "application/grpc+proto", body: "compressed", encoding: "gzip" })).toEqual([true]);
  expect(await taken({ rpc: "BatchAuthorizeSpend", body: "a batch above the limit of a single request" })).toEqual([
    true,
  ]);
  expect(await taken({ type: "Application/gRPC" })).toEqual([false]);
  await adapted.client.call(callOf(usual, adapted.server));
  expect(adapted.lean).not.toContain(true);
});

test("a handler is told the same on both paths", async () => {
  const { lean: answer } = await bothOf({ ...usual, body: "what a handler is told", other: "Host" });
  const [url, ...rest] = fromBinary(
    AuthorizeSpendResponseSchema,
    Buffer.from(answer.body, "base64").subarray(5),
  ).differingFields;
  expect(url).toBe(`http://localhost${service}/AuthorizeSpend`);
  expect(rest.slice(0, 4)).toEqual(["POST", "grpc", "holdfast.v1.SpendControlService", "AuthorizeSpend"]);
  expect(rest[4]).toContain('["grpc-timeout","30000m"]');
});

describe("a call that hangs", () => {
  const hanging = async (run: (path: Path, entered: Promise<HandlerContext>) => Promise<unknown>) => {
    const results: unknown[] = [];
    for (const methods of [undefined, none]) {
      const { entered, authorizeSpend } = hangingHandler();
      const path = await startPath(methods, { authorizeSpend });
      results.push(await run(path, entered));
      expect(path.lean).toEqual([methods === undefined]);
      await path.server.close(0);
      path.client.session.destroy();
    }
    return results;
  };

  test("is answered at its deadline, and its handler is told", async () => {
    const [ofLean, ofAdapted] = await hanging(async (path, entered) => {
      const answer = await path.client.call(callOf({ ...usual, timeout: "60m" }, path.server));
      const { signal } = await entered;
      return { answer, aborted: signal.aborted, reason: String(signal.reason) };
    });
    expect(ofLean).toEqual(ofAdapted);
    expect(ofLean).toMatchObject({ aborted: true, answer: { trailers: { "grpc-status": "4" } } });
  });

  test("is over when the client resets it", async () => {
    const [ofLean, ofAdapted] = await hanging(async (path, entered) => {
      const { headers, chunks } = callOf(usual, path.server);
      const stream = path.client.session.request(headers);
      stream.on("error", () => {});
      stream.end(chunks[0]);
      const { signal } = await entered;
      const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
      stream.close(8);
      await aborted;
      return String(signal.reason);
    });
    expect(ofLean).toBe(ofAdapted);
    expect(ofLean).toContain("[canceled]");
  });

  test("is over when the connection breaks", async () => {
    const [ofLean, ofAdapted] = await hanging(async (path, entered) => {
      void path.client.call(callOf(usual, path.server));
      const { signal } = await entered;
      const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
      path.client.session.socket.destroy();
      await aborted;
      return String(signal.reason);
    });
    expect(ofLean).toBe(ofAdapted);
  });

  test("is told of a shutdown", async () => {
    const [ofLean, ofAdapted] = await hanging(async (path, entered) => {
      const answer = path.client.call(callOf(usual, path.server));
      await entered;
      const closed = path.server.close(2_000);
      const result = await answer;
      await closed;
      return result;
    });
    expect(ofLean).toEqual(ofAdapted);
    expect(ofLean).toMatchObject({ trailers: { "grpc-status": "14" } });
  });
});

test("a call whose client has gone before its body was there never reaches a handler", async () => {
  const before = lean.server.handled();
  const { headers, chunks } = callOf(usual, lean.server);
  const stream = lean.client.session.request(headers);
  stream.on("error", () => {});
  stream.write((chunks[0] as Uint8Array).subarray(0, 10));
  await new Promise<void>((resolve) => lean.client.session.ping(() => resolve()));
  stream.close(8);
  await new Promise<void>((resolve) => stream.once("close", resolve));
  await lean.client.call(callOf(usual, lean.server));
  expect(lean.server.handled()).toBe(before + 1);
});

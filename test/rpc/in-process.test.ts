import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "@holdfast/api/google/rpc/error_details_pb";
import { AdminService } from "@holdfast/api/holdfast/v1/admin_service_pb";
import { Disposition } from "@holdfast/api/holdfast/v1/spend_pb";
import { SpendControlService } from "@holdfast/api/holdfast/v1/spend_control_service_pb";
import { HoldfastError } from "@holdfast/server/domain/errors";
import { createInProcessTransport } from "@holdfast/server/rpc/in-process";
import { afterEach, describe, expect, test } from "vitest";
import { hangingHandler, type StubServer, startStubServer, validRequest } from "./stub-server.ts";

let server: StubServer | undefined;
afterEach(async () => {
  await server?.close(1_000);
  server = undefined;
});

async function start(options: Parameters<typeof startStubServer>[0] = {}): Promise<StubServer> {
  server = await startStubServer(options);
  return server;
}

/** What a call leads to, as its caller sees it. */
async function seen(call: Promise<unknown>): Promise<unknown> {
  try {
    return { answer: await call };
  } catch (thrown) {
    const error = ConnectError.from(thrown);
    return {
      code: Code[error.code],
      message: error.rawMessage,
      details: [ErrorInfoSchema, BadRequestSchema, RetryInfoSchema].flatMap((schema) =>
        error.findDetails(schema as typeof ErrorInfoSchema),
      ),
    };
  }
}

const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });

/** The same call over a socket and without one. */
async function both(stub: StubServer, call: (transport: Transport) => Promise<unknown>): Promise<unknown> {
  const overTheWire = await seen(call(createConnectTransport({ baseUrl: stub.url, httpVersion: "2" })));
  const inProcess = await seen(call(stub.inProcess));
  expect(inProcess).toEqual(overTheWire);
  return inProcess;
}

describe("a call inside the process is answered like one over the wire", () => {
  test("when it is granted", async () => {
    const stub = await start();
    const result = await both(stub, (transport) =>
      createClient(SpendControlService, transport).authorizeSpend(validRequest(), bearer(stub.vaultKeyToken)),
    );
    expect(result).toMatchObject({ answer: { disposition: Disposition.GRANTED } });
    expect(stub.handled()).toBe(2);
  });

  test("when it has a wrong token, or none: no handler is entered", async () => {
    const stub = await start();
    const wrong = stub.vaultKeyToken.replace(/.$/, (last) => (last === "a" ? "b" : "a"));
    for (const options of [bearer(wrong), bearer("nonsense"), {}]) {
      const result = await both(stub, (transport) =>
        createClient(SpendControlService, transport).authorizeSpend(validRequest(), options),
      );
      expect(result).toMatchObject({ code: "Unauthenticated", details: [{ reason: "INVALID_TOKEN" }] });
    }
    expect(stub.handled()).toBe(0);
  });

  test("when the token's role may not make it", async () => {
    const stub = await start();
    const result = await both(stub, (transport) =>
      createClient(AdminService, transport).listCaps({}, bearer(stub.vaultKeyToken)),
    );
    expect(result).toMatchObject({ code: "PermissionDenied", details: [{ reason: "ROLE_NOT_ALLOWED" }] });
  });

  test("when fields are wrong: all of them are named", async () => {
    const stub = await start();
    const result = await both(stub, (transport) =>
      createClient(SpendControlService, transport).authorizeSpend(
        { ...validRequest(), attemptId: "short", vendor: "" },
        bearer(stub.vaultKeyToken),
      ),
    );
    expect(result).toMatchObject({
      code: "InvalidArgument",
      details: [
        { reason: "INVALID_FIELD" },
        { fieldViolations: [{ field: expect.any(String) }, { field: expect.any(String) }] },
      ],
    });
    expect(stub.handled()).toBe(0);
  });

  test("when a handler refuses, with the delay after which to try again", async () => {
    const stub = await start({
      spend: {
        authorizeSpend: () => {
          throw new HoldfastError("QUEUE_FULL", "Too many wait.", { retryAfterMs: 250 });
        },
      },
    });
    const result = await both(stub, (transport) =>
      createClient(SpendControlService, transport).authorizeSpend(validRequest(), bearer(stub.vaultKeyToken)),
    );
    expect(result).toMatchObject({
      code: "ResourceExhausted",
      details: [{ reason: "QUEUE_FULL" }, { retryDelay: { nanos: 250_000_000 } }],
    });
  });

  test("when the message is too large, but for a batch", async () => {
    const stub = await start();
    const tooLarge = { ...validRequest(), bodyFingerprint: "f".repeat(70_000) };
    const result = await both(stub, (transport) =>
      createClient(SpendControlService, transport).authorizeSpend(tooLarge, bearer(stub.vaultKeyToken)),
    );
    expect(result).toMatchObject({ code: "ResourceExhausted" });
    const requests = Array.from({ length: 500 }, (_, n) => ({
      ...validRequest(),
      attemptId: n.toString(16).padStart(32, "0"),
    }));
    const batch = await both(stub, (transport) =>
      createClient(SpendControlService, transport).batchAuthorizeSpend({ requests }, bearer(stub.vaultKeyToken)),
    );
    expect((batch as { answer: { results: unknown[] } }).answer.results).toHaveLength(500);
  });
});

test("a defect inside the process is told as an internal error, and logged", async () => {
  const stub = await start({
    spend: {
      authorizeSpend: () => {
        throw new Error("secret detail");
      },
    },
  });
  const client = createClient(SpendControlService, stub.inProcess);
  const result = await seen(client.authorizeSpend(validRequest(), bearer(stub.vaultKeyToken)));
  expect(result).toMatchObject({ code: "Internal", message: "internal error" });
  expect(stub.defects).toHaveLength(1);
});

test("a call inside the process ends at its deadline, and its handler is told", async () => {
  const hanging = hangingHandler();
  const stub = await start({ spend: { authorizeSpend: hanging.authorizeSpend } });
  const client = createClient(SpendControlService, stub.inProcess);
  const result = seen(client.authorizeSpend(validRequest(), { ...bearer(stub.vaultKeyToken), timeoutMs: 500 }));
  const { signal, timeoutMs } = await hanging.entered;
  expect(timeoutMs()).toBeLessThanOrEqual(500);
  expect(await result).toMatchObject({ code: "DeadlineExceeded" });
  expect(signal.aborted).toBe(true);
});

test("a call inside the process that states no deadline gets the longest one", async () => {
  const hanging = hangingHandler();
  const stub = await start({ spend: { authorizeSpend: hanging.authorizeSpend }, limits: { timeoutMaxMs: 400 } });
  const client = createClient(SpendControlService, stub.inProcess);
  const result = seen(client.authorizeSpend(validRequest(), bearer(stub.vaultKeyToken)));
  expect((await hanging.entered).timeoutMs()).toBeLessThanOrEqual(400);
  expect(await result).toMatchObject({ code: "DeadlineExceeded" });
});

test("a call inside the process that is given up aborts its handler", async () => {
  const hanging = hangingHandler();
  const stub = await start({ spend: { authorizeSpend: hanging.authorizeSpend } });
  const client = createClient(SpendControlService, stub.inProcess);
  const given = new AbortController();
  const result = seen(client.authorizeSpend(validRequest(), { ...bearer(stub.vaultKeyToken), signal: given.signal }));
  const { signal } = await hanging.entered;
  given.abort();
  expect(await result).toMatchObject({ code: "Canceled" });
  expect(signal.aborted).toBe(true);
});

test("an RPC that nobody serves is unimplemented", async () => {
  const transport = createInProcessTransport({ routes: () => {}, interceptors: [], log: { error: () => {} } });
  const result = await seen(createClient(SpendControlService, transport).authorizeSpend(validRequest()));
  expect(result).toMatchObject({ code: "Unimplemented" });
});
